//! [`RegionSum`]: the sum over a region whose bytes come piece by piece, so that who hashes and writes them adds them while they are in
//! the processor's cache.

use fqn::{Dtype, Shape};
use reshard::Region;

use super::{ElementWidth, FingerprintError, FingerprintSum, walk::RegionWalk};

/// The sum over the row-major, packed bytes of a region of a tensor, which come in order.
#[derive(Debug, Clone)]
pub(crate) struct RegionSum {
    width: ElementWidth,
    walk: RegionWalk,
    /// Bytes of each run of the walk.
    run: u64,
    /// Bytes that came.
    given: u64,
    /// Bytes of the region.
    held: u64,
    sum: FingerprintSum,
}

impl RegionSum {
    /// Nothing of the region yet. `None` if it doesn't lie in the shape, or its rows cut through bytes and it is not the whole tensor.
    pub(crate) fn new(dtype: Dtype, shape: &Shape, region: &Region) -> Option<Self> {
        let held = dtype.bytes_for(region.elements())?;
        let whole = region.extents() == &shape[..] && region.offsets().iter().all(|&at| at == 0);
        let walk = if whole { RegionWalk::whole() } else { RegionWalk::new(dtype, shape, region)? };
        let runs = if held == 0 { 1 } else { walk.runs() };
        let (width, sum) = (ElementWidth::of(dtype), FingerprintSum::default());
        Some(Self { width, run: held / runs.max(1), walk, given: 0, held, sum })
    }

    /// Adds the bytes that follow: whole elements.
    ///
    /// # Errors
    /// Other than whole elements, or more than the region has.
    pub(crate) fn add(&mut self, mut bytes: &[u8]) -> Result<(), FingerprintError> {
        let width = self.width.bytes() as u64;
        let end = self.given.saturating_add(bytes.len() as u64);
        if end > self.held {
            return Err(FingerprintError::Pieces { given: end, held: self.held });
        }
        while !bytes.is_empty() {
            let (run, within) = (self.given / self.run, self.given % self.run);
            let left = usize::try_from(self.run - within).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            let first = self.walk.first(run).wrapping_add(self.walk.step.wrapping_mul(within / width));
            self.sum.add_strided(self.width, first, self.walk.step, now)?;
            (self.given, bytes) = (self.given + now.len() as u64, later);
        }
        Ok(())
    }

    /// The sum, once all bytes came.
    ///
    /// # Errors
    /// Fewer than the region has.
    pub(crate) fn finish(self) -> Result<FingerprintSum, FingerprintError> {
        if self.given == self.held {
            Ok(self.sum)
        } else {
            Err(FingerprintError::Pieces { given: self.given, held: self.held })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(dtype: Dtype, shape: &[u64], offsets: &[u64], extents: &[u64], piece: usize) {
        let (shape, region) = (Shape::new(shape), Region::new(offsets, extents).unwrap());
        let len = usize::try_from(dtype.bytes_for(region.elements()).unwrap()).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + 3).to_le_bytes()[0]).collect();
        let mut whole = FingerprintSum::default();
        whole.add_region(dtype, &shape, &region, &bytes).unwrap();
        let mut pieces = RegionSum::new(dtype, &shape, &region).unwrap();
        bytes.chunks(piece).for_each(|it| pieces.add(it).unwrap());
        assert!(pieces.clone().add(&[0; 16]).is_err());
        assert_eq!(pieces.finish().unwrap(), whole, "{dtype} {shape}{region} by {piece}");
    }

    #[test]
    fn pieces_of_any_length_add_up_to_the_region() {
        for piece in [16, 48, 64, 1024] {
            sums(Dtype::F32, &[9, 8], &[0, 0], &[9, 8], piece);
            sums(Dtype::F32, &[9, 8], &[2, 0], &[5, 8], piece);
            sums(Dtype::F32, &[9, 8], &[1, 3], &[7, 4], piece);
            sums(Dtype::BF16, &[9, 8, 6], &[1, 3, 2], &[7, 4, 1], piece);
            sums(Dtype::C128, &[9, 8], &[1, 3], &[7, 4], piece);
            sums(Dtype::F4E2M1, &[3, 8], &[1, 2], &[2, 4], piece);
            sums(Dtype::F4E2M1, &[3, 2], &[0, 0], &[3, 2], piece);
            sums(Dtype::U8, &[4, 0], &[1, 0], &[2, 0], piece);
        }
        let few = RegionSum::new(Dtype::F32, &Shape::new(&[4]), &Region::new(&[0], &[4]).unwrap()).unwrap();
        let told = few.clone().finish().unwrap_err().to_string();
        assert_eq!(told, "0 bytes came of a region of 16");
        assert!(few.clone().add(&[0; 6]).is_err(), "half an element");
        assert!(RegionSum::new(Dtype::F32, &Shape::new(&[4]), &Region::new(&[3], &[2]).unwrap()).is_none());
    }
}
