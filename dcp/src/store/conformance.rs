//! What every store must do, one function per behaviour.
//!
//! Each works on a fresh root, names what it expects by assertion, and returns what failed otherwise. [`all`] runs them one after the other.

use std::error::Error;

use bytes::Bytes;
use futures::executor::block_on;
use object_store::ObjectStoreExt;

use super::error::StoreError;
use super::name::{ObjectPath, object_path};
use super::root::{Put, Root};

/// The outcome of one behaviour.
pub type Outcome = Result<(), Box<dyn Error>>;

/// A behaviour, with its name.
pub type Behaviour = (&'static str, fn(&Root) -> Outcome);

/// All behaviours.
pub const BEHAVIOURS: &[Behaviour] = &[
    ("a name is created once", a_name_is_created_once),
    ("a missing object is not found", a_missing_object_is_not_found),
    ("the same bytes are put twice, others never", the_same_bytes_are_put_twice),
    ("ranges are exact or refused", ranges_are_exact_or_refused),
    ("listings are sorted and end at segments", listings_are_sorted),
    ("a listing shows what lies right below", a_listing_shows_what_lies_right_below),
    ("a deleted object is gone", a_deleted_object_is_gone),
    ("a blob appears when it is finished", a_blob_appears_when_it_is_finished),
    ("a blob is never finished with a gap", a_blob_is_never_finished_with_a_gap),
    ("no byte of a blob is written twice", no_byte_of_a_blob_is_written_twice),
    ("a dropped blob leaves nothing", a_dropped_blob_leaves_nothing),
    ("a finished blob takes no name that is taken", a_blob_takes_no_name_that_is_taken),
    ("an upload in parts appears at its end", an_upload_in_parts_appears_at_its_end),
    ("a copy may be told to keep what is there", a_copy_may_keep_what_is_there),
    ("names with tricks are refused", names_with_tricks_are_refused),
    ("the probe passes and leaves nothing", the_probe_passes),
];

/// Runs all behaviours, each on a root that `fresh` makes.
///
/// # Errors
/// The first that fails, by name.
pub fn all(fresh: impl Fn() -> Root) -> Outcome {
    BEHAVIOURS.iter().try_for_each(|(name, behaviour)| {
        behaviour(&fresh()).map_err(|error| format!("{name}: {error}").into())
    })
}

fn at(name: &str) -> Result<ObjectPath, StoreError> {
    object_path(name)
}

fn names(root: &Root, prefix: Option<&str>) -> Result<Vec<String>, StoreError> {
    let prefix = prefix.map(at).transpose()?;
    Ok(root.list(prefix.as_ref())?.into_iter().map(|info| info.path.to_string()).collect())
}

/// The second create of a name changes nothing.
///
/// # Errors
/// What the store says.
pub fn a_name_is_created_once(root: &Root) -> Outcome {
    let name = at("a/b")?;
    assert_eq!(root.put_create(&name, Bytes::from_static(b"one"))?, Put::Created);
    assert_eq!(root.put_create(&name, Bytes::from_static(b"two"))?, Put::Exists);
    assert_eq!(root.get(&name)?, "one");
    assert_eq!(root.head(&name)?.size, 3);
    Ok(())
}

/// A missing object is `NotFound` for every way of reading, directories included.
///
/// # Errors
/// What the store says.
pub fn a_missing_object_is_not_found(root: &Root) -> Outcome {
    let _ = root.put_create(&at("dir/x")?, Bytes::new())?;
    for name in ["none", "dir", "dir/none", "none/x"] {
        let name = at(name)?;
        assert_eq!(root.get_opt(&name)?, None);
        assert!(matches!(root.get(&name), Err(StoreError::NotFound { .. })), "get {name}");
        assert!(matches!(root.head(&name), Err(StoreError::NotFound { .. })), "head {name}");
        assert!(matches!(root.get_range(&name, 0..1), Err(StoreError::NotFound { .. })), "range {name}");
        assert!(
            matches!(root.read_exact_at(&name, 0, &mut [0]), Err(StoreError::NotFound { .. })),
            "read {name}"
        );
    }
    Ok(())
}

/// `put_same` takes the same bytes again, and no others.
///
/// # Errors
/// What the store says.
pub fn the_same_bytes_are_put_twice(root: &Root) -> Outcome {
    let name = at("step/manifest-1")?;
    root.put_same(&name, Bytes::from_static(b"one"))?;
    root.put_same(&name, Bytes::from_static(b"one"))?;
    for other in ["two", "on", "one!"] {
        let put = root.put_same(&name, Bytes::from_static(other.as_bytes()));
        assert!(matches!(put, Err(StoreError::AlreadyExists { .. })), "{put:?}");
    }
    Ok(())
}

/// A range is read exactly, or the error tells the size of the object.
///
/// # Errors
/// What the store says.
pub fn ranges_are_exact_or_refused(root: &Root) -> Outcome {
    let name = at("digits")?;
    let _ = root.put_create(&name, Bytes::from_static(b"0123456789"))?;
    assert_eq!(root.get_range(&name, 0..10)?, "0123456789");
    assert_eq!(root.get_range(&name, 3..4)?, "3");
    assert_eq!(root.get_range(&name, 10..10)?, "");
    for range in [5..11, 10..11, 11..12, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
        let read = root.get_range(&name, range.clone());
        assert!(matches!(read, Err(StoreError::OutOfRange { size: 10, .. })), "{range:?}: {read:?}");
    }
    let mut buf = [0; 4];
    root.read_exact_at(&name, 6, &mut buf)?;
    assert_eq!(&buf, b"6789");
    assert!(matches!(root.read_exact_at(&name, 7, &mut buf), Err(StoreError::OutOfRange { size: 10, .. })));
    assert!(matches!(root.get_at_most(&name, 9), Err(StoreError::TooLarge { size: 10, limit: 9, .. })));
    Ok(())
}

/// A listing is sorted by the whole name, and a prefix ends at a segment.
///
/// # Errors
/// What the store says.
pub fn listings_are_sorted(root: &Root) -> Outcome {
    let all = ["a-b/x", "a.b", "a/b/c", "a/b.c", "a/z", "ab", "b/a"];
    for name in all.iter().rev() {
        let _ = root.put_create(&at(name)?, Bytes::new())?;
    }
    let mut sorted = all.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(names(root, None)?, sorted);
    assert_eq!(names(root, Some("a"))?, ["a/b.c", "a/b/c", "a/z"]);
    assert_eq!(names(root, Some("none"))?, [""; 0]);
    Ok(())
}

/// Objects and directories right below a prefix.
///
/// # Errors
/// What the store says.
pub fn a_listing_shows_what_lies_right_below(root: &Root) -> Outcome {
    for name in ["top", "s2/x", "s1/data/y", "s1/m"] {
        let _ = root.put_create(&at(name)?, Bytes::from_static(b"12"))?;
    }
    let top = root.list_dir(None)?;
    assert_eq!(top.objects.iter().map(|o| (o.path.as_ref(), o.size)).collect::<Vec<_>>(), [("top", 2)]);
    assert_eq!(top.dirs, [at("s1")?, at("s2")?]);
    let below = root.list_dir(Some(&at("s1")?))?;
    assert_eq!(below.objects.iter().map(|o| o.path.as_ref()).collect::<Vec<_>>(), ["s1/m"]);
    assert_eq!(below.dirs, [at("s1/data")?]);
    Ok(())
}

/// What was deleted is not found, and its name is free.
///
/// # Errors
/// What the store says.
pub fn a_deleted_object_is_gone(root: &Root) -> Outcome {
    let name = at("a/x")?;
    let _ = root.put_create(&name, Bytes::from_static(b"one"))?;
    root.read_exact_at(&name, 0, &mut [0; 3])?;
    root.delete(&name)?;
    assert_eq!(root.get_opt(&name)?, None);
    assert_eq!(root.put_create(&name, Bytes::from_static(b"two"))?, Put::Created);
    let mut buf = [0; 3];
    root.read_exact_at(&name, 0, &mut buf)?;
    assert_eq!(&buf, b"two");
    Ok(())
}

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

/// Copies and renames, with and without what is there.
///
/// # Errors
/// What the store says.
pub fn a_copy_may_keep_what_is_there(root: &Root) -> Outcome {
    let (store, a, b) = (root.object_store(), at("a")?, at("d/b")?);
    block_on(store.put(&a, "one".into()))?;
    block_on(store.copy(&a, &b))?;
    block_on(store.put(&a, "two".into()))?;
    assert_eq!(root.get(&b)?, "one", "a copy is not the same object");
    assert!(matches!(
        block_on(store.copy_if_not_exists(&a, &b)),
        Err(object_store::Error::AlreadyExists { .. })
    ));
    assert_eq!(root.get(&b)?, "one");
    block_on(store.copy(&a, &b))?;
    assert_eq!(root.get(&b)?, "two");
    block_on(store.rename(&b, &at("c")?))?;
    assert_eq!(names(root, None)?, ["a", "c"]);
    Ok(())
}

/// Paths that were built by other means than `object_path` are checked too.
///
/// # Errors
/// What the store says.
pub fn names_with_tricks_are_refused(root: &Root) -> Outcome {
    for name in [
        ObjectPath::ROOT,
        ObjectPath::parse("a\\b")?,
        ObjectPath::parse(".staging-1")?,
        ObjectPath::parse("a/\u{9b}x")?,
    ] {
        assert!(matches!(root.get(&name), Err(StoreError::Refused { .. })), "get {name:?}");
        assert!(
            matches!(root.put_create(&name, Bytes::new()), Err(StoreError::Refused { .. })),
            "put {name:?}"
        );
        assert!(matches!(root.blob(&name, 1), Err(StoreError::Refused { .. })), "blob {name:?}");
        assert!(matches!(root.delete(&name), Err(StoreError::Refused { .. })), "delete {name:?}");
    }
    Ok(())
}

/// The probe passes, and leaves nothing.
///
/// # Errors
/// What the store says.
pub fn the_probe_passes(root: &Root) -> Outcome {
    root.probe()?;
    assert_eq!(names(root, None)?, [""; 0]);
    Ok(())
}
