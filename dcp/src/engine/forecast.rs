//! [`Forecast`]: what a run will take, from the plan and the bounds alone, said before anything is written.
//!
//! A source byte is read again in two cases, and both are counted here: its tensor's files are written in several passes, or source or
//! target cut rows so finely that a block of each cut together spans more of the source than the cache holds. Both are worst cases:
//! neighbours in time may still find something in the cache. A compressed target is written in the order of its files, whatever that
//! costs the source: where one holds several boxes of a tensor, more may be read than is said here.

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
            let source = plan.sources.get(at).and_then(|source| catalog.tensors.get(source.tensor));
            let source = source.map(|source| columns(source.chunks.regions())).unwrap_or_default();
            // Tensors whose rows lie between each other are copied side by side.
            let abreast = abreast(plan, catalog, at);
            for (columns, ranks, share) in by_rows(&tensor.entry, &tensor.regions) {
                let cuts = most_abreast(&source, &columns).saturating_mul(abreast);
                let span = cuts.saturating_mul(u64::from(BLOCK_LEN)).min(bytes.saturating_mul(abreast));
                widest = widest.max(span);
                let again = if span > budget.cache { cuts } else { passes.distinct(at, &ranks) };
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

/// How many tensors of the source, this one among them, lie row by row between each other.
fn abreast(plan: &CopyPlan, catalog: &Catalog, tensor: usize) -> u64 {
    let source = plan.sources.get(tensor).and_then(|source| catalog.lineage.abreast(source.tensor));
    source.map_or(1, |(_, many)| many)
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

/// A box without its rows: where it lies in dimension 1, and then the rest of its offsets and extents.
type Column = (u64, u64, Vec<u64>);

fn column(region: &Region) -> Column {
    let (offsets, extents) = (region.offsets(), region.extents());
    let first = offsets.get(1).copied().unwrap_or(0);
    let end = first.saturating_add(extents.get(1).copied().unwrap_or(1));
    (first, end, offsets.iter().skip(2).chain(extents.iter().skip(2)).copied().collect())
}

fn columns(regions: impl Iterator<Item = Region>) -> BTreeSet<Column> {
    regions.map(|region| column(&region)).collect()
}

/// Blocks that are in use at the same time. Work goes on from row to row over all of a tensor: a column of the source that several of the
/// target are cut out of is done with them, but one that is only a part of a column of the target is needed again for the next rows.
fn most_abreast(source: &BTreeSet<Column>, target: &BTreeSet<Column>) -> u64 {
    let groups = overlapping(source, target);
    let kept = groups.iter().filter(|[source, target]| source > target).map(|[source, _]| *source).sum();
    groups.iter().flatten().copied().fold(kept, u64::max).max(1)
}

/// How many columns of source and target each group has: those that overlap, and what overlaps those.
fn overlapping(source: &BTreeSet<Column>, target: &BTreeSet<Column>) -> Vec<[u64; 2]> {
    let mut all: Vec<_> = source.iter().map(|it| (it, [1, 0])).collect();
    all.extend(target.iter().map(|it| (it, [0, 1])));
    all.sort_unstable();
    let (mut groups, mut end): (Vec<[u64; 2]>, u64) = (Vec::new(), 0);
    for ((first, last, _), [source, target]) in all {
        match groups.last_mut().filter(|_| *first < end) {
            Some(group) => *group = [group[0] + source, group[1] + target],
            None => groups.push([source, target]),
        }
        end = end.max(*last);
    }
    groups
}

/// Boxes that lie in the same rows: their columns, their ranks, and those rows' share of the tensor, rows of all.
type Band = (BTreeSet<Column>, Vec<u32>, (u64, u64));

fn by_rows(entry: &Entry, regions: &[(Region, u32)]) -> Vec<Band> {
    let mut bands: BTreeMap<(u64, u64), (BTreeSet<Column>, Vec<u32>)> = BTreeMap::new();
    for (region, rank) in regions {
        let first = region.offsets().first().copied().unwrap_or(0);
        let rows = region.extents().first().copied().unwrap_or(1);
        let (columns, ranks) = bands.entry((first, rows)).or_default();
        columns.insert(column(region));
        ranks.push(*rank);
    }
    let all = entry.shape.first().copied().unwrap_or(1);
    bands.into_iter().map(|((_, rows), (columns, ranks))| (columns, ranks, (rows, all))).collect()
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

    /// A tensor cut into so many columns in the source, and in the target.
    #[derive(Debug, Clone, Copy)]
    struct Columns {
        source: u64,
        target: u64,
        open_files: usize,
        max_memory: u64,
    }

    impl Columns {
        /// The forecast, and what the run took.
        fn run(self) -> (Forecast, Report) {
            let Self { source: from, target: columns, open_files, max_memory } = self;
            let shape = [2048, columns.max(from) * 512];
            let whole = Whole::new("w", Dtype::F32, &shape);
            let source =
                MemSource::new(&[(whole, grid(&shape, &[2, from]), Stored::Packed)], 2, Proof::Blocks);
            let plan = plan(&source, vec![grid(&shape, &[1, columns]).into_iter().zip(0..).collect()]);
            let options = RunOptions {
                max_memory,
                threads: NonZeroUsize::MIN,
                open_files: NonZeroUsize::new(open_files).unwrap(),
                ..RunOptions::default()
            };
            let forecast = Forecast::of(&plan, source.catalog(), &options, u64::MAX).unwrap();
            let mut sink = MemSink::new(Needs { crc32: false, blocks: true }, &Arc::default());
            let (_, report) = run(&source, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
            (forecast, report)
        }
    }

    const fn columns(target: u64, open_files: usize) -> Columns {
        Columns { source: 1, target, open_files, max_memory: 16 << 20 }
    }

    #[test]
    fn what_is_forecast_is_what_a_run_takes_at_most() {
        let targets = [(1, 256), (4, 256), (8, 256), (4, 2), (12, 256), (16, 256), (8, 3)];
        let sources = [(4, 1), (8, 1), (16, 1), (16, 2), (3, 12)];
        let sources = sources.map(|(source, target)| Columns { source, ..columns(target, 256) });
        for case in targets.map(|(cuts, open_files)| columns(cuts, open_files)).into_iter().chain(sources) {
            let (forecast, report) = case.run();
            let (said, found) = (forecast.read_amplification, report.read_amplification);
            assert_eq!((forecast.passes, forecast.peak_memory), (report.passes as u64, report.peak_memory));
            assert!(found <= said * 1.001, "{case:?}: {found} of {said}");
            assert_eq!(said < 1.02, found < 1.02, "{case:?}: {found} of {said}");
        }
    }

    #[test]
    fn memory_that_is_called_enough_is() {
        for case in [columns(12, 256), Columns { source: 12, ..columns(1, 256) }] {
            let (forecast, _) = case.run();
            assert!(forecast.read_amplification > 2.0, "{forecast:?}");
            let (forecast, report) = Columns { max_memory: forecast.enough_memory, ..case }.run();
            assert!(forecast.read_amplification < 1.02 && report.read_amplification < 1.02, "{report:?}");
        }
    }
}
