//! What must not happen to the process, whatever a source does: to wait for ever, to take memory for what is not there.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::{
    Catalog, Chunk, Chunks, FileEntry, FileId, Finding, Format, Location, Source,
    ops::verify::{VerifyOptions, verify},
};

/// A source whose code fails at the read of this number.
#[derive(Debug)]
struct Torn(MemSource, AtomicUsize);

impl Source for Torn {
    fn catalog(&self) -> &Catalog {
        self.0.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        assert_ne!(self.1.fetch_sub(1, Ordering::SeqCst), 0, "as the test wants it");
        self.0.read_exact_at(file, offset, buf)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// Phases that have begun and not ended.
#[derive(Debug, Default)]
struct Phases(AtomicUsize);

impl Progress for Phases {
    fn begin(&self, _: &str, _: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn advance(&self, _: u64) {}
    fn end(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_thread_that_panics_ends_the_run_and_nobody_waits_for_it() {
    let shape = [4096, 2048];
    for (threads, at) in [(4, 0), (4, 9), (1, 3)] {
        let tensors = [(Whole::new("w", Dtype::F32, &shape), grid(&shape, &[1, 1]), Stored::Packed)];
        let near = MemSource::new(&tensors, 1, Proof::Nothing);
        let plan = plan(&near, vec![grid(&shape, &[2, 2]).into_iter().zip(0..).collect()]);
        let options = RunOptions { open_files: NonZeroUsize::new(2).unwrap(), ..options(threads) };
        let (shelf, phases) = (Arc::<Shelf>::default(), Phases::default());
        let mut sink = MemSink::new(ALL, &shelf);
        let torn = Torn(near, AtomicUsize::new(at));
        let error = run(&torn, &mut sink, &plan, &options, &phases, &Cancel::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(shelf.committed.lock().unwrap().is_none());
        assert_eq!(phases.0.into_inner(), 0, "a phase that began has ended");
    }
}

#[test]
fn a_manifest_that_claims_exabytes_is_refused_without_memory_for_them() {
    let entry =
        fqn::Entry::new(fqn::Fqn::new("w").unwrap(), fqn::Role::Param, Dtype::F32, Shape::new(&[1 << 58]));
    let mut catalog = Catalog::new(Format::Native);
    let region = Region::whole(&entry.shape).unwrap();
    let chunk = Chunk { region: region.clone(), file: FileId(0), offset: 0, strides: None, record: None };
    catalog.push(entry, Chunks { chunks: vec![chunk].into(), ..Chunks::default() }).unwrap();
    let (path, location) = ("blob-0".to_owned(), Location::InStep);
    catalog.files.push(FileEntry { path, location, size: 1 << 60, logical: None, blocks: None });
    catalog.check().unwrap();
    let source = MemSource {
        catalog,
        files: vec![vec![0; 100]],
        tables: vec![None],
        seen: Mutex::new(vec![vec![0; 100]]),
    };
    let report = verify(&source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    assert_eq!((report.bytes, report.checksums.unproven_bytes), (0, 1 << 60));
    let some = Region::new(&[1 << 57], &[4]).unwrap();
    assert_eq!(read_region(&source, 0, &some, Verify::Records).unwrap_err().kind(), ErrorKind::Corrupt);
    let plan = plan(&source, vec![vec![(region, 0)]]);
    let mut sink = MemSink::new(ALL, &Arc::default());
    let error = run(&source, &mut sink, &plan, &options(2), &Silent, &Cancel::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(sink.layout.files.is_empty(), "not even a layout was made");
}
