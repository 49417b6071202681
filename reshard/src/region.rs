//! [`Region`]: a box of a tensor in global coordinates.
//!
//! Invariants: offsets and extents have the tensor's number of dimensions; `offset + extent` never overflows. A 0-d
//! tensor has one region without dimensions and one element. An extent of 0 makes an empty region, which still has
//! a place (torch puts an empty shard's offset at the dimension's end).

use std::fmt;

use fqn::{Dims, Shape};
use serde::{Deserialize, Serialize};

/// A box: where it starts in each dimension and how far it reaches.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawRegion")]
pub struct Region {
    offsets: Dims,
    extents: Dims,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRegion {
    offsets: Dims,
    extents: Dims,
}

/// Why offsets and extents make no region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Different numbers of dimensions.
    #[error("{offsets} offsets but {extents} extents")]
    Rank {
        /// Number of offsets.
        offsets: usize,
        /// Number of extents.
        extents: usize,
    },
    /// A number, or the count of elements, exceeds 64 bits.
    #[error("offset plus extent, or the number of elements, exceeds 64 bits")]
    Overflow,
}

/// By slices: plans of large meshes copy millions, and a list's own clone goes number by number.
impl Clone for Region {
    fn clone(&self) -> Self {
        Self { offsets: Dims::from_slice(&self.offsets), extents: Dims::from_slice(&self.extents) }
    }
}

impl Region {
    /// Checks offsets and extents and makes them a region.
    ///
    /// # Errors
    /// Different numbers of dimensions, or numbers that overflow.
    pub fn new(offsets: &[u64], extents: &[u64]) -> Result<Self, RegionError> {
        if offsets.len() != extents.len() {
            return Err(RegionError::Rank { offsets: offsets.len(), extents: extents.len() });
        }
        let in_range = offsets.iter().zip(extents).all(|(o, e)| o.checked_add(*e).is_some());
        let product = extents.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent));
        if !in_range || (product.is_none() && !extents.contains(&0)) {
            return Err(RegionError::Overflow);
        }
        Ok(Self { offsets: Dims::from_slice(offsets), extents: Dims::from_slice(extents) })
    }

    /// The whole of a tensor.
    ///
    /// # Errors
    /// A shape with more than 2^64 elements.
    pub fn whole(shape: &Shape) -> Result<Self, RegionError> {
        Self::new(&vec![0; shape.rank()], shape)
    }

    /// Where it starts, outermost dimension first.
    #[must_use]
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// How far it reaches, outermost dimension first.
    #[must_use]
    pub fn extents(&self) -> &[u64] {
        &self.extents
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.offsets.len()
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // The constructor has checked the product.
        self.extents.iter().fold(1, |product, extent| product.wrapping_mul(*extent))
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.contains(&0)
    }

    /// Whether it lies within a tensor of `shape`.
    #[must_use]
    pub fn fits(&self, shape: &Shape) -> bool {
        let ends = self.offsets.iter().zip(&self.extents).map(|(o, e)| o.saturating_add(*e));
        self.rank() == shape.rank() && ends.zip(shape.iter()).all(|(end, extent)| end <= *extent)
    }

    /// What both share; `None` where they share no element, or differ in dimensions.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.rank() != other.rank() {
            return None;
        }
        let (mut offsets, mut extents) = (Dims::new(), Dims::new());
        let ours = self.offsets.iter().zip(&self.extents);
        let theirs = other.offsets.iter().zip(&other.extents);
        for ((o, e), (p, f)) in ours.zip(theirs) {
            let start = *o.max(p);
            let end = o.saturating_add(*e).min(p.saturating_add(*f));
            offsets.push(start);
            extents.push(end.checked_sub(start).filter(|extent| *extent > 0)?);
        }
        Some(Self { offsets, extents })
    }

    /// The same box in coordinates that start at `origin`'s offsets; `None` where it begins before them.
    #[must_use]
    pub fn relative_to(&self, origin: &Self) -> Option<Self> {
        let moved = self.offsets.iter().zip(&origin.offsets).map(|(o, base)| o.checked_sub(*base));
        let offsets = moved.collect::<Option<Dims>>()?;
        (self.rank() == origin.rank()).then(|| Self { offsets, extents: self.extents.clone() })
    }
}

impl TryFrom<RawRegion> for Region {
    type Error = RegionError;
    fn try_from(raw: RawRegion) -> Result<Self, RegionError> {
        Self::new(&raw.offsets, &raw.extents)
    }
}

/// `[0..64, 128..256]`; a 0-d region reads `[]`.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.offsets.iter().zip(&self.extents);
        let text = parts.map(|(o, e)| format!("{o}..{}", o.saturating_add(*e))).collect::<Vec<_>>();
        f.pad(&format!("[{}]", text.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_share_exactly_their_common_elements() {
        let a = Region::new(&[0, 4], &[4, 4]).unwrap();
        let b = Region::new(&[2, 0], &[4, 6]).unwrap();
        assert_eq!(a.intersect(&b).unwrap(), Region::new(&[2, 4], &[2, 2]).unwrap());
        let apart = Region::new(&[4, 4], &[1, 1]).unwrap();
        assert_eq!(a.intersect(&apart), None);
        let scalar = Region::new(&[], &[]).unwrap();
        assert_eq!(scalar.intersect(&scalar), Some(scalar.clone()));
        assert_eq!(scalar.elements(), 1);
    }

    #[test]
    fn numbers_that_overflow_make_no_region() {
        assert_eq!(Region::new(&[u64::MAX], &[1]), Err(RegionError::Overflow));
        assert_eq!(Region::new(&[0, 0], &[u64::MAX, 2]), Err(RegionError::Overflow));
        assert_eq!(Region::new(&[0], &[]), Err(RegionError::Rank { offsets: 1, extents: 0 }));
        assert!(
            serde_json::from_str::<Region>(r#"{"offsets":[1],"extents":[18446744073709551615]}"#).is_err()
        );
    }

    #[test]
    fn a_region_reads_as_ranges() {
        assert_eq!(Region::new(&[0, 128], &[64, 128]).unwrap().to_string(), "[0..64, 128..256]");
    }
}
