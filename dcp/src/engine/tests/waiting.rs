//! Sources behind a network: as many reads on their way as hide its latency.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use fqn::Dtype;

use super::testing::{MemSink, MemSource, Proof, Stored, Whole, grid, plan};
use crate::{
    Cancel, Catalog, FileId, Finding, Needs, Result, Silent, Source,
    digest::BlockTable,
    engine::{RunOptions, run, threads},
};

/// A source each of whose reads takes a while.
#[derive(Debug)]
struct Far {
    near: MemSource,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Source for Far {
    fn catalog(&self) -> &Catalog {
        self.near.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        let read = self.near.read_exact_at(file, offset, buf);
        self.now.fetch_sub(1, Ordering::SeqCst);
        read
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.near.blocks(file)
    }

    fn waits(&self) -> bool {
        true
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        self.near.audit()
    }
}

#[test]
fn many_reads_are_on_their_way_at_once_through_a_network_and_each_byte_is_still_read_once() {
    let shape = [4096, 2048];
    let tensors = [(Whole::new("w", Dtype::F32, &shape), grid(&shape, &[4, 1]), Stored::Packed)];
    let near = MemSource::new(&tensors, 4, Proof::Blocks);
    let plan = plan(&near, vec![grid(&shape, &[1, 4]).into_iter().zip(0..).collect()]);
    let far = Far { near, now: AtomicUsize::new(0), most: AtomicUsize::new(0) };
    let options = RunOptions { threads: threads(&[&far]), max_memory: 128 << 20, ..RunOptions::default() };
    let mut sink = MemSink::new(Needs { crc32: false, blocks: true }, &Arc::default());
    let (_, report) = run(&far, &mut sink, &plan, &options, &Silent, &Cancel::new()).unwrap();
    assert!(far.most.into_inner() >= 8);
    assert!((report.read_amplification - 1.0).abs() < 1e-9, "{report:?}");
    assert_eq!((far.near.most_reads(), report.proven), (1, 1));
}
