//! Blobs: large objects, written out of order by many threads, visible only when they are whole.

use std::thread;

use futures::executor::block_on;
use object_store::ObjectStoreExt;

use super::{Outcome, at, names};
use crate::store::blob::BlobWriter;
use crate::store::error::StoreError;
use crate::store::root::Root;

/// Written from its end to its begin, in pieces that fit nothing, small and large.
///
/// # Errors
/// What the store says.
pub fn a_blob_appears_when_it_is_finished(root: &Root) -> Outcome {
    for (name, size, piece) in
        [("empty", 0_usize, 1), ("small", 100_003, 997), ("large", (20 << 20) + 7, 999_983)]
    {
        let name = at(name)?;
        let content: Vec<u8> = (0..size).map(|i| (i % 251).to_le_bytes()[0]).collect();
        let blob = root.blob(&name, size as u64)?;
        for (index, part) in content.chunks(piece).enumerate().collect::<Vec<_>>().into_iter().rev() {
            blob.write_at((index * piece) as u64, part)?;
        }
        assert_eq!(root.get_opt(&name)?, None, "visible before it is finished");
        assert!(names(root, None)?.iter().all(|listed| listed != name.as_ref()));
        blob.finish()?;
        assert!(root.get(&name)? == content, "{name} has other bytes");
    }
    Ok(())
}

/// A blob with bytes missing is an error that names them.
///
/// # Errors
/// What the store says.
pub fn a_blob_is_never_finished_with_a_gap(root: &Root) -> Outcome {
    let name = at("gap")?;
    let blob = root.blob(&name, 10)?;
    blob.write_at(0, &[1; 4])?;
    blob.write_at(7, &[1; 3])?;
    let finished = blob.finish();
    assert!(matches!(&finished, Err(StoreError::Gap { range, .. }) if *range == (4..7)), "{finished:?}");
    assert_eq!(names(root, None)?, [""; 0]);
    Ok(())
}

/// Writes that overlap, or end beyond the size, are errors.
///
/// # Errors
/// What the store says.
pub fn no_byte_of_a_blob_is_written_twice(root: &Root) -> Outcome {
    let blob = root.blob(&at("twice")?, 10)?;
    blob.write_at(2, &[1; 4])?;
    for (offset, len) in [(5, 1), (0, 3), (0, 10), (9, 2), (11, 1), (u64::MAX, 1)] {
        let written = blob.write_at(offset, &vec![2; len]);
        assert!(matches!(written, Err(StoreError::BadWrite { .. })), "{offset}+{len}: {written:?}");
    }
    blob.write_at(0, &[0; 2])?;
    blob.write_at(6, &[3; 4])?;
    blob.finish()?;
    assert_eq!(root.get(&at("twice")?)?.as_ref(), [0, 0, 1, 1, 1, 1, 3, 3, 3, 3]);
    Ok(())
}

/// Neither aborted nor forgotten blobs leave anything behind.
///
/// # Errors
/// What the store says.
pub fn a_dropped_blob_leaves_nothing(root: &Root) -> Outcome {
    for size in [10_u64, 9 << 20] {
        let blob = root.blob(&at("dropped")?, size)?;
        blob.write_at(0, &vec![1; usize::try_from(size)?])?;
        drop(blob);
        let blob = root.blob(&at("aborted")?, size)?;
        blob.write_at(0, &[1; 10])?;
        blob.abort();
        assert_eq!(names(root, None)?, [""; 0]);
    }
    Ok(())
}

/// Of two blobs of one name, one is finished.
///
/// # Errors
/// What the store says.
pub fn a_blob_takes_no_name_that_is_taken(root: &Root) -> Outcome {
    for (name, size) in [("small", 3_u64), ("large", 9 << 20)] {
        let (name, len) = (at(name)?, usize::try_from(size)?);
        let (first, second) = (root.blob(&name, size)?, root.blob(&name, size)?);
        first.write_at(0, &vec![1; len])?;
        second.write_at(0, &vec![2; len])?;
        first.finish()?;
        let finished = second.finish();
        assert!(matches!(finished, Err(StoreError::AlreadyExists { .. })), "{finished:?}");
        assert!(root.get(&name)?.iter().all(|byte| *byte == 1));
    }
    Ok(())
}

/// The multipart interface of the store itself.
///
/// # Errors
/// What the store says.
pub fn an_upload_in_parts_appears_at_its_end(root: &Root) -> Outcome {
    let (store, name) = (root.object_store(), at("parts/x")?);
    let mut upload = block_on(store.put_multipart(&name))?;
    let (first, second) =
        (upload.put_part(vec![1_u8; 5 << 20].into()), upload.put_part(vec![2_u8; 3].into()));
    block_on(second)?;
    block_on(first)?;
    assert_eq!(root.get_opt(&name)?, None);
    block_on(upload.complete())?;
    assert_eq!(root.head(&name)?.size, (5 << 20) + 3);
    assert_eq!(root.get_range(&name, (5 << 20) - 1..(5 << 20) + 1)?.as_ref(), [1, 2]);
    let mut upload = block_on(store.put_multipart(&at("parts/y")?))?;
    block_on(upload.put_part(vec![1_u8; 3].into()))?;
    block_on(upload.abort())?;
    drop(upload);
    assert_eq!(names(root, None)?, ["parts/x"]);
    Ok(())
}

/// Four threads write a blob of several parts, each every fourth piece, pieces crossing the borders of parts.
///
/// # Errors
/// What the store says.
pub fn a_blob_of_many_parts_is_written_by_many_threads(root: &Root) -> Outcome {
    const PIECE: usize = (1 << 20) - 3;
    let name = at("step-1/data/many")?;
    let content: Vec<u8> =
        (0..(33_usize << 20) + 5).map(|i| (i % 253).to_le_bytes()[0] ^ (i >> 20).to_le_bytes()[0]).collect();
    let blob = root.blob(&name, content.len() as u64)?;
    let write = |thread: usize, blob: &dyn BlobWriter| -> Result<(), StoreError> {
        let pieces = content.chunks(PIECE).enumerate().skip(thread).step_by(4);
        pieces.into_iter().try_for_each(|(index, piece)| blob.write_at((index * PIECE) as u64, piece))
    };
    thread::scope(|scope| {
        let blob = &*blob;
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || write(thread, blob))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| -> Outcome { Ok(thread.join().map_err(|_| "a thread panicked")??) })
    })?;
    blob.finish()?;
    assert!(root.get(&name)? == content, "other bytes");
    for (from, to) in [((8 << 20) - 1, (8 << 20) + 1), (0, 1), (content.len() - 1, content.len())] {
        assert!(root.get_range(&name, from as u64..to as u64)? == content[from..to], "{from}..{to}");
    }
    Ok(())
}
