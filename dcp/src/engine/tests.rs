//! Properties of the engine as a whole, on sources and sinks in memory.

mod broken;
mod coded;
mod records;
pub(crate) mod testing;
mod waiting;

use std::{num::NonZeroUsize, sync::Arc};

use fqn::{Dtype, Shape};
use proptest::prelude::*;
use reshard::Region;

use self::testing::{MemSink, MemSource, Proof, Shelf, Stored, Whole, grid, plan};
use super::{CopyPlan, Report, RowMap, RowRun, RunOptions, SourceRef, Verify, read_region, run};
use crate::{Cancel, Committed, ErrorKind, Needs, Progress, Result, Silent, digest::table_of};

const ALL: Needs = Needs { crc32: true, blocks: true };

fn options(threads: usize) -> RunOptions {
    let threads = NonZeroUsize::new(threads).unwrap();
    RunOptions { max_memory: 16 << 20, threads, ..RunOptions::default() }
}

fn copy(source: &MemSource, plan: &CopyPlan, needs: Needs) -> Result<(MemSink, Committed, Report)> {
    let mut sink = MemSink::new(needs, &Arc::default());
    let (committed, report) = run(source, &mut sink, plan, &options(3), &Silent, &Cancel::new())?;
    Ok((sink, committed, report))
}

/// Every chunk of the sink is what a naive copy of its region gives, and digests and CRCs are those of its bytes.
fn check(sink: &MemSink, plan: &CopyPlan, wholes: &[Whole]) {
    for (at, chunk) in sink.layout.chunks.iter().enumerate() {
        assert_eq!(sink.chunk(at, &plan.spec), wholes[chunk.tensor].region(&chunk.region), "chunk {at}");
    }
    let written = sink.shelf.committed.lock().unwrap().clone().unwrap();
    let files = sink.shelf.files.lock().unwrap();
    for done in &written.files {
        let bytes = &files[&done.path];
        let of_file = sink.layout.chunks.iter().filter(|chunk| chunk.file == done.file);
        if let Some(table) = &done.blocks {
            let edges = of_file.clone().flat_map(|chunk| {
                let dtype = plan.spec.tensors[chunk.tensor].entry.dtype;
                [chunk.offset, chunk.offset + dtype.bytes_for(chunk.region.elements()).unwrap()]
            });
            let layout = crate::digest::BlockLayout::new(bytes.len() as u64, edges).unwrap();
            assert_eq!(table, &table_of(bytes, layout, 1).unwrap());
        }
        if sink.needs.crc32 {
            let wanted = of_file
                .map(|chunk| crate::digest::Crc32::of(&wholes[chunk.tensor].region(&chunk.region)).value());
            assert_eq!(done.crc32, wanted.collect::<Vec<_>>());
        }
    }
}

fn arb_dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::BF16, Dtype::F32, Dtype::I64, Dtype::U8, Dtype::C128])
}

fn arb_parts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1_u64..5, 4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_chunking_becomes_any_other_and_equals_a_naive_copy(
        dtype in arb_dtype(),
        shape in prop::collection::vec(0_u64..9, 0..4),
        (from, to) in (arb_parts(), arb_parts()),
        stored in prop::sample::select(vec![Stored::Packed, Stored::Transposed, Stored::Gaps]),
        proof in prop::sample::select(vec![Proof::Nothing, Proof::Blocks, Proof::Records]),
        (files, ranks, blocks, crc32) in (1_usize..4, 1_u32..4, any::<bool>(), any::<bool>()),
    ) {
        let wholes = [Whole::new("a", dtype, &shape), Whole::new("b", Dtype::F16, &[40, 30])];
        let cut = |whole: &Whole, parts: &[u64]| grid(&whole.entry.shape, parts);
        let tensors: Vec<_> = wholes.iter().map(|whole| (whole.clone(), cut(whole, &from), stored)).collect();
        let source = MemSource::new(&tensors, files, proof);
        let ranked = |regions: Vec<Region>| regions.into_iter().zip((0..ranks).cycle()).collect();
        let plan = plan(&source, wholes.iter().map(|whole| ranked(cut(whole, &to))).collect());
        let (sink, _, report) = copy(&source, &plan, Needs { crc32, blocks }).unwrap();
        check(&sink, &plan, &wholes);
        prop_assert_eq!(report.proven, 2);
        prop_assert!(source.most_reads() <= 1, "a byte was read {} times", source.most_reads());
        for (whole, (id, fingerprint)) in source.catalog.tensors.iter().zip(&report.fingerprints) {
            prop_assert_eq!(whole.fingerprint.unwrap(), *fingerprint, "{}", id);
        }
    }

    #[test]
    fn any_region_reads_as_its_slice(
        shape in prop::collection::vec(1_u64..9, 0..4),
        from in arb_parts(),
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 4),
        stored in prop::sample::select(vec![Stored::Packed, Stored::Transposed, Stored::Gaps]),
        proof in prop::sample::select(vec![Proof::Nothing, Proof::Blocks, Proof::Records]),
        verify in prop::sample::select(vec![Verify::None, Verify::Records]),
    ) {
        let whole = Whole::new("a", Dtype::F32, &shape);
        let source = MemSource::new(&[(whole.clone(), grid(&shape, &from), stored)], 2, proof);
        let (mut offsets, mut extents) = (Vec::new(), Vec::new());
        for (extent, (at, len)) in shape.iter().zip(&picks) {
            let whole = usize::try_from(*extent).unwrap();
            let at = at.index(whole);
            offsets.push(at as u64);
            extents.push(len.index(whole - at + 1) as u64);
        }
        let region = Region::new(&offsets, &extents).unwrap();
        prop_assert_eq!(read_region(&source, 0, &region, verify).unwrap(), whole.region(&region));
    }
}

#[test]
fn a_tensor_larger_than_the_bound_is_cut_by_columns_and_each_byte_read_once() {
    let whole = Whole::new("w", Dtype::F32, &[6000, 1500]);
    assert!(whole.bytes.len() as u64 > 2 * options(1).max_memory);
    for proof in [Proof::Nothing, Proof::Blocks, Proof::Records] {
        let tensors = [(whole.clone(), grid(&[6000, 1500], &[4, 1]), Stored::Packed)];
        let source = MemSource::new(&tensors, 2, proof);
        let targets = grid(&[6000, 1500], &[1, 3]).into_iter().zip(0..).collect();
        let plan = plan(&source, vec![targets]);
        let (sink, _, report) = copy(&source, &plan, ALL).unwrap();
        check(&sink, &plan, std::slice::from_ref(&whole));
        assert_eq!(source.most_reads(), 1, "{proof:?}");
        assert!(report.read_amplification <= 1.0 && report.peak_memory <= 16 << 20, "{report:?}");
    }
}

#[test]
fn files_beyond_the_limit_are_written_in_passes() {
    let whole = Whole::new("w", Dtype::F32, &[64, 64]);
    let source =
        MemSource::new(&[(whole.clone(), grid(&[64, 64], &[2, 1]), Stored::Packed)], 1, Proof::Blocks);
    let plan = plan(&source, vec![grid(&[64, 64], &[1, 8]).into_iter().zip(0..).collect()]);
    let mut sink = MemSink::new(ALL, &Arc::default());
    let options = RunOptions { open_files: NonZeroUsize::new(3).unwrap(), ..options(3) };
    let (_, report) = run(&source, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
    check(&sink, &plan, &[whole]);
    assert_eq!(report.passes, 3);
}

#[test]
fn a_flipped_bit_is_named_by_file_tensor_and_range() {
    let whole = Whole::new("layers.0.w", Dtype::F32, &[64, 64]);
    for (proof, range) in [(Proof::Blocks, "[32..64, 0..64]"), (Proof::Records, "[32..64, 0..64]")] {
        let mut source =
            MemSource::new(&[(whole.clone(), grid(&[64, 64], &[2, 1]), Stored::Packed)], 2, proof);
        source.files[1][100] ^= 4;
        let plan = plan(&source, vec![grid(&[64, 64], &[1, 2]).into_iter().zip(0..).collect()]);
        let error = copy(&source, &plan, ALL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(["blob-1", "layers.0.w", range].iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_flipped_bit_that_nothing_else_proves_is_found_by_the_fingerprint_and_nothing_is_visible() {
    let whole = Whole::new("w", Dtype::BF16, &[64, 64]);
    let mut source = MemSource::new(&[(whole, grid(&[64, 64], &[2, 1]), Stored::Packed)], 1, Proof::Nothing);
    source.files[0][777] ^= 1;
    let plan = plan(&source, vec![grid(&[64, 64], &[1, 2]).into_iter().zip(0..).collect()]);
    let shelf = Arc::<Shelf>::default();
    let mut sink = MemSink::new(ALL, &shelf);
    let error = run(&source, &mut sink, &plan, &options(2), &Silent, &Cancel::new()).unwrap_err();
    assert!(error.to_string().starts_with("w: fingerprint"), "{error}");
    assert!(shelf.committed.lock().unwrap().is_none());
}

#[test]
fn mapped_rows_prove_themselves_in_the_sources_coordinates() {
    let whole = Whole::new("wq", Dtype::BF16, &[12, 5]);
    let source =
        MemSource::new(&[(whole.clone(), grid(&[12, 5], &[3, 2]), Stored::Packed)], 2, Proof::Blocks);
    let mut plan = plan(&source, vec![grid(&[12, 5], &[2, 1]).into_iter().zip(0..).collect()]);
    let rows = [3, 0, 1, 2, 7, 8, 9, 10, 11, 4, 5, 6];
    let runs = rows.iter().zip(0..).map(|(source, target)| RowRun { target, source: *source, rows: 1 });
    plan.sources[0].map = RowMap::new(runs).unwrap();
    let (sink, _, report) = copy(&source, &plan, ALL).unwrap();
    let permuted: Vec<u8> =
        rows.iter().flat_map(|row| whole.region(&Region::new(&[*row, 0], &[1, 5]).unwrap())).collect();
    let target = Whole { bytes: permuted, ..whole };
    check(&sink, &plan, &[target]);
    assert_eq!(report.proven, 1);
    assert_ne!(Some(report.fingerprints[0].1), source.catalog.tensors[0].fingerprint);
}

#[test]
fn a_cast_rounds_each_element_and_is_refused_unless_asked_for() {
    let mut whole = Whole::new("w", Dtype::F32, &[300, 7]);
    let values: Vec<f32> = (0..2100_u16).map(|n| (f32::from(n) - 1000.0) * 1.37e-3).collect();
    whole.bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let source =
        MemSource::new(&[(whole.clone(), grid(&[300, 7], &[3, 2]), Stored::Packed)], 2, Proof::Records);
    let mut plan = plan(&source, vec![grid(&[300, 7], &[2, 1]).into_iter().zip(0..).collect()]);
    plan.spec.tensors[0].entry.dtype = Dtype::BF16;
    assert_eq!(copy(&source, &plan, ALL).unwrap_err().kind(), ErrorKind::Incompatible);
    plan.sources[0].cast = Some(Dtype::BF16);
    let (sink, _, report) = copy(&source, &plan, ALL).unwrap();
    let cast = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
    let mut entry = whole.entry;
    entry.dtype = Dtype::BF16;
    check(&sink, &plan, &[Whole { entry, bytes: cast }]);
    assert_eq!(report.proven, 0);
}

/// Wishes to stop after so many bytes.
struct StopAfter(u64, std::sync::atomic::AtomicU64, Cancel);

impl Progress for StopAfter {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, bytes: u64) {
        if self.1.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed) + bytes >= self.0 {
            self.2.cancel();
        }
    }
    fn end(&self) {}
}

#[test]
fn a_stopped_run_goes_on_where_it_stopped_and_gives_what_one_run_gives() {
    let wholes: Vec<Whole> = (0..6).map(|n| Whole::new(&format!("t{n}"), Dtype::F32, &[100, 100])).collect();
    let tensors: Vec<_> =
        wholes.iter().map(|whole| (whole.clone(), grid(&[100, 100], &[4, 1]), Stored::Packed)).collect();
    let source = MemSource::new(&tensors, 3, Proof::Blocks);
    let plan = plan(
        &source,
        (0..6).map(|rank| vec![(Region::whole(&Shape::new(&[100, 100])).unwrap(), rank)]).collect(),
    );
    let (once, ..) = copy(&source, &plan, ALL).unwrap();
    let shelf = Arc::<Shelf>::default();
    let cancel = Cancel::new();
    let watch = StopAfter(100_000, 0.into(), cancel.clone());
    let mut sink = MemSink::new(ALL, &shelf);
    let error = run(&source, &mut sink, &plan, &options(2), &watch, &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(shelf.committed.lock().unwrap().is_none());
    let finished = shelf.done.lock().unwrap().len();
    assert!((1..6).contains(&finished), "{finished} files were finished");
    let mut sink = MemSink::new(ALL, &shelf);
    let (_, report) = run(&source, &mut sink, &plan, &options(2), &Silent, &Cancel::new()).unwrap();
    assert_eq!(report.skipped_files, finished);
    check(&sink, &plan, &wholes);
    assert_eq!(*shelf.files.lock().unwrap(), *once.shelf.files.lock().unwrap());
    let prints = |shelf: &Shelf| shelf.committed.lock().unwrap().clone().unwrap().fingerprints;
    assert_eq!(prints(&shelf), prints(&once.shelf));
}

#[test]
fn a_gap_in_the_source_is_named_before_anything_is_written() {
    let whole = Whole::new("layers.3.w", Dtype::F32, &[8, 8]);
    let mut regions = grid(&[8, 8], &[2, 2]);
    regions.remove(2);
    let source = MemSource::new(&[(whole, regions, Stored::Packed)], 1, Proof::Nothing);
    let plan = plan(&source, vec![grid(&[8, 8], &[1, 1]).into_iter().zip(0..).collect()]);
    let mut sink = MemSink::new(ALL, &Arc::default());
    let error = run(&source, &mut sink, &plan, &options(2), &Silent, &Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("layers.3.w") && error.to_string().contains("[4..8, 0..4]"),
        "{error}"
    );
    assert!(sink.shelf.opened.lock().unwrap().is_empty());
    let whole = Region::new(&[0, 0], &[8, 8]).unwrap();
    assert_eq!(read_region(&source, 0, &whole, Verify::None).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn what_is_held_twice_does_not_make_up_for_what_is_not_held() {
    let whole = Whole::new("w", Dtype::F32, &[8, 4]);
    let mut source =
        MemSource::new(&[(whole.clone(), grid(&[8, 4], &[2, 1]), Stored::Packed)], 1, Proof::Blocks);
    let mut chunks: Vec<_> = source.catalog.tensors[0].chunks.iter().collect();
    chunks[0].region = Region::new(&[1, 0], &[4, 4]).unwrap();
    source.catalog.tensors[0].chunks = chunks.into();
    let all = Region::whole(&whole.entry.shape).unwrap();
    let error = read_region(&source, 0, &all, Verify::Records).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("w") && error.to_string().contains("hold more than once"), "{error}");
    for rows in [0..2, 4..5] {
        let some = Region::new(&[rows.start, 0], &[rows.end - rows.start, 4]).unwrap();
        assert!(read_region(&source, 0, &some, Verify::Records).is_err(), "{some}");
    }
    let good = Region::new(&[6, 0], &[2, 4]).unwrap();
    assert_eq!(read_region(&source, 0, &good, Verify::Records).unwrap(), whole.region(&good));
}

#[test]
fn ten_rows_of_a_thousand_read_little_more_than_themselves() {
    let whole = Whole::new("w", Dtype::F32, &[1000, 4000]);
    let rows = Region::new(&[500, 0], &[10, 4000]).unwrap();
    let columns = Region::new(&[0, 500], &[1000, 10]).unwrap();
    for region in [rows, columns] {
        let source = MemSource::new(
            &[(whole.clone(), grid(&[1000, 4000], &[2, 2]), Stored::Packed)],
            2,
            Proof::Blocks,
        );
        let reader = super::RegionReader::new(&source, Verify::None);
        let mut bytes = vec![0; 160_000.min(usize::try_from(region.elements() * 4).unwrap())];
        reader.read_into(0, &region, &mut bytes).unwrap();
        assert_eq!(bytes, whole.region(&region));
        assert_eq!(reader.counts().0, bytes.len() as u64);
        let reader = super::RegionReader::new(&source, Verify::Records);
        let few = Region::new(&[500, 0], &[10, 2000]).unwrap();
        let mut bytes = vec![0; 80_000];
        reader.read_into(0, &few, &mut bytes).unwrap();
        assert_eq!(reader.counts(), (1 << 20, 1));
    }
}

#[test]
fn a_plan_of_nothing_and_empty_tensors_makes_files_all_the_same() {
    let whole = Whole::new("e", Dtype::F32, &[0, 8]);
    let source = MemSource::new(&[(whole.clone(), grid(&[0, 8], &[1, 1]), Stored::Packed)], 1, Proof::Blocks);
    let plan = plan(&source, vec![vec![(Region::whole(&Shape::new(&[0, 8])).unwrap(), 0)]]);
    assert_eq!(plan.sources, [SourceRef::plain(0)]);
    let (sink, committed, report) = copy(&source, &plan, ALL).unwrap();
    check(&sink, &plan, &[whole]);
    assert_eq!((committed.files, report.proven), (1, 1));
}

#[test]
fn a_box_that_one_chunk_holds_a_half_of_is_not_read() {
    let whole = Whole::new("w", Dtype::F32, &[4, 4]);
    let half = Region::new(&[0, 0], &[2, 4]).unwrap();
    let source = MemSource::new(&[(whole.clone(), vec![half.clone()], Stored::Packed)], 1, Proof::Nothing);
    assert_eq!(read_region(&source, 0, &half, Verify::None).unwrap(), whole.region(&half));
    for region in [Region::whole(&Shape::new(&[4, 4])).unwrap(), Region::new(&[1, 1], &[2, 2]).unwrap()] {
        let error = read_region(&source, 0, &region, Verify::None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}
