//! [`Forecast`]: what a run will take, from the plan and the bounds alone, said before anything is written.
//!
//! A source byte is read again in two cases, and both are counted here: its tensor's files are written in several passes, or what a block
//! of each cut of the same rows needs together spans more of the source than the cache holds: source or target cut rows finely, or the
//! source has its columns one after the other (a transposed `.pt`), so that any rows are spread over all of it. Both are worst cases:
//! neighbours in time may still find something in the cache. What is read without being needed counts too: gaps between rows, and the rest
//! of records that a CRC-32 proves as a whole. A compressed target is written in the order of its files, whatever that
//! costs the source: where one holds several boxes of a tensor, more may be read than is said here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fqn::{Dtype, Entry};
use reshard::Region;

use super::{
    options::{Budget, RunOptions},
    plan::CopyPlan,
    run::{largest, per_thread},
};
use crate::{Catalog, Chunk, Chunks, FileId, Result, digest::BLOCK_LEN, store::GATHERED};

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
        let budget = Budget::new(options, per_thread(plan, catalog), largest(plan))?;
        let passes = Passes::of(plan, budget.open_files as u64, file_bytes);
        let (mut needed, mut read, mut widest) = (0_u64, rest_of_records(plan, catalog), 0_u64);
        each_need(plan, catalog, |need| {
            widest = widest.max(need.span);
            let again =
                if need.span > budget.cache { need.again } else { passes.distinct(need.tensor, &need.ranks) };
            needed = needed.saturating_add(need.bytes);
            read = read.saturating_add(need.stored.saturating_mul(again));
        });
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let read_amplification = if needed == 0 { 1.0 } else { read as f64 / needed as f64 };
        // What files hold on their way to a disk comes off first, and grows with the bound.
        let gathered = if options.gathered > 0 { GATHERED } else { 0 };
        let enough = widest.saturating_mul(2).saturating_add(gathered);
        let enough_memory = enough.max(options.max_memory.min(budget.total));
        Ok(Self { passes: passes.count, peak_memory: budget.total, read_amplification, enough_memory })
    }
}

/// What rows of a tensor need, which are copied together to all files that take from them.
#[derive(Debug)]
pub(super) struct Need {
    tensor: usize,
    ranks: Vec<u32>,
    /// Bytes of them, and of what they are stored in.
    bytes: u64,
    stored: u64,
    /// Bytes of the source that a block of each cut spans: what the cache must keep, for each lane of the queue.
    span: u64,
    /// How often they are read where it can't.
    again: u64,
}

/// How many lanes of the queue may go on side by side: half of the cache keeps what each of them needs. One always may.
pub(super) fn lanes(plan: &CopyPlan, catalog: &Catalog, budget: &Budget) -> usize {
    let mut widest = 1;
    each_need(plan, catalog, |need| widest = widest.max(need.span));
    usize::try_from(budget.cache / 2 / widest).unwrap_or(usize::MAX).clamp(1, budget.threads)
}

fn each_need(plan: &CopyPlan, catalog: &Catalog, mut visit: impl FnMut(Need)) {
    for (at, tensor) in plan.spec.tensors.iter().enumerate() {
        let from = plan.sources.get(at).map(|source| source.tensor);
        let source = from.and_then(|from| catalog.tensors.get(from));
        let dtype = from.and_then(|from| Some(catalog.registry.entries().get(from)?.dtype));
        let (bytes, dtype) = (tensor.entry.bytes().unwrap_or(0), dtype.unwrap_or(tensor.entry.dtype));
        let wide = wider(dtype, tensor.entry.dtype);
        let block = u64::from(BLOCK_LEN).saturating_mul(wide);
        let columns = source.map(|source| columns(source.chunks.regions())).unwrap_or_default();
        let is_scattered = source.is_some_and(|source| source.chunks.iter().any(|it| is_scattered(&it)));
        // Tensors whose rows lie between each other are copied side by side, and what is between those of one is another's.
        let abreast = abreast(plan, catalog, at);
        let spread = source.map_or((1, 1), |source| spread(source, dtype, abreast));
        let whole = bytes.saturating_mul(wide).saturating_mul(abreast);
        for (cuts, ranks, share) in by_rows(&tensor.entry, &tensor.regions) {
            let mine = part(bytes, share);
            let (span, again) = if is_scattered {
                // Each row of blocks, of all cuts together, reads all of it.
                (whole, bytes.div_ceil(u64::from(BLOCK_LEN).saturating_mul(cuts.len() as u64)))
            } else {
                let blocks = most_abreast(&columns, &cuts).saturating_mul(abreast);
                (blocks.saturating_mul(block).min(whole), blocks)
            };
            let (stored, span) = (part(mine, spread), part(span, spread));
            visit(Need { tensor: at, ranks, bytes: mine, stored, span, again: again.max(1) });
        }
    }
}

/// How many times as wide elements are in the source.
fn wider(from: Dtype, to: Dtype) -> u64 {
    u64::from(from.bits()).div_ceil(u64::from(to.bits()).max(1)).max(1)
}

/// Whether rows lie scattered over all of a chunk: another dimension is the outermost in its file.
fn is_scattered(chunk: &Chunk) -> bool {
    let Some(strides) = &chunk.strides else { return false };
    let axes = || strides.iter().zip(chunk.region.extents()).filter(|(_, extent)| **extent > 1);
    axes().next().is_some_and(|(rows, _)| axes().any(|(stride, _)| stride > rows))
}

/// Bytes that chunks span in their files, of so many that they and those between them hold.
fn spread(source: &Chunks, dtype: Dtype, abreast: u64) -> (u64, u64) {
    let (mut spanned, mut held) = (0_u64, 0_u64);
    for chunk in source.chunks.iter() {
        let bytes = dtype.bytes_for(chunk.region.elements()).unwrap_or(0);
        held = held.saturating_add(bytes);
        spanned = spanned.saturating_add(chunk.span(dtype).unwrap_or(bytes));
    }
    let held = held.saturating_mul(abreast).max(1);
    (spanned.max(held), held)
}

/// Bytes of records beyond the chunks that are copied out of them: they are read to prove those.
fn rest_of_records(plan: &CopyPlan, catalog: &Catalog) -> u64 {
    let mut records: HashMap<(FileId, u64), (u64, u64)> = HashMap::new();
    let tensors: BTreeSet<usize> = plan.sources.iter().map(|source| source.tensor).collect();
    for (entry, chunks) in tensors
        .iter()
        .filter_map(|at| Some((catalog.registry.entries().get(*at)?, catalog.tensors.get(*at)?)))
    {
        for chunk in &chunks.chunks {
            let Some(record) = chunk.record else { continue };
            let (_, taken) = records.entry((chunk.file, record.offset)).or_insert((record.len, 0));
            *taken = taken.saturating_add(chunk.span(entry.dtype).unwrap_or(0));
        }
    }
    records.values().map(|(len, taken)| len.saturating_sub(*taken)).fold(0, u64::saturating_add)
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
        stored: Stored,
        open_files: usize,
        max_memory: u64,
    }

    impl Columns {
        /// The forecast, and what the run took.
        fn run(self) -> (Forecast, Report) {
            let Self { source: from, target: columns, stored, open_files, max_memory } = self;
            let shape = [2048, columns.max(from) * 512];
            let whole = Whole::new("w", Dtype::F32, &shape);
            let source = MemSource::new(&[(whole, grid(&shape, &[2, from]), stored)], 2, Proof::Blocks);
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
        Columns { source: 1, target, stored: Stored::Packed, open_files, max_memory: 16 << 20 }
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
    fn a_source_that_has_columns_one_after_the_other_is_read_again_for_each_band_of_rows() {
        for (target, bands) in [(1, 12), (4, 3)] {
            let transposed = Columns { stored: Stored::Transposed, ..columns(target, 256) };
            let (forecast, report) = Columns { max_memory: 64 << 20, ..transposed }.run();
            assert!(forecast.read_amplification < 1.02 && report.read_amplification < 1.02, "{report:?}");
            let wide = [6144, 512];
            let whole = Whole::new("w", Dtype::F32, &wide);
            let source =
                MemSource::new(&[(whole, grid(&wide, &[1, 1]), Stored::Transposed)], 1, Proof::Blocks);
            let plan = plan(&source, vec![grid(&wide, &[3, target]).into_iter().zip(0..).collect()]);
            let options =
                RunOptions { max_memory: 16 << 20, threads: NonZeroUsize::MIN, ..RunOptions::default() };
            let forecast = Forecast::of(&plan, source.catalog(), &options, u64::MAX).unwrap();
            let mut sink = MemSink::new(Needs { crc32: false, blocks: true }, &Arc::default());
            let (_, report) = run(&source, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
            let (said, found) = (forecast.read_amplification, report.read_amplification);
            assert!(
                found <= said * 1.001 && said > f64::from(bands) - 0.1 && found > 2.0,
                "{found} of {said}"
            );
            assert_eq!(forecast.enough_memory, 24 << 20);
            let options = RunOptions { gathered: 2 << 20, ..options };
            let forecast = Forecast::of(&plan, source.catalog(), &options, u64::MAX).unwrap();
            assert_eq!(forecast.enough_memory, (24 << 20) + GATHERED);
        }
    }

    #[test]
    fn lanes_side_by_side_do_not_take_the_cache_from_each_other() {
        let shape = [512, 4096];
        let tensors: Vec<_> = (0..8)
            .map(|at| {
                (Whole::new(&format!("t{at}"), Dtype::F32, &shape), grid(&shape, &[1, 8]), Stored::Packed)
            })
            .collect();
        let source = MemSource::new(&tensors, 8, Proof::Blocks);
        let whole = Region::new(&[0, 0], &shape).unwrap();
        let plan = plan(&source, (0..8).map(|rank| vec![(whole.clone(), rank)]).collect());
        let threads = NonZeroUsize::new(8).unwrap();
        let options = RunOptions { max_memory: 48 << 20, threads, ..RunOptions::default() };
        let forecast = Forecast::of(&plan, source.catalog(), &options, u64::MAX).unwrap();
        let mut sink = MemSink::new(Needs { crc32: false, blocks: true }, &Arc::default());
        let (_, report) = run(&source, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
        assert!((forecast.read_amplification - 1.0).abs() < 1e-9, "{forecast:?}");
        assert_eq!((report.bytes_read, source.most_reads()), (report.bytes_needed, 1));
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
