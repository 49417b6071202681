//! Tests of gathering against a plain file in memory.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::super::block::GRAIN;
use super::*;

/// A file in memory that looks after what it is asked for.
#[derive(Debug, Default)]
struct Fake {
    bytes: Mutex<Vec<u8>>,
    is_busy: AtomicBool,
    /// Bytes that came in blocks, and those of them that were aligned; bytes that came otherwise.
    told: Mutex<(usize, usize, usize)>,
}

impl Fake {
    fn write_at(&self, bytes: &[u8], offset: u64) {
        assert!(!self.is_busy.swap(true, Ordering::SeqCst), "two write one file at the same time");
        let mut file = self.bytes.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let end = start + bytes.len();
        let len = file.len().max(end);
        file.resize(len, 0);
        file[start..end].copy_from_slice(bytes);
        self.is_busy.store(false, Ordering::SeqCst);
    }
}

impl Out for Fake {
    fn write(&self, block: &Block) -> io::Result<()> {
        for piece in block.pieces() {
            if piece.is_aligned {
                assert!(piece.offset.is_multiple_of(GRAIN as u64) && piece.bytes.len().is_multiple_of(GRAIN));
                self.told.lock().unwrap().1 += piece.bytes.len();
            }
            self.told.lock().unwrap().0 += piece.bytes.len();
            self.write_at(piece.bytes, piece.offset);
        }
        Ok(())
    }

    fn write_through(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.told.lock().unwrap().2 += bytes.len();
        self.write_at(bytes, offset);
        Ok(())
    }
}

fn gathered(blocks: usize) -> Gathered<Fake> {
    Gathered::new(Fake::default(), Arc::new(Pool::new(blocks)))
}

fn content(gathered: &Gathered<Fake>) -> Vec<u8> {
    gathered.settle().unwrap();
    gathered.flusher.out().bytes.lock().unwrap().clone()
}

/// Bytes in blocks, those of them that were aligned, and bytes that had no room in a block.
fn told(gathered: &Gathered<Fake>) -> (usize, usize, usize) {
    gathered.settle().unwrap();
    *gathered.flusher.out().told.lock().unwrap()
}

fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

#[test]
fn a_file_that_is_written_in_order_is_aligned_but_for_its_last_bytes() {
    let (file, bytes) = (gathered(6), sample(5 * BLOCK + 12_345));
    for (nth, part) in bytes.chunks(300_000).enumerate() {
        file.write(part, nth as u64 * 300_000).unwrap();
    }
    assert_eq!(told(&file), (bytes.len(), 5 * BLOCK, 0));
    assert_eq!(content(&file), bytes);
}

#[test]
fn a_head_that_comes_last_costs_no_more_than_its_grains() {
    let (file, bytes) = (gathered(8), sample(9 * BLOCK));
    let head = 70_000;
    for (nth, part) in bytes[head..].chunks(BLOCK).enumerate() {
        file.write(part, (head + nth * BLOCK) as u64).unwrap();
    }
    file.write(&bytes[..head], 0).unwrap();
    let (in_blocks, aligned, beside) = told(&file);
    assert_eq!((in_blocks, beside), (bytes.len(), 0));
    assert!(aligned >= bytes.len() - 2 * GRAIN, "{aligned}");
    assert_eq!(content(&file), bytes);
}

#[test]
fn without_memory_everything_goes_through_the_cache() {
    let (file, bytes) = (gathered(0), sample(2 * BLOCK + 1));
    file.write(&bytes, 0).unwrap();
    assert_eq!(told(&file), (0, 0, bytes.len()));
    assert_eq!(content(&file), bytes);
}

#[test]
fn files_that_share_little_memory_do_not_wait_for_each_other() {
    let (pool, bytes) = (Arc::new(Pool::new(3)), sample(3 * BLOCK));
    let files: Vec<_> = (0..6).map(|_| Gathered::new(Fake::default(), Arc::clone(&pool))).collect();
    // Each of them leaves a block half full.
    for (nth, part) in bytes.chunks(BLOCK / 2 + 1).enumerate() {
        for file in &files {
            file.write(part, (nth * (BLOCK / 2 + 1)) as u64).unwrap();
        }
    }
    assert!(files.iter().all(|file| content(file) == bytes));
}

#[test]
fn threads_that_write_one_file_lose_nothing() {
    let (file, bytes) = (gathered(7), sample(8 * BLOCK));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                for (nth, part) in bytes.chunks(100_000).enumerate().filter(|(nth, _)| nth % 4 == thread) {
                    file.write(part, nth as u64 * 100_000).unwrap();
                }
            });
        }
    });
    assert_eq!(content(&file), bytes);
}

#[derive(Debug, Clone)]
struct Write {
    offset: usize,
    len: usize,
    fill: u8,
    then_read: bool,
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let offset = prop_oneof![0..6 * BLOCK, (0..96_usize).prop_map(|grain| grain * GRAIN)];
    let len = prop_oneof![1..200_usize, 1..3 * BLOCK, (1..40_usize).prop_map(|grains| grains * GRAIN)];
    let write = (offset, len, any::<u8>(), prop::bool::weighted(0.1))
        .prop_map(|(offset, len, fill, then_read)| Write { offset, len, fill, then_read });
    prop::collection::vec(write, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_writes_in_any_order_over_each_other_leave_what_a_plain_file_has(
        writes in writes(), blocks in 0..7_usize
    ) {
        let (file, mut plain) = (gathered(blocks), Vec::new());
        for write in &writes {
            let end = write.offset + write.len;
            let bytes = vec![write.fill; write.len];
            file.write(&bytes, write.offset as u64).unwrap();
            let len = plain.len().max(end);
            plain.resize(len, 0);
            plain[write.offset..end].copy_from_slice(&bytes);
            if write.then_read {
                prop_assert!(content(&file) == plain);
            }
        }
        prop_assert!(content(&file) == plain);
    }
}
