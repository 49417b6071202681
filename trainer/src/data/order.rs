//! The order of samples: a permutation of `0..n` that is a function of (seed, epoch), computed at any index in constant
//! memory. A Feistel network permutes the smallest power of four that holds `n`; results outside `0..n` are fed in again
//! until one is inside (*cycle walking*), which ends because the network is a bijection and the start was inside.
//!
//! Invariant: the values are part of what a run is. They never change; a test holds them to frozen ones.

/// Rounds of the network: four would do for a shuffle, more cost nothing here.
const ROUNDS: usize = 8;

/// A permutation of `0..len`.
#[derive(Debug, Clone)]
pub struct Order {
    len: u64,
    /// Bits of each half.
    half: u32,
    keys: [u64; ROUNDS],
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of `x`.
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Order {
    /// The order of `len` samples in `epoch` of a run with `seed`.
    #[must_use]
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let mut state = mix(seed.wrapping_add(GOLDEN)) ^ mix(epoch.wrapping_mul(GOLDEN).wrapping_add(1));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        });
        Self { len, half: bits.div_ceil(2).max(1), keys }
    }

    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample at `index`; `None` outside.
    #[must_use]
    pub fn at(&self, index: u64) -> Option<u64> {
        if index >= self.len {
            return None;
        }
        let mut sample = self.permute(index);
        while sample >= self.len {
            sample = self.permute(sample);
        }
        Some(sample)
    }

    fn permute(&self, index: u64) -> u64 {
        let mask = u64::MAX >> (64 - self.half);
        let (mut left, mut right) = (index >> self.half & mask, index & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        // `half` is at most 32, so both halves fit.
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_never_changes() {
        let first = |len, seed, epoch| -> Vec<u64> {
            let order = Order::new(len, seed, epoch);
            (0..len.min(8)).filter_map(|index| order.at(index)).collect()
        };
        assert_eq!(first(10, 0, 0), FROZEN_SMALL);
        assert_eq!(first(1_000_003, 42, 7), FROZEN_LARGE);
        assert_eq!(first(1, 5, 5), [0]);
    }

    const FROZEN_SMALL: [u64; 8] = [7, 1, 0, 9, 4, 5, 8, 3];
    const FROZEN_LARGE: [u64; 8] = [368_391, 983_712, 425_702, 282_341, 534_083, 994_276, 656_190, 448_054];

    #[test]
    fn an_epoch_is_shuffled_and_no_other_is_like_it() {
        let order = |epoch| Order::new(4096, 1, epoch);
        let (a, b) = (order(0), order(1));
        let same = (0..4096).filter(|i| a.at(*i) == b.at(*i)).count();
        let fixed = (0..4096).filter(|i| a.at(*i) == Some(*i)).count();
        // Each is about 1 for random permutations.
        assert!(same < 10 && fixed < 10, "{same} alike, {fixed} in place");
        let far = (0..4096_u64).filter_map(|i| Some(a.at(i)?.abs_diff(i))).sum::<u64>() / 4096;
        assert!(
            (1200..1530).contains(&far),
            "samples move by a third of the length on average, not by {far}"
        );
    }

    #[test]
    fn the_largest_lengths_are_permuted_too() {
        for len in [u64::MAX, 1 << 63, (1 << 62) + 1] {
            let order = Order::new(len, 3, 9);
            let seen: BTreeSet<_> = (0..1000).chain(len - 1000..len).filter_map(|i| order.at(i)).collect();
            assert_eq!(seen.len(), 2000);
            assert!(seen.iter().all(|sample| *sample < len));
        }
        assert_eq!(Order::new(0, 0, 0).at(0), None);
    }

    proptest! {
        #[test]
        fn every_sample_comes_exactly_once(len in 1_u64..3000, seed: u64, epoch: u64) {
            let order = Order::new(len, seed, epoch);
            let seen: BTreeSet<_> = (0..len).filter_map(|index| order.at(index)).collect();
            prop_assert_eq!(seen.len() as u64, len);
            prop_assert_eq!(seen.last().copied(), Some(len - 1));
            prop_assert_eq!(order.at(len), None);
        }
    }
}
