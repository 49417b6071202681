//! Records with a CRC-32: whoever makes a target visible has judged all that it was copied from.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::*;
use crate::{
    Catalog, FileId, Finding, Format, Source,
    engine::{Ending, run_share},
};

const MIB: usize = 1 << 20;

/// A tensor of 1024 columns in one record, without a fingerprint; with a byte flipped.
fn source(mib: u64, flipped: Option<usize>) -> MemSource {
    let shape = [256 * mib, 1024];
    let tensors = [(Whole::new("w", Dtype::F32, &shape), grid(&shape, &[1, 1]), Stored::Packed)];
    let mut source = MemSource::new(&tensors, 1, Proof::Records);
    source.catalog.tensors[0].fingerprint = None;
    if let Some(at) = flipped {
        source.files[0][24 + at] ^= 8;
    }
    source
}

/// Halves of the rows, each in a file of its own.
fn halves(source: &MemSource) -> CopyPlan {
    let shape = source.catalog.registry.entries()[0].shape.clone();
    plan(source, vec![grid(&shape, &[2, 1]).into_iter().zip(0..).collect()])
}

fn share(
    source: &MemSource,
    shelf: &Arc<Shelf>,
    mine: Option<std::ops::Range<usize>>,
) -> Result<(Ending, Report)> {
    let mut sink = MemSink { mine, ..MemSink::new(ALL, shelf) };
    run_share(source, &mut sink, &halves(source), &options(2), &Silent, &Cancel::new())
}

fn assert_told(error: &crate::Error, shelf: &Shelf) {
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(["blob-0", "CRC-32", "w ["].iter().all(|part| text.contains(part)), "{text}");
    assert!(shelf.committed.lock().unwrap().is_none());
}

#[test]
fn of_two_workers_that_copy_half_a_record_each_the_one_that_commits_judges_it() {
    for flipped in [None, Some(MIB / 2), Some(3 * MIB)] {
        let (source, shelf) = (source(4, flipped), Arc::<Shelf>::default());
        let (ending, report) = share(&source, &shelf, Some(0..1)).unwrap();
        assert_eq!((ending, report.bytes_verified), (Ending::Waiting { missing: 1 }, 0));
        let last = share(&source, &shelf, Some(1..2));
        match flipped {
            None => assert_eq!(last.unwrap().1.bytes_verified, 4 << 20),
            Some(_) => assert_told(&last.unwrap_err(), &shelf),
        }
    }
}

#[test]
fn a_run_that_goes_on_judges_the_records_of_what_was_finished_before() {
    for flipped in [None, Some(MIB / 2)] {
        let (source, shelf) = (source(4, flipped), Arc::<Shelf>::default());
        share(&source, &shelf, Some(0..1)).unwrap();
        let rest = share(&source, &shelf, None);
        match flipped {
            None => assert_eq!(rest.unwrap().1.skipped_files, 1),
            Some(_) => assert_told(&rest.unwrap_err(), &shelf),
        }
        let all = share(&source, &shelf, None);
        assert_eq!(all.is_err(), flipped.is_some(), "also where nothing was left to copy");
    }
}

#[test]
fn a_view_of_a_part_of_a_storage_is_proven_by_all_of_it() {
    for flipped in [None, Some(MIB / 2), Some(3 * MIB)] {
        let mut source = source(4, flipped);
        let shape = [256, 1024];
        let mut chunk = source.catalog.tensors[0].chunks.iter().next().unwrap();
        chunk.region = Region::whole(&Shape::new(&shape)).unwrap();
        let mut catalog = Catalog::new(Format::Native);
        catalog.files = source.catalog.files.clone();
        let chunks = crate::Chunks { chunks: vec![chunk].into(), ..crate::Chunks::default() };
        catalog.push(Whole::new("w", Dtype::F32, &shape).entry, chunks).unwrap();
        source.catalog = catalog;
        let shelf = Arc::<Shelf>::default();
        let copied = share(&source, &shelf, None);
        match flipped {
            None => assert_eq!(copied.unwrap().1.bytes_verified, 4 << 20),
            Some(_) => assert_told(&copied.unwrap_err(), &shelf),
        }
        assert_eq!(source.most_reads(), 1);
    }
}

/// A file one of whose bytes changes once it was read.
#[derive(Debug)]
struct Fickle(MemSource, AtomicBool);

impl Source for Fickle {
    fn catalog(&self) -> &Catalog {
        self.0.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(file, offset, buf)?;
        if offset <= 1000 && 1000 < offset + buf.len() as u64 && self.1.swap(true, Ordering::SeqCst) {
            buf[usize::try_from(1000 - offset).unwrap()] ^= 1;
        }
        Ok(())
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

#[test]
fn bytes_that_are_read_again_must_be_those_that_were_read() {
    let near = source(12, None);
    let shape = near.catalog.registry.entries()[0].shape.clone();
    let plan = plan(&near, vec![grid(&shape, &[1, 2]).into_iter().zip(0..).collect()]);
    let passes = RunOptions { open_files: NonZeroUsize::MIN, ..options(1) };
    let go = |source: &dyn Source| {
        let mut sink = MemSink::new(ALL, &Arc::default());
        run(source, &mut sink, &plan, &passes, &Silent, &Cancel::new())
    };
    let (_, report) = go(&near).unwrap();
    assert_eq!((report.passes, report.bytes_verified), (2, 12 << 20));
    assert_eq!(near.most_reads(), 2, "a cache of 8 MiB can't keep the columns for the second file");
    let error = go(&Fickle(near, AtomicBool::new(false))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("read again"), "{error}");
}
