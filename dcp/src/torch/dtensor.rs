//! DTensors: one rank's part of a distributed tensor, with the mesh and placements that torch pickles beside it.
//!
//! Torch 2.9 and later keep the mesh as a layout, with the writing rank and its coordinate; earlier ones keep a
//! tensor of ranks, and do not tell which of them wrote the file.

use fqn::{Dims, Dtype, Shape};

use super::rebuild::{ShardRef, Tensor, TensorError, TensorRef, dims, read_dtype, read_tensor};
use crate::pickle::{Global, Ref};

/// How a distributed tensor is laid out on its mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DTensorSpec {
    /// Shape of the whole tensor.
    pub shape: Shape,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the mesh's axes, outermost first.
    pub mesh_shape: Dims,
    /// Names of the axes, where they have any.
    pub mesh_names: Option<Vec<String>>,
    /// One placement for each axis of the mesh.
    pub placements: Vec<TorchPlacement>,
    /// The mesh coordinate of the rank that wrote this part, where the file tells.
    pub coordinate: Option<Dims>,
    /// The rank that wrote this part, where the file tells.
    pub rank: Option<u64>,
    /// The ranks of the mesh, row-major.
    pub ranks: MeshRanks,
}

/// The ranks of a mesh, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshRanks {
    /// As the pickle tells.
    Listed(Vec<u64>),
    /// In a tensor of the same archive.
    Stored(Box<TensorRef>),
}

/// What one axis of a mesh does to a tensor, in torch's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TorchPlacement {
    /// Cuts dimension `dim`.
    Shard {
        /// Dimension of the tensor.
        dim: u64,
    },
    /// Cuts dimension `dim` after another axis, to the right of this one, has cut it into `split` parts.
    StridedShard {
        /// Dimension of the tensor.
        dim: u64,
        /// Parts of the other axis.
        split: u64,
    },
    /// Every rank of the axis has the whole.
    Replicate,
    /// Every rank of the axis has a summand.
    Partial {
        /// `sum`, `avg`, …
        reduce: String,
    },
}

/// Whether this is DTensor, in any of the modules where torch kept it.
pub(super) fn is_class(class: &Global) -> bool {
    let modules =
        ["torch.distributed.tensor", "torch.distributed.tensor._api", "torch.distributed._tensor.api"];
    &*class.name == "DTensor" && modules.contains(&&*class.module)
}

/// Reads the state of a DTensor: its slots, alone or beside its `__dict__`.
pub(super) fn read(state: Ref<'_>) -> Result<ShardRef, TensorError> {
    let part = |name: &'static str| {
        let direct = state.get(name);
        let nested = || state.as_sequence().and_then(|parts| parts.filter_map(|p| p.get(name)).last());
        direct.or_else(nested).ok_or_else(|| TensorError::shape("a DTensor", name, state))
    };
    let (local, spec) = (part("_local_tensor")?, part("_spec")?);
    let Some(Tensor::Plain(mut local)) = read_tensor(local)? else {
        return Err(TensorError::shape("the local part of a DTensor", "a plain tensor", local));
    };
    let marks = state.as_sequence().into_iter().flatten().filter_map(|p| p.get("_is_param"));
    local.is_parameter |= marks.filter_map(Ref::as_bool).any(|is| is);
    let spec = read_spec(spec, &local)?;
    Ok(ShardRef { local, spec })
}

fn attr<'a>(of: Ref<'a>, what: &'static str, name: &'static str) -> Result<Ref<'a>, TensorError> {
    of.attr(name).ok_or_else(|| TensorError::shape(what, name, of))
}

fn read_spec(spec: Ref<'_>, local: &TensorRef) -> Result<DTensorSpec, TensorError> {
    let what = "the spec of a DTensor";
    let meta = attr(spec, what, "tensor_meta")?;
    // A named tuple: (shape, stride, dtype) are the arguments of its class.
    let meta = meta.as_object().ok_or_else(|| TensorError::shape(what, "TensorMeta", meta))?;
    let (Some(shape), Some(dtype)) = (meta.arg(0), meta.arg(2)) else {
        return Err(TensorError::shape("TensorMeta", "a shape, strides and a dtype", meta.args));
    };
    let placements = attr(spec, what, "placements")?;
    let placements: Result<Vec<TorchPlacement>, TensorError> =
        placements.as_sequence().into_iter().flatten().map(read_placement).collect();
    let mesh = Mesh::read(attr(spec, what, "mesh")?)?;
    let spec = DTensorSpec {
        shape: Shape::from(dims("the shape of a DTensor", shape)?),
        dtype: read_dtype(dtype)?,
        placements: placements?,
        mesh_shape: mesh.shape,
        mesh_names: mesh.names,
        coordinate: mesh.coordinate,
        rank: mesh.rank,
        ranks: mesh.ranks,
    };
    check(&spec, local)?;
    Ok(spec)
}

fn check(spec: &DTensorSpec, local: &TensorRef) -> Result<(), TensorError> {
    let refuse = |why: &'static str| {
        let what = format!("DTensor of shape {} with placements {:?}", spec.shape, spec.placements);
        Err(TensorError::Refused { what, why })
    };
    let rank = spec.shape.rank();
    if spec.placements.len() != spec.mesh_shape.len() {
        return refuse("it has not one placement for each axis of its mesh");
    }
    if spec.coordinate.as_ref().is_some_and(|c| {
        c.len() != spec.mesh_shape.len() || !c.iter().zip(&spec.mesh_shape).all(|(c, n)| c < n)
    }) {
        return refuse("the coordinate of its rank lies outside its mesh");
    }
    let cuts_dim = |placement: &TorchPlacement| match placement {
        TorchPlacement::Shard { dim } | TorchPlacement::StridedShard { dim, .. } => *dim < rank as u64,
        _ => true,
    };
    if !spec.placements.iter().all(cuts_dim) {
        return refuse("it is cut along a dimension that it does not have");
    }
    if local.shape.rank() != rank || local.dtype != spec.dtype {
        return refuse("its local part has another rank or dtype");
    }
    Ok(())
}

fn read_placement(value: Ref<'_>) -> Result<TorchPlacement, TensorError> {
    let what = "a placement";
    let object = value.as_object().ok_or_else(|| TensorError::shape(what, "an object", value))?;
    let class = object.global().map_or("", |g| &*g.name);
    let number = |name: &'static str| {
        let int = value.attr(name).or_else(|| object.arg(usize::from(name != "dim"))).and_then(Ref::as_u64);
        int.ok_or_else(|| TensorError::shape(what, name, value))
    };
    match class {
        "Replicate" => Ok(TorchPlacement::Replicate),
        "Shard" => Ok(TorchPlacement::Shard { dim: number("dim")? }),
        "_StridedShard" => {
            let split = number("split_factor")?;
            if split == 0 {
                return Err(TensorError::shape(what, "a split factor from 1", value));
            }
            Ok(TorchPlacement::StridedShard { dim: number("dim")?, split })
        }
        "Partial" | "_Partial" => {
            let reduce =
                value.attr("reduce_op").or_else(|| object.arg(0)).and_then(Ref::as_str).unwrap_or("sum");
            Ok(TorchPlacement::Partial { reduce: reduce.to_owned() })
        }
        _ => Err(TensorError::Refused { what: format!("{value:.80}"), why: "this placement is not known" }),
    }
}

/// What a pickled DeviceMesh tells.
struct Mesh {
    shape: Dims,
    names: Option<Vec<String>>,
    coordinate: Option<Dims>,
    rank: Option<u64>,
    ranks: MeshRanks,
}

impl Mesh {
    fn read(mesh: Ref<'_>) -> Result<Self, TensorError> {
        let names = mesh.attr("_mesh_dim_names").or_else(|| mesh.attr("mesh_dim_names"));
        let names: Option<Vec<String>> = names
            .and_then(Ref::as_sequence)
            .and_then(|n| n.map(|name| name.as_str().map(str::to_owned)).collect());
        let (shape, ranks) =
            if mesh.attr("_layout").is_some() { Self::by_layout(mesh)? } else { Self::by_tensor(mesh)? };
        let coordinate = mesh.attr("_coordinate_on_dim").filter(|c| !c.is_none());
        Ok(Self {
            shape,
            names,
            coordinate: coordinate.map(|c| dims("a mesh coordinate", c)).transpose()?,
            rank: mesh.attr("_rank").and_then(Ref::as_u64),
            ranks,
        })
    }

    /// Torch 2.9 and later: axes by size and stride over a flat list of ranks.
    fn by_layout(mesh: Ref<'_>) -> Result<(Dims, MeshRanks), TensorError> {
        let what = "the layout of a device mesh";
        let layout = attr(mesh, what, "_layout")?;
        let axes = layout.attr("axes");
        let shape = match axes {
            Some(axes) => axes
                .as_sequence()
                .into_iter()
                .flatten()
                .map(|axis| Ok(dims(what, attr(axis, what, "shape")?)?.iter().product()))
                .collect::<Result<Dims, TensorError>>()?,
            None => dims(what, attr(layout, what, "shape")?)?,
        };
        let flat = mesh
            .attr("_flatten_rank_map")
            .ok_or_else(|| TensorError::shape(what, "_flatten_rank_map", mesh))?;
        Ok((shape, MeshRanks::Listed(dims(what, flat)?.to_vec())))
    }

    /// Before: a tensor of ranks.
    fn by_tensor(mesh: Ref<'_>) -> Result<(Dims, MeshRanks), TensorError> {
        let what = "a device mesh";
        let tensor = attr(mesh, what, "mesh").or_else(|e| mesh.attr("_mesh").ok_or(e))?;
        match read_tensor(tensor)? {
            Some(Tensor::Plain(ranks)) => {
                let shape = Dims::from_slice(&ranks.shape);
                Ok((shape, MeshRanks::Stored(Box::new(ranks))))
            }
            _ => Err(TensorError::shape(what, "a tensor of ranks", tensor)),
        }
    }
}
