//! Chance that a seed gives again (splitmix64).

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that follows from another, and looks as if it did not.
pub(crate) const fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The sequence of a seed, and of what it is for.
    pub(crate) const fn new(seed: u64, purpose: u64) -> Self {
        Self(seed.wrapping_mul(GOLDEN) ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        let next = mixed(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        next
    }

    /// One below `end`; 0 where that is 0.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A place in a list of so many.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// One of a list.
    pub(crate) fn of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.index(list.len()))
    }

    /// Puts a list into another order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.index(at + 1));
        }
    }
}
