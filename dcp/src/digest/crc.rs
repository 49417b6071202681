//! CRC-32 (the polynomial of zip archives), in pieces that may be computed in any order.

use std::fmt;

/// The CRC-32 of bytes seen so far, with their number: what is needed to append another piece's.
#[derive(Clone, Default)]
pub struct Crc32(crc32fast::Hasher);

impl Crc32 {
    /// The CRC of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The CRC of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut crc = Self::new();
        crc.update(bytes);
        crc
    }

    /// A known CRC of `len` bytes, to be combined with that of what follows them.
    #[must_use]
    pub fn known(value: u32, len: u64) -> Self {
        Self(crc32fast::Hasher::new_with_initial_len(value, len))
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Goes on with the bytes that `next` has seen: blocks hashed in any order, by any thread, add up to the CRC of the
    /// record as long as they are combined in the record's order.
    pub fn combine(&mut self, next: &Self) {
        self.0.combine(&next.0);
    }

    /// The CRC of all bytes seen.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

impl fmt::Debug for Crc32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crc32({:08x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_value_is_that_of_zip() {
        assert_eq!(Crc32::of(b"123456789").value(), 0xcbf4_3926);
        assert_eq!(Crc32::new().value(), 0);
    }

    proptest! {
        #[test]
        fn pieces_combine_to_the_crc_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..500),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut sum = Crc32::new();
            for ends in cuts.windows(2) {
                let piece = &bytes[ends[0]..ends[1]];
                sum.combine(&Crc32::known(Crc32::of(piece).value(), piece.len() as u64));
            }
            prop_assert_eq!(sum.value(), Crc32::of(&bytes).value());
        }
    }
}
