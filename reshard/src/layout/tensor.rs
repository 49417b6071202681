//! [`TensorLayout`]: the regions of one tensor on a mesh, and who owns each.
//!
//! Cuts apply in the rule's order; a later cut on the same dimension cuts what the earlier one left (`tp:0,dp:0` is
//! torch's FSDP inside TP, a `_StridedShard`). A `tp` cut along the axis of fused parts falls inside every part; other
//! axes cut what is left as one. Rows that a layout pads are cut with the rest and then dropped.
//!
//! Invariants: shards are disjoint and cover the tensor; every owner of a shard holds all of it; a rank owns one
//! region, but for fused tensors.

mod local;
mod owners;
mod pieces;
mod rule;
#[cfg(test)]
mod tests;

use fqn::{Dims, Dtype, Entry, PlacementRule, Shape, TensorId};
use smallvec::SmallVec;

use super::{
    LayoutError, Stages,
    cut::{Stretches, across, below, inside, within},
};
use crate::{Mesh, Region};
pub use local::{Local, LocalPiece};
use owners::Choice;
pub use owners::Owners;
use rule::Resolve;

/// A cut of a dimension over one axis of a mesh, or over several as one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    /// Positions of the axes in the mesh with their extents, slowest first.
    axes: SmallVec<[(usize, u64); 1]>,
    /// Number of parts.
    extent: u64,
    dim: usize,
    how: How,
}

/// Where a cut falls.
#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    /// Through what is there as one.
    Across,
    /// Through every fused part by itself.
    Within,
    /// At given places: stages of stacked layers.
    At(Stretches),
}

/// One tensor on a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorLayout {
    id: TensorId,
    dtype: Dtype,
    shape: Shape,
    cuts: SmallVec<[Cut; 2]>,
    /// What is there to cut, per dimension; padding included.
    uncut: SmallVec<[Stretches; 4]>,
    /// Axes that hold the tensor at some coordinates only, by position in the mesh.
    choices: SmallVec<[(usize, Choice); 2]>,
}

/// A distinct region of a tensor and the ranks that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The region; never empty.
    pub region: Region,
    /// Who holds it.
    pub owners: Owners,
}

impl Cut {
    /// What part `index` is of what earlier cuts left.
    fn part(&self, held: &Stretches, index: u64) -> Stretches {
        match &self.how {
            How::Across => across(held, self.extent, index),
            How::Within => within(held, self.extent, index),
            How::At(places) => {
                let place = usize::try_from(index).ok().and_then(|index| places.get(index));
                place.map_or_else(Stretches::new, |place| inside(held, *place))
            }
        }
    }

    /// Its coordinate on a rank at `coords` of the mesh.
    fn coordinate(&self, coords: &[u64]) -> u64 {
        self.axes.iter().fold(0, |at, &(axis, extent)| at * extent + coords.get(axis).copied().unwrap_or(0))
    }
}

impl TensorLayout {
    /// Resolves the rule of `entry` on `mesh`.
    ///
    /// # Errors
    /// No rule (on more than one rank), a cut of a dimension that isn't there, a missing layer or expert, fused parts that
    /// don't add up, padding beyond 64 bits.
    pub fn new(entry: &Entry, mesh: &Mesh, stages: &Stages) -> Result<Self, LayoutError> {
        let default = PlacementRule::default();
        let rule = match &entry.placement {
            Some(rule) => rule,
            None if mesh.ranks() == 1 => &default,
            None => return Err(LayoutError::NoRule { tensor: entry.id() }),
        };
        Region::whole(&entry.shape).map_err(|source| LayoutError::Shape {
            tensor: entry.id(),
            shape: entry.shape.clone(),
            source,
        })?;
        let resolve = Resolve { rule, entry, mesh, stages };
        Ok(Self {
            id: entry.id(),
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            cuts: resolve.cuts()?,
            uncut: resolve.uncut()?,
            choices: resolve.choices()?,
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

    /// Its global shape with the padding that the rule, or the registry, asks for on this mesh.
    #[must_use]
    pub fn padded_shape(&self) -> Shape {
        self.uncut.iter().map(|parts| parts.iter().map(|(_, len)| len).sum()).collect()
    }

    /// Bytes of `region`, packed, rounded up to whole ones.
    #[must_use]
    pub fn bytes(&self, region: &Region) -> u64 {
        let bits = u128::from(region.elements()) * u128::from(self.dtype.bits());
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    }

    /// Whether the same stages of `mesh` hold `other`.
    pub(crate) fn is_on_stages_of(&self, other: &Self, mesh: &Mesh) -> bool {
        let at = mesh.position("pp");
        let stages =
            |of: &Self| of.choices.iter().find(|(axis, _)| Some(*axis) == at).map(|(_, choice)| *choice);
        // On two stages, first and last are all of them.
        let all = |choice| match choice {
            Some(Choice::Pair(..)) if mesh.stages() == 2 => None,
            other => other,
        };
        all(stages(self)) == all(stages(other))
    }

    /// Whether `other` has the same shards, of as many bytes: all but name and owners is the same.
    pub(crate) fn is_cut_like(&self, other: &Self) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && self.cuts == other.cuts
            && self.uncut == other.uncut
    }

    /// Number of coordinate combinations of the axes that cut: an upper bound of the distinct shards.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.cuts.iter().map(|cut| cut.extent).product()
    }

    /// The distinct regions with their owners, in cutting order; empty ones left out. They tile the tensor.
    pub fn shards<'a>(&'a self, mesh: &'a Mesh) -> impl Iterator<Item = Shard> + 'a {
        let dims = pieces::by_dimension(self);
        let anywhere = self.owners(mesh);
        (0..self.pieces()).flat_map(move |piece| {
            let at = self.cut_coords(piece);
            let mut owners = anywhere.clone();
            owners.choose(&self.cuts, &at);
            pieces::regions(&dims, &at)
                .into_iter()
                .map(move |region| Shard { region, owners: owners.clone() })
        })
    }

    /// Hands on what [`Self::shards`] yields, in the same order: large meshes have millions, and nothing is moved about on the way.
    pub(super) fn each_shard(&self, mesh: &Mesh, mut each: impl FnMut(Region, &Owners)) {
        let (dims, mut owners) = (pieces::by_dimension(self), self.owners(mesh));
        for piece in 0..self.pieces() {
            let at = self.cut_coords(piece);
            // The same axes every time, so that nothing is left of the piece before.
            owners.choose(&self.cuts, &at);
            pieces::each_region(&dims, &at, |region| each(region, &owners));
        }
    }

    /// What the rank at `coords` of `mesh` holds: nothing where another stage has the tensor, else its regions. An empty
    /// shard is one empty region whose offset is the end of each cut dimension, as torch has it.
    #[must_use]
    pub fn regions_of(&self, mesh: &Mesh, coords: &[u64]) -> SmallVec<[Region; 1]> {
        if !self.is_held_at(mesh, coords) {
            return SmallVec::new();
        }
        let at = self.cut_coords_of(coords);
        let regions = self.regions_at(&at);
        if regions.is_empty() { self.empty_at(&at).into_iter().collect() } else { regions }
    }

    /// Whether the rank at `coords` of `mesh` has a part, maybe an empty one, of the tensor.
    #[must_use]
    pub fn is_held_at(&self, mesh: &Mesh, coords: &[u64]) -> bool {
        let inside = |axis: usize| axis < mesh.axes().len();
        self.choices
            .iter()
            .all(|&(axis, choice)| inside(axis) && coords.get(axis).is_some_and(|coord| choice.has(*coord)))
    }

    /// Coordinates on the cuts, in cutting order, of piece number `piece`; the last cut is fastest.
    fn cut_coords(&self, mut piece: u64) -> Dims {
        let mut at = Dims::from_elem(0, self.cuts.len());
        for (coord, cut) in at.iter_mut().zip(&self.cuts).rev() {
            *coord = piece % cut.extent;
            piece /= cut.extent;
        }
        at
    }

    /// Coordinates on the cuts of the rank at `coords`.
    fn cut_coords_of(&self, coords: &[u64]) -> Dims {
        self.cuts.iter().map(|cut| cut.coordinate(coords)).collect()
    }

    /// What is held of each dimension at coordinates `at` of the cuts, padding included.
    fn padded_stretches(&self, at: &[u64]) -> SmallVec<[Stretches; 4]> {
        let mut held = self.uncut.clone();
        for (cut, index) in self.cuts.iter().zip(at) {
            if let Some(stretches) = held.get_mut(cut.dim) {
                *stretches = cut.part(stretches, *index);
            }
        }
        held
    }

    fn stretches(&self, at: &[u64]) -> SmallVec<[Stretches; 4]> {
        let mut held = self.padded_stretches(at);
        for (stretches, end) in held.iter_mut().zip(self.shape.iter()) {
            *stretches = below(stretches, *end);
        }
        held
    }

    /// The non-empty regions at coordinates `at` of the cuts: the product of the stretches of each dimension.
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

    /// Who holds the tensor, before any cut.
    fn owners(&self, mesh: &Mesh) -> Owners {
        Owners::new(mesh.axes().iter().enumerate().map(|(at, (_, extent))| {
            let choice = self.choices.iter().find(|(axis, _)| *axis == at);
            (*extent, choice.map_or(Choice::Any, |&(_, choice)| choice))
        }))
    }
}
