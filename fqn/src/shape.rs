//! [`Shape`]: extents of a tensor, outermost first, with checked arithmetic.
//!
//! A 0-d tensor has no extents and one element; an extent may be 0. Shapes come from files: every product is
//! checked.

use std::{fmt, ops::Deref};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A short list of per-dimension numbers (extents, offsets, strides); four fit without an allocation.
pub type Dims = SmallVec<[u64; 4]>;

/// Extents of a tensor, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(Dims);

impl Shape {
    /// From extents, outermost first.
    #[must_use]
    pub fn new(extents: &[u64]) -> Self {
        Self(Dims::from_slice(extents))
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Product of the extents; `None` when it exceeds 64 bits.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))
    }

    /// Row-major strides in elements; `None` when they exceed 64 bits.
    #[must_use]
    pub fn row_major_strides(&self) -> Option<Dims> {
        let mut strides = Dims::from_elem(1, self.0.len());
        let mut step = 1_u64;
        for (stride, &extent) in strides.iter_mut().zip(&self.0).rev() {
            *stride = step;
            step = step.checked_mul(extent.max(1))?;
        }
        Some(strides)
    }
}

impl Deref for Shape {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Self {
        Self(dims)
    }
}

impl FromIterator<u64> for Shape {
    fn from_iter<T: IntoIterator<Item = u64>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

/// `128x256`; a 0-d tensor reads `scalar`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.pad("scalar");
        }
        let text = self.0.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_without_overflow() {
        assert_eq!(Shape::new(&[]).elements(), Some(1));
        assert_eq!(Shape::new(&[3, 0, u64::MAX, 2]).elements(), Some(0));
        assert_eq!(Shape::new(&[u64::MAX, 2]).elements(), None);
        assert_eq!(Shape::new(&[3, 4]).row_major_strides().as_deref(), Some(&[4, 1][..]));
    }

    #[test]
    fn a_shape_reads_as_extents_or_scalar() {
        assert_eq!(Shape::new(&[128, 256]).to_string(), "128x256");
        assert_eq!(Shape::new(&[]).to_string(), "scalar");
    }
}
