//! [`RegionMap`]: an invertible map between the index spaces of two tensors that only copies.
//!
//! A step splits the source's elements into factors (row-major), permutes the factors and merges them into the
//! target's shape: the `view → permute → reshape` that converters do, without a tensor. Row permutations of rotary
//! embeddings, transposes, fused QKV and stacked experts are steps; composition is a list of steps. Because a step
//! is data, a map composes with resharding: copy runs are derived from it lazily, and it needs no memory of its own.
//!
//! Invariants: the factors of a step multiply to the elements of both shapes; neighbouring factors that stay
//! neighbours are merged, so that equal maps of one step are equal values, and the identity has no step at all.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Dims, Shape};

mod runs;
mod step;
#[cfg(test)]
mod tests;

pub use runs::{RowRun, RowRuns};
use step::Step;

/// Why a map cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Factors that do not multiply to the extent that they split.
    #[error("factors {factors:?} do not multiply to {extent}, the extent of dimension {dim} of {shape}")]
    Factors {
        /// Factors asked for.
        factors: Vec<u64>,
        /// Extent that they should give.
        extent: u64,
        /// Dimension.
        dim: usize,
        /// Shape of the source.
        shape: Shape,
    },
    /// A dimension that the shape lacks.
    #[error("{shape} has no dimension {dim}")]
    Dimension {
        /// Dimension asked for.
        dim: usize,
        /// Shape of the source.
        shape: Shape,
    },
    /// An order that is no permutation.
    #[error("{0:?} is not a permutation of 0..{n}", n = .0.len())]
    Order(Vec<usize>),
    /// Shapes that don't have the same number of elements, or too many.
    #[error("{source_shape} and {target} do not hold the same number of elements, within 64 bits")]
    Elements {
        /// Shape of the source.
        source_shape: Shape,
        /// Shape of the target.
        target: Shape,
    },
    /// The second map does not begin where the first ends.
    #[error("a map from {second} cannot follow a map to {first}")]
    Compose {
        /// Target of the first.
        first: Shape,
        /// Source of the second.
        second: Shape,
    },
}

/// A permutation of the rows (or of another dimension) given by factors: `[heads, 2, d/2]` in order `[0, 2, 1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPermute {
    /// Dimension that is split.
    pub dim: usize,
    /// Its factors, outermost first.
    pub factors: SmallVec<[u64; 4]>,
    /// Order of the factors in the target.
    pub order: SmallVec<[usize; 4]>,
}

/// An invertible, copying map from a source tensor's indices to a target tensor's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct RegionMap {
    source: Shape,
    target: Shape,
    steps: Vec<Step>,
}

/// As stored; checked when read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    source: Shape,
    target: Shape,
    steps: Vec<Step>,
}

impl RegionMap {
    /// Every index to itself.
    #[must_use]
    pub fn identity(shape: &Shape) -> Self {
        Self { source: shape.clone(), target: shape.clone(), steps: Vec::new() }
    }

    /// Splits all elements of `source` into `factors`, permutes them and merges into `target`.
    ///
    /// # Errors
    /// Factors that do not multiply to the elements of both shapes, or no permutation.
    pub fn refactor(
        source: &Shape,
        factors: &[u64],
        order: &[usize],
        target: &Shape,
    ) -> Result<Self, RegionError> {
        let elements = Shape::new(factors).elements();
        if elements.is_none() || source.elements() != elements || target.elements() != elements {
            return Err(RegionError::Elements { source_shape: source.clone(), target: target.clone() });
        }
        let step = Step::new(factors, order)?;
        let steps = if step.is_identity() { Vec::new() } else { vec![step] };
        Ok(Self { source: source.clone(), target: target.clone(), steps })
    }

    /// Permutes factors of one dimension; the shape stays.
    ///
    /// # Errors
    /// Factors that don't multiply to the dimension's extent, or no permutation of them.
    pub fn permute(shape: &Shape, rows: &RowPermute) -> Result<Self, RegionError> {
        let dim = rows.dim;
        let extent = *shape.get(dim).ok_or_else(|| RegionError::Dimension { dim, shape: shape.clone() })?;
        if rows.factors.iter().try_fold(1_u64, |p, &f| p.checked_mul(f)) != Some(extent) {
            return Err(RegionError::Factors {
                factors: rows.factors.to_vec(),
                extent,
                dim,
                shape: shape.clone(),
            });
        }
        if rows.order.len() != rows.factors.len() {
            return Err(RegionError::Order(rows.order.to_vec()));
        }
        let (before, after) =
            (shape.get(..dim).unwrap_or_default(), shape.get(dim + 1..).unwrap_or_default());
        let factors: Dims = before.iter().chain(&rows.factors).chain(after).copied().collect();
        let tail = dim + rows.order.len();
        let order: Vec<usize> =
            (0..dim).chain(rows.order.iter().map(|at| dim + at)).chain(tail..tail + after.len()).collect();
        Self::refactor(shape, &factors, &order, shape)
    }

    /// Swaps two dimensions.
    ///
    /// # Errors
    /// A dimension that the shape lacks.
    pub fn transpose(source: &Shape, a: usize, b: usize) -> Result<Self, RegionError> {
        if let Some(dim) = [a, b].into_iter().find(|dim| *dim >= source.rank()) {
            return Err(RegionError::Dimension { dim, shape: source.clone() });
        }
        let mut order: Vec<usize> = (0..source.rank()).collect();
        order.swap(a, b);
        let target: Shape = order.iter().filter_map(|&at| source.get(at)).copied().collect();
        Self::refactor(source, source, &order, &target)
    }

    /// Shape of the source.
    #[must_use]
    pub const fn source(&self) -> &Shape {
        &self.source
    }

    /// Shape of the target.
    #[must_use]
    pub const fn target(&self) -> &Shape {
        &self.target
    }

    /// Whether every element keeps its row-major position.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// The map back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let steps = self.steps.iter().rev().map(Step::inverse).collect();
        Self { source: self.target.clone(), target: self.source.clone(), steps }
    }

    /// This map, then `next`.
    ///
    /// # Errors
    /// A `next` whose source is not this map's target.
    pub fn then(&self, next: &Self) -> Result<Self, RegionError> {
        if self.target != next.source {
            return Err(RegionError::Compose { first: self.target.clone(), second: next.source.clone() });
        }
        let mut steps = self.steps.clone();
        for step in &next.steps {
            if steps.last().is_some_and(|last| last.inverse() == *step) {
                steps.pop();
            } else {
                steps.push(step.clone());
            }
        }
        Ok(Self { source: self.source.clone(), target: next.target.clone(), steps })
    }

    /// Coordinates in the target of the source's `coords`; `None` outside the source.
    #[must_use]
    pub fn map_index(&self, coords: &[u64]) -> Option<Dims> {
        let linear = linear(&self.source, coords)?;
        Some(coordinates(&self.target, self.map_linear(linear)))
    }

    /// Row-major position in the target of the source's row-major position `at`.
    #[must_use]
    pub fn map_linear(&self, at: u64) -> u64 {
        self.steps.iter().fold(at, |at, step| step.map(at))
    }

    /// Target row of the source's `row`; `None` where the map does more than permute rows, or outside.
    #[must_use]
    pub fn map_row(&self, row: u64) -> Option<u64> {
        let width = self.row_width()?;
        (row < *self.source.first()?).then(|| self.map_linear(row * width) / width.max(1))
    }

    /// Elements of a row, if the map only permutes rows: both shapes agree and no step cuts into a row.
    #[must_use]
    pub fn row_width(&self) -> Option<u64> {
        let rows = *self.source.first()?;
        let width = Shape::new(self.source.get(1..)?).elements()?;
        let whole = |step: &Step| rows == 0 || width == 0 || step.run().is_multiple_of(width);
        (self.source == self.target && self.steps.iter().all(whole)).then_some(width)
    }

    /// Elements that are sure to stay together: every aligned run of so many is copied whole.
    #[must_use]
    pub fn granule(&self) -> u64 {
        let whole = self.source.elements().unwrap_or(1);
        self.steps.iter().map(Step::run).fold(whole, gcd)
    }
}

fn linear(shape: &Shape, coords: &[u64]) -> Option<u64> {
    if coords.len() != shape.rank() || coords.iter().zip(shape.iter()).any(|(at, extent)| at >= extent) {
        return None;
    }
    Some(coords.iter().zip(shape.iter()).fold(0, |sum, (at, extent)| sum * extent + at))
}

fn coordinates(shape: &Shape, mut at: u64) -> Dims {
    let mut coords = Dims::from_elem(0, shape.rank());
    for (coord, &extent) in coords.iter_mut().zip(shape.iter()).rev() {
        *coord = at % extent.max(1);
        at /= extent.max(1);
    }
    coords
}

pub(crate) const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl From<RegionMap> for Raw {
    fn from(map: RegionMap) -> Self {
        Self { source: map.source, target: map.target, steps: map.steps }
    }
}

impl TryFrom<Raw> for RegionMap {
    type Error = RegionError;
    fn try_from(raw: Raw) -> Result<Self, RegionError> {
        let elements = raw.source.elements();
        let fits = |step: &Step| step.elements().is_some() && step.elements() == elements;
        if elements.is_none() || raw.target.elements() != elements || !raw.steps.iter().all(fits) {
            return Err(RegionError::Elements { source_shape: raw.source, target: raw.target });
        }
        Ok(Self { source: raw.source, target: raw.target, steps: raw.steps })
    }
}
