//! Tensors out of the inert tree of a `data.pkl`: what torch's rebuild functions would have made, as descriptions.
//!
//! Invariant: a description that is returned lies within its storage; every product and sum was checked.

use fqn::{Dims, Dtype, Shape};

use super::dtensor::{self, DTensorSpec};
use super::storage::{self, StorageRef};
use crate::pickle::{Construction, Global, Object, Ref, Value};

/// A tensor that cannot be described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The pickle has something else where torch puts a part of a tensor.
    #[error("{what}: {needed} is expected, but {found} is there")]
    Unexpected {
        /// Part concerned.
        what: &'static str,
        /// What torch writes there.
        needed: &'static str,
        /// What is there.
        found: String,
    },
    /// It is well-formed, and of a kind that is not read.
    #[error("{what}: {why}")]
    Refused {
        /// The thing.
        what: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// The view does not lie within its storage.
    #[error(
        "a view of shape {shape}, strides {strides:?} and offset {offset} (elements of {dtype}) passes the end of \
         storage {key:?}, which has {bytes} bytes"
    )]
    OutOfBounds {
        /// Storage key.
        key: String,
        /// Its length in bytes.
        bytes: u64,
        /// Element type.
        dtype: Dtype,
        /// Extents.
        shape: Shape,
        /// Strides in elements.
        strides: Dims,
        /// First element.
        offset: u64,
    },
}

impl TensorError {
    pub(super) fn shape(what: &'static str, needed: &'static str, found: Ref<'_>) -> Self {
        Self::Unexpected { what, needed, found: format!("{found:.60}") }
    }
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// Element type.
    pub dtype: Dtype,
    /// The storage it is a view of; tensors may share one.
    pub storage: StorageRef,
    /// First element, in elements of `dtype` from the start of the storage.
    pub offset: u64,
    /// Extents.
    pub shape: Shape,
    /// Strides in elements, one for each dimension; 0 where one element stands for a whole dimension.
    pub strides: Dims,
    /// Whether it takes a gradient.
    pub requires_grad: bool,
    /// Whether it was an `nn.Parameter`.
    pub is_parameter: bool,
}

impl TensorRef {
    /// Whether its elements lie packed in row-major order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let Some(packed) = self.shape.row_major_strides() else { return false };
        let alike = |i: usize| self.shape.get(i) == Some(&1) || self.strides.get(i) == packed.get(i);
        self.shape.elements() == Some(0) || (0..self.shape.rank()).all(alike)
    }

    /// Where its first element is, in bytes from the start of the storage.
    #[must_use]
    pub fn byte_offset(&self) -> u64 {
        // Within the storage by the check of bounds, so it cannot overflow.
        self.dtype.bytes_for(self.offset).unwrap_or(u64::MAX)
    }
}

/// A tensor of a state dict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// A whole tensor.
    Plain(TensorRef),
    /// One rank's part of a distributed tensor.
    Sharded(Box<ShardRef>),
}

/// One rank's part of a distributed tensor, and how the whole is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRef {
    /// The part.
    pub local: TensorRef,
    /// The layout of the whole.
    pub spec: DTensorSpec,
}

/// Describes `value` if it is a tensor; `None` for anything else.
///
/// # Errors
/// [`TensorError`]: a tensor of a kind that is not read (quantized, sparse, nested …), one whose parts are not
/// what torch writes, and one that does not lie within its storage.
pub fn read_tensor(value: Ref<'_>) -> Result<Option<Tensor>, TensorError> {
    match value.value() {
        Value::Object(object) if object.construction == Construction::Reduce => match object.global() {
            Some(global) => rebuilt(global, &object, value),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn rebuilt(global: &Global, object: &Object<'_>, value: Ref<'_>) -> Result<Option<Tensor>, TensorError> {
    let args: Vec<Ref<'_>> = object.args.as_sequence().map(Iterator::collect).unwrap_or_default();
    match (&*global.module, &*global.name) {
        ("torch._utils", name) => by_function(name, &args, value),
        ("torch._tensor", "_rebuild_from_type_v2") => from_type(&args, value).map(Some),
        _ => Ok(None),
    }
}

/// What `torch._utils.<name>(*args)` would make.
fn by_function(name: &str, args: &[Ref<'_>], value: Ref<'_>) -> Result<Option<Tensor>, TensorError> {
    let tensor = match (name, args) {
        ("_rebuild_tensor", [storage, offset, shape, strides]) => {
            view(*storage, *offset, *shape, *strides, None)?
        }
        ("_rebuild_tensor_v2", [storage, offset, shape, strides, grad, _hooks, rest @ ..]) => {
            check_bits(rest.first())?;
            TensorRef { requires_grad: flag(*grad)?, ..view(*storage, *offset, *shape, *strides, None)? }
        }
        ("_rebuild_tensor_v3", [storage, offset, shape, strides, grad, _hooks, dtype, rest @ ..]) => {
            check_bits(rest.first())?;
            let dtype = Some(read_dtype(*dtype)?);
            TensorRef { requires_grad: flag(*grad)?, ..view(*storage, *offset, *shape, *strides, dtype)? }
        }
        ("_rebuild_parameter" | "_rebuild_parameter_with_state", [data, grad, ..]) => {
            return parameter(*data, *grad).map(Some);
        }
        (
            "_rebuild_tensor"
            | "_rebuild_tensor_v2"
            | "_rebuild_tensor_v3"
            | "_rebuild_parameter"
            | "_rebuild_parameter_with_state",
            _,
        ) => return Err(TensorError::shape("a tensor", "as many arguments as torch writes", value)),
        _ => return refuse_kind(name),
    };
    Ok(Some(Tensor::Plain(tensor)))
}

fn refuse_kind(name: &str) -> Result<Option<Tensor>, TensorError> {
    let why = match name {
        "_rebuild_qtensor" => {
            "quantized tensors are not read; dequantize it (`tensor.dequantize()`) and save it again"
        }
        "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor" => {
            "sparse tensors are not read; make it dense (`tensor.to_dense()`) and save it again"
        }
        "_rebuild_nested_tensor" => "nested tensors are not read; save its parts one by one",
        "_rebuild_meta_tensor_no_storage" => {
            "a tensor on the meta device has no values; save it from a real device"
        }
        "_rebuild_wrapper_subclass" => {
            "a tensor of a subclass other than DTensor is not read; save a plain tensor"
        }
        "_rebuild_device_tensor_from_numpy" | "_rebuild_device_tensor_from_cpu_tensor" => {
            "tensors of devices without storages are not read; move it to the CPU and save it again"
        }
        _ => return Ok(None),
    };
    Err(TensorError::Refused { what: format!("torch._utils.{name}"), why })
}

/// `_rebuild_from_type_v2(function, type, args, state)`: a tensor with attributes, or of a subclass.
fn from_type(args: &[Ref<'_>], value: Ref<'_>) -> Result<Tensor, TensorError> {
    let [function, class, inner, state] = args else {
        return Err(TensorError::shape("a tensor", "four arguments of _rebuild_from_type_v2", value));
    };
    let (Some(function), Some(class)) = (function.as_global(), class.as_global()) else {
        return Err(TensorError::shape("a tensor", "a function and a class", value));
    };
    if dtensor::is_class(class) {
        return dtensor::read(*state).map(|shard| Tensor::Sharded(Box::new(shard)));
    }
    let known =
        class.is("torch", "Tensor") || class.is("torch._tensor", "Tensor") || is_parameter_class(class);
    if !known || &*function.module != "torch._utils" {
        let what = format!("tensor of class {}.{}", class.module, class.name);
        return Err(TensorError::Refused {
            what,
            why: "only plain tensors, parameters and DTensors are read",
        });
    }
    let inner: Vec<Ref<'_>> = inner.as_sequence().map(Iterator::collect).unwrap_or_default();
    let tensor = by_function(&function.name, &inner, value)?;
    let tensor =
        tensor.ok_or_else(|| TensorError::shape("a tensor", "a function that rebuilds one", value))?;
    Ok(if is_parameter_class(class) { marked(tensor, None) } else { tensor })
}

fn is_parameter_class(class: &Global) -> bool {
    &*class.module == "torch.nn.parameter" && matches!(&*class.name, "Parameter" | "Buffer")
}

fn parameter(data: Ref<'_>, grad: Ref<'_>) -> Result<Tensor, TensorError> {
    let tensor = read_tensor(data)?.ok_or_else(|| TensorError::shape("a parameter", "a tensor", data))?;
    Ok(marked(tensor, Some(flag(grad)?)))
}

/// Marks a tensor as a parameter.
fn marked(mut tensor: Tensor, grad: Option<bool>) -> Tensor {
    let inner = match &mut tensor {
        Tensor::Plain(inner) => inner,
        Tensor::Sharded(shard) => &mut shard.local,
    };
    inner.is_parameter = true;
    inner.requires_grad = grad.unwrap_or(inner.requires_grad);
    tensor
}

fn flag(value: Ref<'_>) -> Result<bool, TensorError> {
    value.as_bool().ok_or_else(|| TensorError::shape("requires_grad", "a bool", value))
}

/// The dtype that `torch.<name>` is.
pub(super) fn read_dtype(value: Ref<'_>) -> Result<Dtype, TensorError> {
    let global = value.as_global().filter(|g| &*g.module == "torch");
    let global = global.ok_or_else(|| TensorError::shape("a dtype", "a torch dtype", value))?;
    Dtype::from_torch_name(&global.name).ok_or_else(|| TensorError::Refused {
        what: format!("torch.{}", global.name),
        why: "tensors of this dtype are not read",
    })
}

/// Lazily conjugated or negated tensors store other bits than their values.
fn check_bits(metadata: Option<&Ref<'_>>) -> Result<(), TensorError> {
    let set = |name: &str| metadata.and_then(|m| m.get(name)).is_some_and(|bit| bit.as_bool() != Some(false));
    let what = if set("conj") {
        "lazily conjugated tensor"
    } else if set("neg") {
        "lazily negated tensor"
    } else {
        return Ok(());
    };
    let why =
        "its bytes are not its values; resolve it (`resolve_conj()`, `resolve_neg()`) and save it again";
    Err(TensorError::Refused { what: what.to_owned(), why })
}

fn view(
    storage: Ref<'_>,
    offset: Ref<'_>,
    shape: Ref<'_>,
    strides: Ref<'_>,
    dtype: Option<Dtype>,
) -> Result<TensorRef, TensorError> {
    let (storage, class) = storage::read(storage)?;
    let dtype = dtype.or(class).ok_or_else(|| TensorError::Refused {
        what: format!("storage {:?}", storage.key),
        why: "it is untyped, and the tensor does not tell its dtype",
    })?;
    let tensor = TensorRef {
        dtype,
        storage,
        offset: offset
            .as_u64()
            .ok_or_else(|| TensorError::shape("a storage offset", "an int from 0", offset))?,
        shape: Shape::from(dims("a shape", shape)?),
        strides: dims("strides", strides)?,
        requires_grad: false,
        is_parameter: false,
    };
    check_bounds(&tensor)?;
    Ok(tensor)
}

/// A tuple of non-negative ints, bare or as `torch.Size`.
pub(super) fn dims(what: &'static str, value: Ref<'_>) -> Result<Dims, TensorError> {
    let inner = match value.as_object() {
        Some(size) if size.is("torch", "Size") => size.arg(0).unwrap_or(value),
        _ => value,
    };
    let items = inner.as_sequence().ok_or_else(|| TensorError::shape(what, "a tuple of ints", value))?;
    items.map(|item| item.as_u64().ok_or_else(|| TensorError::shape(what, "an int from 0", item))).collect()
}

fn check_bounds(tensor: &TensorRef) -> Result<(), TensorError> {
    let within = || {
        let size = tensor.dtype.element_bytes()?;
        let elements = tensor.shape.elements()?;
        if elements == 0 {
            return Some(true);
        }
        let steps = tensor.shape.iter().zip(&tensor.strides);
        let last = steps
            .map(|(n, s)| n.saturating_sub(1).checked_mul(*s))
            .try_fold(tensor.offset, |sum, step| sum.checked_add(step?))?;
        Some(last.checked_add(1)?.checked_mul(size)? <= tensor.storage.bytes)
    };
    if tensor.shape.rank() == tensor.strides.len() && within() == Some(true) {
        return Ok(());
    }
    Err(TensorError::OutOfBounds {
        key: tensor.storage.key.clone(),
        bytes: tensor.storage.bytes,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        strides: tensor.strides.clone(),
        offset: tensor.offset,
    })
}
