//! Which tensor goes into which shard: tensors stay in order, shards are of even size.
//!
//! With a bound that was asked for, there are as few shards as it takes. Without one, no shard passes 5 GB, the bound that
//! `huggingface_hub` splits by, and there are 2, 4 or 8 of them where each still holds 256 MB: two threads that write one
//! file wait for each other, so a file for each thread is written about twice as fast, and read so by loaders that map
//! files side by side. The number depends on the tensors only, so every machine writes the same folder.

use crate::{Error, Result, TargetSpec};

/// Most bytes of a shard where nothing was asked for.
const MOST: u64 = 5_000_000_000;

/// What a shard holds at least before there are several for the sake of speed.
const WORTH_A_FILE: u64 = 256_000_000;

/// How many shards there are for the sake of speed.
const ABREAST: [usize; 3] = [8, 4, 2];

/// Positions of the tensors of each shard, in order. A shard passes the bound only where a single tensor does.
pub(super) fn shards(spec: &TargetSpec, most: Option<u64>) -> Result<Vec<Vec<usize>>> {
    let sizes = spec.tensors.iter().map(|tensor| {
        let entry = &tensor.entry;
        entry.bytes().ok_or_else(|| {
            let (name, dtype, shape) = (&entry.fqn, entry.dtype, &entry.shape);
            Error::incompatible(format!("{name}: {dtype} of shape {shape} has no size in whole bytes"))
        })
    });
    let sizes = sizes.collect::<Result<Vec<u64>>>()?;
    let fewest = count(&sizes, most.unwrap_or(MOST));
    let wanted = if most.is_some() { fewest } else { fewest.max(abreast(&sizes)) };
    Ok(cut(&sizes, even_bound(&sizes, wanted)))
}

/// How many shards are worth while for speed alone.
fn abreast(sizes: &[u64]) -> usize {
    let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    let worth = |count: &usize| total / WORTH_A_FILE >= *count as u64;
    ABREAST.into_iter().find(worth).unwrap_or(1)
}

/// The smallest bound that takes at most `wanted` shards.
fn even_bound(sizes: &[u64], wanted: usize) -> u64 {
    let (mut low, mut high) = (0, sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size)));
    while low < high {
        let middle = low + (high - low) / 2;
        if count(sizes, middle) <= wanted {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

fn count(sizes: &[u64], most: u64) -> usize {
    let mut filled = 0;
    1 + sizes.iter().filter(|size| begins(&mut filled, **size, most)).count()
}

fn cut(sizes: &[u64], most: u64) -> Vec<Vec<usize>> {
    let (mut filled, mut shards) = (0, Vec::new());
    let mut shard = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        if begins(&mut filled, *size, most) {
            shards.push(std::mem::take(&mut shard));
        }
        shard.push(at);
    }
    shards.push(shard);
    shards
}

/// Whether a tensor begins a new shard after one that is `filled` so far: it would pass the bound.
fn begins(filled: &mut u64, size: u64, most: u64) -> bool {
    let sum = filled.saturating_add(size);
    let begins = *filled > 0 && sum > most;
    *filled = if begins { size } else { sum };
    begins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(sizes: &[u64], shards: &[Vec<usize>]) -> Vec<u64> {
        shards.iter().map(|shard| shard.iter().map(|at| sizes[*at]).sum()).collect()
    }

    #[test]
    fn shards_are_of_even_size_and_as_few_as_the_bound_takes() {
        let sizes = [4, 4, 4, 4, 4, 4, 4];
        let fewest = count(&sizes, 20);
        let found = cut(&sizes, even_bound(&sizes, fewest));
        assert_eq!(sums(&sizes, &found), [16, 12], "rather than 20 and 8");
    }

    #[test]
    fn small_models_are_one_file_and_large_ones_keep_to_the_bound() {
        let layers = |count: usize, size: u64| vec![size; count];
        assert_eq!(abreast(&layers(10, 40_000_000)), 1);
        assert_eq!(abreast(&layers(10, 52_000_000)), 2);
        assert_eq!(abreast(&layers(30, 100_000_000)), 8);
        assert_eq!(count(&layers(1400, 100_000_000), MOST), 28);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_shard_in_order_and_only_single_ones_pass_the_bound(
            sizes in prop::collection::vec(0_u64..50, 1..40), most in 1_u64..120,
        ) {
            let bound = even_bound(&sizes, count(&sizes, most));
            let found = cut(&sizes, bound);
            prop_assert_eq!(found.concat(), (0..sizes.len()).collect::<Vec<_>>());
            prop_assert_eq!(found.len(), count(&sizes, most));
            for (shard, sum) in found.iter().zip(sums(&sizes, &found)) {
                let single = shard.iter().filter(|at| sizes[**at] > 0).count() == 1;
                prop_assert!(sum <= most || single, "{:?} of {} above {}", shard, sum, most);
            }
        }
    }
}
