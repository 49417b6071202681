//! Tests of blobs in parts.

use futures::executor::block_on;
use object_store::memory::InMemory;

use super::*;
use crate::store::counted::CountedStore;
use crate::store::object_path;

fn writer(store: &Arc<InMemory>, size: u64, part: u64) -> Box<PartsWriter> {
    let path = object_path("x").unwrap();
    let mut writer = PartsWriter::new(store.clone(), Waiter::Inside, path, "root/x".to_owned(), size);
    writer.part = part;
    Box::new(writer)
}

fn content(store: &InMemory) -> Option<Bytes> {
    let got = block_on(store.get(&object_path("x").unwrap())).ok()?;
    block_on(got.bytes()).ok()
}

#[test]
fn pieces_of_any_size_in_any_order_make_the_same_blob() {
    for (size, part, piece, stride) in
        [(1000_u64, 100, 7, 11), (1000, 100, 250, 3), (1000, 333, 1, 7), (300, 100, 100, 2), (99, 100, 10, 3)]
    {
        let store = Arc::new(InMemory::new());
        let all: Vec<u8> = (0..size).map(|at| at.to_le_bytes()[0]).collect();
        let blob = writer(&store, size, part);
        let pieces: Vec<_> = all.chunks(piece).enumerate().collect();
        for first in 0..stride {
            for (index, bytes) in pieces.iter().skip(first).step_by(stride) {
                blob.write_at((index * piece) as u64, bytes).unwrap();
            }
        }
        assert_eq!(content(&store), None);
        blob.finish().unwrap();
        assert_eq!(content(&store).unwrap(), all);
    }
}

#[test]
fn whole_parts_leave_memory_when_their_turn_comes() {
    let store = Arc::new(InMemory::new());
    let blob = writer(&store, 1000, 100);
    blob.write_at(100, &[1; 300]).unwrap();
    assert_eq!(blob.lock().held.len(), 3);
    blob.write_at(0, &[1; 100]).unwrap();
    let parts = blob.lock();
    assert_eq!((parts.held.len(), parts.next), (0, 4));
}

#[test]
fn writing_too_far_ahead_is_an_error_and_ends_the_blob() {
    let store = Arc::new(InMemory::new());
    let blob = writer(&store, 4 * HELD, HELD);
    blob.write_at(HELD, b"a").unwrap();
    blob.write_at(2 * HELD, b"b").unwrap();
    assert!(matches!(blob.write_at(3 * HELD, b"c"), Err(StoreError::Unsupported { .. })));
    assert!(blob.lock().failed);
}

#[test]
fn a_blob_that_turns_out_to_fit_into_one_part_is_created_and_not_uploaded() {
    let memory = Arc::new(InMemory::new());
    let counted = Arc::new(CountedStore::new(memory.clone()));
    let up_to_1000 = || {
        let path = object_path("x").unwrap();
        let mut writer = PartsWriter::new(counted.clone(), Waiter::Inside, path, "root/x".to_owned(), 1000);
        writer.part = 100;
        Box::new(writer)
    };
    for (size, asked) in [
        (0_usize, &["PUT x"][..]),
        (60, &["PUT x"]),
        (100, &["POST x", "HEAD x"]),
        (160, &["POST x", "HEAD x"]),
    ] {
        let blob = up_to_1000();
        blob.write_at(0, &vec![7; size]).unwrap();
        blob.finish_at(size as u64).unwrap();
        assert_eq!(content(&memory).unwrap(), vec![7; size]);
        assert_eq!(counted.take(), asked, "{size}");
        let second = up_to_1000();
        second.write_at(0, &vec![8; size]).unwrap();
        assert!(matches!(second.finish_at(size as u64), Err(StoreError::AlreadyExists { .. })));
        assert_eq!(content(&memory).unwrap(), vec![7; size]);
        drop(counted.take());
        block_on(memory.delete(&object_path("x").unwrap())).unwrap();
    }
}

#[test]
fn huge_blobs_have_parts_that_a_store_takes() {
    let part = |size| {
        let (store, path) = (Arc::new(InMemory::new()), object_path("x").unwrap());
        PartsWriter::new(store, Waiter::Inside, path, String::new(), size).part
    };
    assert_eq!(part(0), PART);
    assert_eq!(part(70 << 30), PART);
    let size = 5_u64 << 40;
    assert!(size.div_ceil(part(size)) <= MOST_PARTS);
}
