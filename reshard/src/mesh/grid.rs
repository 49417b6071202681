//! [`Mesh`]: named axes in order, rank numbers row-major, last axis fastest.
//!
//! Invariants: at least one axis; no axis twice; every extent at least 1; the product at most [`MAX_RANKS`]. The
//! order of axes decides only which rank number a coordinate has, never which regions a tensor is cut into.

use std::fmt;

use fqn::{AxisName, Dims};
use serde::{Deserialize, Serialize};

/// Most ranks a mesh may have. A bound on what a hostile manifest can make a layout allocate, two orders above
/// the largest training runs.
pub const MAX_RANKS: u64 = 1 << 24;

/// Named axes and their extents, in order. Serialises as an ordered list of pairs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(AxisName, u64)>", into = "Vec<(AxisName, u64)>")]
pub struct Mesh {
    axes: Vec<(AxisName, u64)>,
    ranks: u64,
}

/// Why axes, a text or a rank count make no mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// No axis at all.
    #[error("a mesh needs at least one axis, for example `1x1x1` or `dp=1`")]
    Empty,
    /// An extent of 0.
    #[error("mesh axis {0} has extent 0; leave it out or make it 1")]
    Zero(AxisName),
    /// An axis given twice.
    #[error("mesh axis {0} appears twice")]
    Twice(AxisName),
    /// `dp` and `dp_shard` together: a rule's `dp` could mean either.
    #[error(
        "mesh has both dp and dp_shard, so a placement on dp is ambiguous; name dp_replicate and dp_shard"
    )]
    Ambiguous,
    /// The product exceeds [`MAX_RANKS`].
    #[error("mesh {0} has more than {MAX_RANKS} ranks")]
    TooLarge(String),
    /// A text that is no mesh.
    #[error("{text:?} is no mesh: {why}; write `4x2x8` (dp, pp, tp), `dp=4,pp=2,tp=8` or `dp4,tp8`")]
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The product isn't the number of ranks there are.
    #[error("mesh {mesh} has {product} ranks, but there are {ranks}")]
    Ranks {
        /// The mesh, axes named.
        mesh: String,
        /// Product of its extents.
        product: u64,
        /// Ranks there are.
        ranks: u64,
    },
}

impl Mesh {
    /// Checks axes and makes them a mesh.
    ///
    /// # Errors
    /// No axis, an extent of 0, an axis twice, `dp` beside `dp_shard`, or more than [`MAX_RANKS`] ranks.
    pub fn new(axes: Vec<(AxisName, u64)>) -> Result<Self, MeshError> {
        for (at, (axis, extent)) in axes.iter().enumerate() {
            if *extent == 0 {
                return Err(MeshError::Zero(axis.clone()));
            }
            if axes.iter().take(at).any(|(other, _)| other == axis) {
                return Err(MeshError::Twice(axis.clone()));
            }
        }
        let has = |name: &str| axes.iter().any(|(axis, _)| axis.as_str() == name);
        if has("dp") && has("dp_shard") {
            return Err(MeshError::Ambiguous);
        }
        let product = axes.iter().try_fold(1_u64, |product, (_, extent)| product.checked_mul(*extent));
        match product.filter(|ranks| *ranks <= MAX_RANKS) {
            _ if axes.is_empty() => Err(MeshError::Empty),
            None => Err(MeshError::TooLarge(named(&axes))),
            Some(ranks) => Ok(Self { axes, ranks }),
        }
    }

    /// Axes and extents, in order.
    #[must_use]
    pub fn axes(&self) -> &[(AxisName, u64)] {
        &self.axes
    }

    /// Number of ranks: the product of the extents.
    #[must_use]
    pub const fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Position of the axis called `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|(axis, _)| axis.as_str() == name)
    }

    /// Extent of the axis called `name`; `None` where the mesh lacks it.
    #[must_use]
    pub fn axis(&self, name: &str) -> Option<u64> {
        self.axes.iter().find(|(axis, _)| axis.as_str() == name).map(|&(_, extent)| extent)
    }

    /// Number of pipeline stages: the extent of `pp`, 1 where there is none.
    #[must_use]
    pub fn stages(&self) -> u64 {
        self.axis("pp").unwrap_or(1)
    }

    /// Number of ranks that read data of their own: the extent of `dp`, or of `dp_replicate` and `dp_shard` together.
    #[must_use]
    pub fn data_ranks(&self) -> u64 {
        // A factor of the number of ranks, which was bounded.
        ["dp", "dp_replicate", "dp_shard"].iter().filter_map(|name| self.axis(name)).product()
    }

    /// Position of the axis that a placement's `axis` means here: itself, or `dp_shard` for `dp`. `None` where the
    /// mesh lacks it, which then doesn't cut. `dp_replicate` replicates unless a rule names it.
    #[must_use]
    pub fn cutting(&self, axis: &AxisName) -> Option<usize> {
        let shard = || (axis.as_str() == "dp").then(|| self.position("dp_shard")).flatten();
        self.position(axis.as_str()).or_else(shard)
    }

    /// Coordinates of `rank`, one per axis; `None` for a rank that isn't there.
    #[must_use]
    pub fn coords(&self, rank: u64) -> Option<Dims> {
        let mut left = (rank < self.ranks).then_some(rank)?;
        let mut coords = Dims::from_elem(0, self.axes.len());
        for (coord, (_, extent)) in coords.iter_mut().zip(&self.axes).rev() {
            *coord = left % extent;
            left /= extent;
        }
        Some(coords)
    }

    /// Rank at `coords`, one per axis; `None` where they lie outside.
    #[must_use]
    pub fn rank_of(&self, coords: &[u64]) -> Option<u64> {
        let inside = coords.len() == self.axes.len()
            && coords.iter().zip(&self.axes).all(|(coord, (_, extent))| coord < extent);
        inside.then(|| {
            coords.iter().zip(&self.axes).fold(0, |rank, (coord, (_, extent))| rank * extent + coord)
        })
    }

    /// Groups along the axis called `name`: each holds the ranks that differ in that coordinate only, in its order;
    /// groups come in order of their first rank. An axis the mesh lacks makes groups of one.
    pub fn groups(&self, name: &str) -> impl Iterator<Item = Vec<u64>> + '_ {
        let at = self.position(name);
        let extent = self.axis(name).unwrap_or(1);
        let stride =
            at.map_or(1, |at| self.axes.iter().skip(at + 1).map(|(_, extent)| extent).product::<u64>());
        let first = (0..self.ranks).filter(move |rank| (rank / stride).is_multiple_of(extent));
        first.map(move |first| (0..extent).map(|step| first + step * stride).collect())
    }

    /// Checks that the mesh has as many ranks as there are.
    ///
    /// # Errors
    /// [`MeshError::Ranks`] where they differ.
    pub fn check_ranks(&self, ranks: u64) -> Result<(), MeshError> {
        if self.ranks == ranks {
            return Ok(());
        }
        Err(MeshError::Ranks { mesh: self.to_string(), product: self.ranks, ranks })
    }

    /// Extents alone: `4x2x8`. Reads back only where the axes are the ones that a short text stands for.
    #[must_use]
    pub fn short(&self) -> String {
        self.axes.iter().map(|(_, extent)| extent.to_string()).collect::<Vec<_>>().join("x")
    }
}

fn named(axes: &[(AxisName, u64)]) -> String {
    axes.iter().map(|(axis, extent)| format!("{axis}={extent}")).collect::<Vec<_>>().join(" ")
}

/// `dp=4 pp=2 tp=8`: how a mesh was read.
impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&named(&self.axes))
    }
}

impl TryFrom<Vec<(AxisName, u64)>> for Mesh {
    type Error = MeshError;
    fn try_from(axes: Vec<(AxisName, u64)>) -> Result<Self, MeshError> {
        Self::new(axes)
    }
}

impl From<Mesh> for Vec<(AxisName, u64)> {
    fn from(mesh: Mesh) -> Self {
        mesh.axes
    }
}
