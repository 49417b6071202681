//! [`TensorLayout`]: the regions of one tensor on a mesh, and who owns each.
//!
//! Cuts apply in the rule's order; a later cut on the same dimension cuts what the earlier one left (`tp:0,dp:0` is
//! torch's FSDP inside TP, a `_StridedShard`). A `tp` cut along the axis of fused parts falls inside every part; other
//! axes cut what is left as one. Rows that a layout pads are cut with the rest and then dropped.
//!
//! Invariants: shards are disjoint and cover the tensor; every owner of a shard holds all of it; a rank owns one
//! region, but for fused tensors.

mod pieces;

use fqn::{AxisName, Dims, Dtype, Entry, PlacementRule, Shape, StageRule, TensorId};
use smallvec::{SmallVec, smallvec};

use super::{
    StageError, Stages,
    cut::{Stretches, across, below, within},
};
use crate::{Mesh, Region, RegionError};

/// Why a tensor, or a registry, has no layout on a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No placement rule, on a mesh of more than one rank.
    #[error("no placement rule covers {tensor}; add one (`replicate` if every rank holds all of it)")]
    NoRule {
        /// The tensor.
        tensor: TensorId,
    },
    /// A rule cuts a dimension that isn't there.
    #[error("placement {rule} of {tensor} cuts dimension {dim}, but its shape is {shape}")]
    NoDimension {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// Two axes of a rule that the mesh maps to one.
    #[error("placement {rule} of {tensor} cuts twice over mesh axis {axis}")]
    AxisTwice {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
        /// The axis.
        axis: AxisName,
    },
    /// A rule by layer for a tensor without one.
    #[error("placement {rule} of {tensor} puts it on the stage of its layer, but it has no layer index")]
    NoLayer {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
    },
    /// Fused parts that don't add up to the tensor.
    #[error("fused parts of {tensor} do not add up to dimension {axis} of shape {shape}")]
    Fusion {
        /// The tensor.
        tensor: TensorId,
        /// The parts' dimension.
        axis: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A shape that no region can have.
    #[error("shape {shape} of {tensor}: {source}")]
    Shape {
        /// The tensor.
        tensor: TensorId,
        /// Its shape.
        shape: Shape,
        /// Why.
        source: RegionError,
    },
    /// Layers that don't split over the stages.
    #[error(transparent)]
    Stages(#[from] StageError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    /// Position of the axis in the mesh.
    axis: usize,
    extent: u64,
    dim: usize,
    within_parts: bool,
}

impl Cut {
    /// What it leaves, of what is held of its dimension, to those at a coordinate of its axis.
    fn part(&self, held: &Stretches, index: u64) -> Stretches {
        let by = if self.within_parts { within } else { across };
        by(held, self.extent, index)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Everywhere,
    On(u64),
    Ends,
}

/// One tensor on a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorLayout {
    id: TensorId,
    dtype: Dtype,
    shape: Shape,
    cuts: SmallVec<[Cut; 2]>,
    /// What is there to cut, per dimension.
    uncut: SmallVec<[Stretches; 4]>,
    held: Held,
}

/// The ranks that hold a shard: a product of axis choices, never a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Owners {
    /// Per axis: extent, and the choice.
    axes: SmallVec<[(u64, Choice); 4]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Any,
    At(u64),
    Ends,
}

/// A distinct region of a tensor and the ranks that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The region; never empty.
    pub region: Region,
    /// Who holds it.
    pub owners: Owners,
}

impl TensorLayout {
    /// Resolves the rule of `entry` on `mesh`.
    ///
    /// # Errors
    /// No rule (on more than one rank), a cut of a dimension that isn't there, a missing layer, fused parts that don't add up.
    pub fn new(entry: &Entry, mesh: &Mesh, stages: &Stages) -> Result<Self, LayoutError> {
        let rule = match &entry.placement {
            Some(rule) => rule.clone(),
            None if mesh.ranks() == 1 => PlacementRule::default(),
            None => return Err(LayoutError::NoRule { tensor: entry.id() }),
        };
        Region::whole(&entry.shape).map_err(|source| LayoutError::Shape {
            tensor: entry.id(),
            shape: entry.shape.clone(),
            source,
        })?;
        Ok(Self {
            id: entry.id(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            cuts: resolve(&rule, entry, mesh)?,
            uncut: uncut(entry)?,
            held: held(&rule, entry, mesh, stages)?,
        })
    }

    /// Its identity.
    #[must_use]
    pub const fn id(&self) -> &TensorId {
        &self.id
    }

    /// Its element type.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its global shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of `region`, packed, rounded up to whole ones.
    #[must_use]
    pub fn bytes(&self, region: &Region) -> u64 {
        let bits = u128::from(region.elements()) * u128::from(self.dtype.bits());
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    }

    /// Number of coordinate combinations of the axes that cut: an upper bound of the distinct shards.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.cuts.iter().map(|cut| cut.extent).product()
    }

    /// The distinct regions with their owners, in cutting order; empty ones left out. They tile the tensor.
    pub fn shards<'a>(&'a self, mesh: &'a Mesh) -> impl Iterator<Item = Shard> + 'a {
        let dims = pieces::by_dimension(self);
        let anywhere = self.owners(mesh, &[]);
        (0..self.pieces()).flat_map(move |piece| {
            let at = self.cut_coords(piece);
            let mut owners = anywhere.clone();
            owners.choose(&self.cuts, &at);
            pieces::regions(&dims, &at)
                .into_iter()
                .map(move |region| Shard { region, owners: owners.clone() })
        })
    }

    /// What the rank at `coords` of `mesh` holds: nothing where another stage has the tensor, else its regions. An empty
    /// shard is one empty region whose offset is the end of each cut dimension, as torch has it.
    #[must_use]
    pub fn regions_of(&self, mesh: &Mesh, coords: &[u64]) -> SmallVec<[Region; 1]> {
        if !self.is_held_at(mesh, coords) {
            return SmallVec::new();
        }
        let at: Dims = self.cuts.iter().map(|cut| coords.get(cut.axis).copied().unwrap_or(0)).collect();
        let regions = self.regions_at(&at);
        if regions.is_empty() { self.empty_at(&at).into_iter().collect() } else { regions }
    }

    /// Coordinates on the cutting axes, in cutting order, of piece number `piece`; the last cut is fastest.
    fn cut_coords(&self, mut piece: u64) -> Dims {
        let mut at = Dims::from_elem(0, self.cuts.len());
        for (coord, cut) in at.iter_mut().zip(&self.cuts).rev() {
            *coord = piece % cut.extent;
            piece /= cut.extent;
        }
        at
    }

    fn stretches(&self, at: &[u64]) -> SmallVec<[Stretches; 4]> {
        let mut held = self.uncut.clone();
        for (cut, index) in self.cuts.iter().zip(at) {
            if let Some(stretches) = held.get_mut(cut.dim) {
                *stretches = cut.part(stretches, *index);
            }
        }
        for (stretches, end) in held.iter_mut().zip(self.shape.iter()) {
            *stretches = below(stretches, *end);
        }
        held
    }

    /// The non-empty regions at coordinates `at` of the cutting axes: the product of the stretches of each dimension.
    fn regions_at(&self, at: &[u64]) -> SmallVec<[Region; 1]> {
        pieces::product(self.stretches(at).iter())
    }

    fn empty_at(&self, at: &[u64]) -> Option<Region> {
        let (mut offsets, mut extents) = (Dims::new(), Dims::new());
        for (stretches, end) in self.stretches(at).iter().zip(self.shape.iter()) {
            let (start, len) = stretches.first().copied().unwrap_or((*end, 0));
            offsets.push(start);
            extents.push(len);
        }
        Region::new(&offsets, &extents).ok()
    }

    fn owners(&self, mesh: &Mesh, at: &[u64]) -> Owners {
        let pipeline = match self.held {
            Held::Everywhere => Choice::Any,
            Held::On(stage) => Choice::At(stage),
            Held::Ends => Choice::Ends,
        };
        let axes: SmallVec<[(u64, Choice); 4]> = mesh
            .axes()
            .iter()
            .map(|(name, extent)| (*extent, if name.is_pipeline() { pipeline } else { Choice::Any }))
            .collect();
        let mut owners = Owners { axes };
        owners.choose(&self.cuts, at);
        owners
    }

    /// Whether the rank at `coords` of `mesh` has a part, maybe an empty one, of the tensor.
    #[must_use]
    pub fn is_held_at(&self, mesh: &Mesh, coords: &[u64]) -> bool {
        let stage = mesh.position("pp").and_then(|at| coords.get(at)).copied().unwrap_or(0);
        match self.held {
            Held::Everywhere => true,
            Held::On(held) => stage == held,
            Held::Ends => stage == 0 || stage + 1 == mesh.stages(),
        }
    }
}

fn resolve(rule: &PlacementRule, entry: &Entry, mesh: &Mesh) -> Result<SmallVec<[Cut; 2]>, LayoutError> {
    let mut cuts: SmallVec<[Cut; 2]> = SmallVec::new();
    for (axis, dim) in rule.cuts() {
        if *dim >= entry.shape.rank() {
            let (tensor, rule, shape) = (entry.id(), rule.clone(), entry.shape.clone());
            return Err(LayoutError::NoDimension { tensor, rule, dim: *dim, shape });
        }
        let Some(at) = mesh.cutting(axis) else { continue };
        if cuts.iter().any(|cut| cut.axis == at) {
            return Err(LayoutError::AxisTwice {
                tensor: entry.id(),
                rule: rule.clone(),
                axis: axis.clone(),
            });
        }
        let extent = mesh.axes().get(at).map_or(1, |&(_, extent)| extent);
        let within_parts = axis.as_str() == "tp" && entry.fusion.iter().any(|part| part.axis == *dim);
        cuts.push(Cut { axis: at, extent, dim: *dim, within_parts });
    }
    Ok(cuts)
}

/// What there is to cut: whole dimensions (padded rows included), or fused parts one after another.
fn uncut(entry: &Entry) -> Result<SmallVec<[Stretches; 4]>, LayoutError> {
    let mut dims: SmallVec<[Stretches; 4]> =
        entry.shape.iter().map(|extent| smallvec![(0, *extent)]).collect();
    if let (Some(rows), Some(padded)) = (dims.first_mut(), entry.padded_rows) {
        *rows = rows.iter().map(|&(start, len)| (start, len.max(padded))).collect();
    }
    let Some(axis) = entry.fusion.first().map(|part| part.axis) else { return Ok(dims) };
    let mut parts = Stretches::new();
    let end = entry.fusion.iter().try_fold(0_u64, |start, part| {
        parts.push((start, part.extent));
        start.checked_add(part.extent).filter(|_| part.axis == axis)
    });
    match dims.get_mut(axis) {
        Some(whole) if end.is_some() && end == entry.shape.get(axis).copied() => *whole = parts,
        _ => return Err(LayoutError::Fusion { tensor: entry.id(), axis, shape: entry.shape.clone() }),
    }
    Ok(dims)
}

fn held(rule: &PlacementRule, entry: &Entry, mesh: &Mesh, stages: &Stages) -> Result<Held, LayoutError> {
    Ok(match rule.stage {
        _ if mesh.stages() == 1 => Held::Everywhere,
        StageRule::All => Held::Everywhere,
        StageRule::First => Held::On(0),
        StageRule::Last => Held::On(mesh.stages() - 1),
        StageRule::FirstAndLast => Held::Ends,
        StageRule::Layer => {
            let stage = entry.layer.and_then(|layer| stages.of(layer));
            let missing = || LayoutError::NoLayer { tensor: entry.id(), rule: rule.clone() };
            Held::On(stage.ok_or_else(missing)?)
        }
    })
}

/// By slices, as [`Region`]'s.
impl Clone for Owners {
    fn clone(&self) -> Self {
        Self { axes: SmallVec::from_slice(&self.axes) }
    }
}

impl Owners {
    /// Fixes the coordinates of cutting axes.
    fn choose(&mut self, cuts: &[Cut], at: &[u64]) {
        for (cut, index) in cuts.iter().zip(at) {
            if let Some((_, choice)) = self.axes.get_mut(cut.axis) {
                *choice = Choice::At(*index);
            }
        }
    }

    /// The lowest rank.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.axes.iter().fold(0, |rank, &(extent, choice)| rank * extent + choice.nth(0, extent))
    }

    /// Number of ranks.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.axes.iter().map(|&(extent, choice)| choice.count(extent)).product()
    }

    /// Whether there are none: never, for a shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `rank` is among them.
    #[must_use]
    pub fn contains(&self, rank: u64) -> bool {
        let mut left = rank;
        let mut inside = true;
        for &(extent, choice) in self.axes.iter().rev() {
            inside &= choice.has(left % extent, extent);
            left /= extent;
        }
        inside && left == 0
    }

    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|nth| {
            let (mut left, mut rank, mut step) = (nth, 0, 1);
            for &(extent, choice) in self.axes.iter().rev() {
                let count = choice.count(extent);
                rank += choice.nth(left % count, extent) * step;
                left /= count;
                step *= extent;
            }
            rank
        })
    }
}

impl Choice {
    const fn count(self, extent: u64) -> u64 {
        match self {
            Self::Any => extent,
            Self::At(_) => 1,
            Self::Ends => {
                if extent > 1 {
                    2
                } else {
                    1
                }
            }
        }
    }

    const fn nth(self, nth: u64, extent: u64) -> u64 {
        match self {
            Self::Any => nth,
            Self::At(at) => at,
            Self::Ends => nth * (extent - 1),
        }
    }

    const fn has(self, coord: u64, extent: u64) -> bool {
        match self {
            Self::Any => true,
            Self::At(at) => coord == at,
            Self::Ends => coord == 0 || coord + 1 == extent,
        }
    }
}
