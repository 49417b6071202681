//! The sum over elements: what one rank computes from its box, and what parts add up to.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign},
    str::FromStr,
};

use fqn::{Dtype, Shape};
use reshard::Region;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{Engine, Fingerprint, RegionSum, value::parse_hex};

/// What can be wrong with what a sum is given.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintError {
    /// The bytes don't hold a whole number of elements.
    #[error("{bytes} bytes are not a whole number of {width}-byte elements")]
    Ragged {
        /// How many bytes were given.
        bytes: usize,
        /// Bytes of an element.
        width: usize,
    },
    /// A region doesn't lie in its tensor, or its bytes aren't as many as it holds, or it cuts through a byte.
    #[error(
        "{bytes} bytes for region {region} of a {dtype} tensor of shape {shape}: not its size, not within the \
         shape, or not on byte boundaries"
    )]
    Region {
        /// Element type of the tensor.
        dtype: Dtype,
        /// Shape of the tensor.
        shape: Box<Shape>,
        /// The region.
        region: Box<Region>,
        /// How many bytes were given for it.
        bytes: usize,
    },
    /// Pieces of a region that are more, or fewer, bytes than it has.
    #[error("{given} bytes came of a region of {held}")]
    Pieces {
        /// Bytes that came.
        given: u64,
        /// Bytes of the region.
        held: u64,
    },
    /// Text that is not 32 lowercase hex digits.
    #[error("'{text}' is not a fingerprint: 32 lowercase hex digits are")]
    NotHex {
        /// The text, cut to 64 characters.
        text: String,
    },
}

/// Bytes of one element. Dtypes narrower than a byte are summed as packed bytes, with [`ElementWidth::One`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementWidth {
    /// One byte: bool, 8-bit integers and floats, packed sub-byte dtypes.
    One,
    /// Two bytes.
    Two,
    /// Four bytes.
    Four,
    /// Eight bytes, complex64 among them.
    Eight,
    /// Sixteen bytes: complex128, summed as two halves.
    Sixteen,
}

impl ElementWidth {
    /// How elements of this dtype are summed: by their width, or as packed bytes where that is none of these.
    #[must_use]
    pub const fn of(dtype: Dtype) -> Self {
        match dtype.element_bytes() {
            Some(2) => Self::Two,
            Some(4) => Self::Four,
            Some(8) => Self::Eight,
            Some(16) => Self::Sixteen,
            _ => Self::One,
        }
    }

    /// The width as a number of bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }
}

/// The sum over some of a tensor's elements. Sums of disjoint parts add up, in any order, to the sum of the whole; the
/// default is the sum of no elements. Text: 32 lowercase hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FingerprintSum([u64; 2]);

impl FingerprintSum {
    /// Adds the elements of `bytes` (little-endian), which stand at the canonical indices `first_index` and on.
    pub fn add_run(
        &mut self,
        width: ElementWidth,
        first_index: u64,
        bytes: &[u8],
    ) -> Result<(), FingerprintError> {
        self.add_strided(width, first_index, 1, bytes)
    }

    /// Adds the elements of `bytes`, which stand at `first_index`, `first_index + index_step` and so on: a column, or a
    /// row of a transposed copy.
    pub fn add_strided(
        &mut self,
        width: ElementWidth,
        first_index: u64,
        index_step: u64,
        bytes: &[u8],
    ) -> Result<(), FingerprintError> {
        self.add_strided_by(Engine::best(), width, first_index, index_step, bytes)
    }

    /// [`Self::add_strided`] by a given implementation, to compare them.
    pub fn add_strided_by(
        &mut self,
        engine: Engine,
        width: ElementWidth,
        first_index: u64,
        index_step: u64,
        bytes: &[u8],
    ) -> Result<(), FingerprintError> {
        if !bytes.len().is_multiple_of(width.bytes()) {
            return Err(FingerprintError::Ragged { bytes: bytes.len(), width: width.bytes() });
        }
        self.add_lanes(match width {
            ElementWidth::One => engine.lanes::<1>(first_index, index_step, bytes),
            ElementWidth::Two => engine.lanes::<2>(first_index, index_step, bytes),
            ElementWidth::Four => engine.lanes::<4>(first_index, index_step, bytes),
            ElementWidth::Eight => engine.lanes::<8>(first_index, index_step, bytes),
            ElementWidth::Sixteen => return self.add_pairs(engine, first_index, index_step, bytes),
        });
        Ok(())
    }

    /// Adds the row-major, packed bytes of a region of a tensor of this dtype and (true, canonical) shape.
    ///
    /// # Errors
    /// A region that doesn't lie in the shape, bytes that are not as many as it holds, or a region of a dtype narrower
    /// than a byte whose rows don't end on byte boundaries, unless it is the whole tensor.
    pub fn add_region(
        &mut self,
        dtype: Dtype,
        shape: &Shape,
        region: &Region,
        bytes: &[u8],
    ) -> Result<(), FingerprintError> {
        let bad = || FingerprintError::Region {
            dtype,
            shape: Box::new(shape.clone()),
            region: Box::new(region.clone()),
            bytes: bytes.len(),
        };
        let held = dtype.bytes_for(region.elements());
        let mut pieces = RegionSum::new(dtype, shape, region).ok_or_else(bad)?;
        if held != Some(bytes.len() as u64) {
            return Err(bad());
        }
        pieces.add(bytes)?;
        *self += pieces.finish()?;
        Ok(())
    }

    /// The fingerprint of a tensor of which every element has been added exactly once.
    #[must_use]
    pub fn finish(self, dtype: Dtype, shape: &Shape) -> Fingerprint {
        let mut hash = Sha256::new();
        hash.update(b"ckpt fingerprint 1\0");
        hash.update(dtype.name());
        hash.update([0]);
        // A rank of 2³² would need 32 GiB of extents; no shape gets there.
        hash.update(u32::try_from(shape.rank()).unwrap_or(u32::MAX).to_le_bytes());
        for number in shape.iter().chain(&self.0) {
            hash.update(number.to_le_bytes());
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Fingerprint::from_bytes(bytes)
    }

    /// The two lanes.
    #[must_use]
    pub const fn lanes(self) -> [u64; 2] {
        self.0
    }

    /// The sum with these lanes.
    #[must_use]
    pub const fn from_lanes(lanes: [u64; 2]) -> Self {
        Self(lanes)
    }

    fn add_lanes(&mut self, lanes: [u64; 2]) {
        *self += Self(lanes);
    }

    /// Elements of two halves: index `i` becomes `2i` and `2i + 1`.
    fn add_pairs(
        &mut self,
        engine: Engine,
        first: u64,
        step: u64,
        bytes: &[u8],
    ) -> Result<(), FingerprintError> {
        if step == 1 {
            self.add_lanes(engine.lanes::<8>(first.wrapping_mul(2), 1, bytes));
            return Ok(());
        }
        let mut index = first;
        for element in bytes.as_chunks::<16>().0 {
            self.add_lanes(engine.lanes::<8>(index.wrapping_mul(2), 1, element));
            index = index.wrapping_add(step);
        }
        Ok(())
    }
}

impl Add for FingerprintSum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self([self.0[0].wrapping_add(other.0[0]), self.0[1].wrapping_add(other.0[1])])
    }
}

impl AddAssign for FingerprintSum {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for FingerprintSum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for FingerprintSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0].swap_bytes(), self.0[1].swap_bytes())
    }
}

impl fmt::Debug for FingerprintSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FingerprintSum({self})")
    }
}

impl FromStr for FingerprintSum {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = u128::from_le_bytes(parse_hex(text)?);
        let [low, high] = [bytes, bytes >> 64].map(|half| half & u128::from(u64::MAX));
        match (u64::try_from(low), u64::try_from(high)) {
            (Ok(low), Ok(high)) => Ok(Self([low, high])),
            _ => Err(FingerprintError::NotHex { text: text.to_owned() }),
        }
    }
}

impl Serialize for FingerprintSum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FingerprintSum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
