//! [`Forecast`]: what a run will take, from the plan and the bounds alone, said before anything is written.
//!
//! A source byte is read again in two cases only, and both are counted here: its tensor's files are written in several passes, or the
//! target cuts rows so finely that a block of each cut together spans more of the source than the cache holds. Both are worst cases:
//! neighbours in time may still find something in the cache.

use std::collections::{BTreeMap, BTreeSet};

use fqn::Entry;
use reshard::Region;

use super::{
    options::{Budget, RunOptions},
    plan::CopyPlan,
    run::per_thread,
};
use crate::{Catalog, Result, digest::BLOCK_LEN};

/// What a run will take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Rounds over the source, each with at most `open_files` files of the target.
    pub passes: u64,
    /// Most bytes of buffers and cache.
    pub peak_memory: u64,
    /// Bytes read for each byte needed, at most.
    pub read_amplification: f64,
    /// Bytes of memory with which no tensor's rows would be read again for want of cache.
    pub enough_memory: u64,
}

impl Forecast {
    /// Of a plan whose target has for each rank a file, or several that are closed at `file_bytes`.
    ///
    /// # Errors
    /// `Incompatible` for a bound that is too small for any work.
    pub fn of(plan: &CopyPlan, catalog: &Catalog, options: &RunOptions, file_bytes: u64) -> Result<Self> {
        let budget = Budget::new(options, per_thread(plan, catalog))?;
        let passes = Passes::of(plan, options.open_files.get() as u64, file_bytes);
        let (mut needed, mut read, mut widest) = (0_u64, 0_u64, 0_u64);
        for (at, tensor) in plan.spec.tensors.iter().enumerate() {
            let bytes = tensor.entry.bytes().unwrap_or(0);
            for (regions, share) in by_rows(&tensor.entry, &tensor.regions) {
                let cuts = regions.len() as u64;
                let span = cuts.saturating_mul(u64::from(BLOCK_LEN)).min(bytes);
                widest = widest.max(span);
                let again = if span > budget.cache { cuts } else { passes.distinct(at, &regions) };
                let mine = part(bytes, share);
                needed = needed.saturating_add(mine);
                read = read.saturating_add(mine.saturating_mul(again));
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let read_amplification = if needed == 0 { 1.0 } else { read as f64 / needed as f64 };
        let enough_memory = widest.saturating_mul(2).max(options.max_memory.min(budget.total));
        Ok(Self { passes: passes.count, peak_memory: budget.total, read_amplification, enough_memory })
    }
}

/// Which pass each rank's files are written in.
struct Passes {
    count: u64,
    /// By rank and tensor: the pass.
    of: BTreeMap<(u32, usize), u64>,
}

impl Passes {
    fn of(plan: &CopyPlan, open_files: u64, file_bytes: u64) -> Self {
        let mut by_rank: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        for (at, tensor) in plan.spec.tensors.iter().enumerate() {
            for (region, rank) in &tensor.regions {
                let bytes = tensor.entry.dtype.bytes_for(region.elements()).unwrap_or(0);
                by_rank.entry(*rank).or_default().push((at, bytes));
            }
        }
        let (mut file, mut of) = (0_u64, BTreeMap::new());
        for (rank, boxes) in by_rank {
            let mut filled = 0_u64;
            for (at, bytes) in boxes {
                if filled > 0 && filled.saturating_add(bytes) > file_bytes {
                    (file, filled) = (file + 1, 0);
                }
                filled = filled.saturating_add(bytes);
                of.insert((rank, at), file / open_files.max(1));
            }
            file += 1;
        }
        Self { count: file.div_ceil(open_files.max(1)).max(1), of }
    }

    /// In how many passes files take from these boxes of a tensor.
    fn distinct(&self, tensor: usize, regions: &[u32]) -> u64 {
        let passes: BTreeSet<_> = regions.iter().filter_map(|rank| self.of.get(&(*rank, tensor))).collect();
        passes.len().max(1) as u64
    }
}

/// Ranks of the boxes that lie in the same rows, and those rows' share of the tensor: rows of all, and of how many.
fn by_rows(entry: &Entry, regions: &[(Region, u32)]) -> Vec<(Vec<u32>, (u64, u64))> {
    let mut groups: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
    for (region, rank) in regions {
        let first = region.offsets().first().copied().unwrap_or(0);
        let rows = region.extents().first().copied().unwrap_or(1);
        groups.entry((first, rows)).or_default().push(*rank);
    }
    let all = entry.shape.first().copied().unwrap_or(1);
    groups.into_iter().map(|((_, rows), ranks)| (ranks, (rows, all))).collect()
}

fn part(bytes: u64, (rows, all): (u64, u64)) -> u64 {
    let part = u128::from(bytes) * u128::from(rows) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc};

    use fqn::Dtype;

    use super::*;
    use crate::{
        Cancel, Needs, Silent, Source,
        engine::{
            Report, run,
            testing::{MemSink, MemSource, Proof, Stored, Whole, grid, plan},
        },
    };

    /// The forecast of a tensor cut into columns, and what the run took.
    fn columns(columns: u64, open_files: usize) -> (Forecast, Report) {
        let shape = [2048, columns * 512];
        let whole = Whole::new("w", Dtype::F32, &shape);
        let source = MemSource::new(&[(whole, grid(&shape, &[2, 1]), Stored::Packed)], 2, Proof::Blocks);
        let plan = plan(&source, vec![grid(&shape, &[1, columns]).into_iter().zip(0..).collect()]);
        let options = RunOptions {
            max_memory: 16 << 20,
            threads: NonZeroUsize::MIN,
            open_files: NonZeroUsize::new(open_files).unwrap(),
            ..RunOptions::default()
        };
        let forecast = Forecast::of(&plan, source.catalog(), &options, u64::MAX).unwrap();
        let mut sink = MemSink::new(Needs { crc32: false, blocks: true }, &Arc::default());
        let (_, report) = run(&source, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
        (forecast, report)
    }

    #[test]
    fn what_is_forecast_is_what_a_run_takes_at_most() {
        for (cuts, open_files) in [(1, 256), (4, 256), (8, 256), (4, 2), (12, 256), (16, 256), (8, 3)] {
            let (forecast, report) = columns(cuts, open_files);
            let (said, found) = (forecast.read_amplification, report.read_amplification);
            assert_eq!((forecast.passes, forecast.peak_memory), (report.passes as u64, report.peak_memory));
            assert!(found <= said * 1.001, "{cuts} columns, {open_files} files: {found} of {said}");
            assert_eq!(said < 1.02, found < 1.02, "{cuts} columns, {open_files} files: {found} of {said}");
        }
    }

    #[test]
    fn memory_that_is_called_enough_is() {
        let (forecast, _) = columns(12, 256);
        assert!(forecast.read_amplification > 2.0, "{forecast:?}");
        assert_eq!(forecast.enough_memory, 24 << 20);
    }
}
