//! Single objects: created once, read exactly, listed, deleted.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::executor::block_on;
use object_store::ObjectStoreExt;

use super::{Outcome, at, names};
use crate::store::error::StoreError;
use crate::store::name::ObjectPath;
use crate::store::root::{Put, Root};

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

/// No bytes are content too: found, listed, read, and never taken for missing.
///
/// # Errors
/// What the store says.
pub fn an_empty_object_is_an_object(root: &Root) -> Outcome {
    let name = at("a/empty")?;
    assert_eq!(root.put_create(&name, Bytes::new())?, Put::Created);
    assert_eq!(root.put_create(&name, Bytes::from_static(b"x"))?, Put::Exists);
    root.put_same(&name, Bytes::new())?;
    assert!(matches!(root.put_same(&name, Bytes::from_static(b"x")), Err(StoreError::AlreadyExists { .. })));
    assert_eq!((root.get(&name)?.len(), root.head(&name)?.size), (0, 0));
    assert_eq!(root.get_range(&name, 0..0)?.len(), 0);
    assert!(matches!(root.get_range(&name, 0..1), Err(StoreError::OutOfRange { size: 0, .. })));
    assert_eq!(
        root.list(None)?.iter().map(|o| (o.path.as_ref(), o.size)).collect::<Vec<_>>(),
        [("a/empty", 0)]
    );
    Ok(())
}

/// Whether a store tells that there was nothing to delete or not: nothing else changes.
///
/// # Errors
/// What the store says.
pub fn a_second_delete_does_no_harm(root: &Root) -> Outcome {
    for name in ["a/x", "a/y"] {
        let _ = root.put_create(&at(name)?, Bytes::new())?;
    }
    root.delete(&at("a/x")?)?;
    for name in ["a/x", "never/was"] {
        match root.delete(&at(name)?) {
            Ok(()) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(names(root, None)?, ["a/y"]);
    Ok(())
}

/// What file systems and buckets allow in names arrives as it is: spaces, what URLs and XML take for their own, letters of any script.
///
/// # Errors
/// What the store says.
pub fn odd_names_are_names(root: &Root) -> Outcome {
    let odd = [
        "a b/c d",
        "100%/%20/%2F",
        "a+b/c+d=e",
        "q?x=1&y=2/#z",
        "<tag>/&amp;/\"quoted\"'",
        "ä/ö/日本語/🦀",
        "~x/(y)/[z]/{w}",
        "a,b;c:d@e!f$g*h|i^j`k",
        " lead/trail ",
        ".hidden/..x/x..",
    ];
    for name in odd {
        let content = Bytes::from(name.to_owned());
        assert_eq!(root.put_create(&at(name)?, content.clone())?, Put::Created, "{name:?}");
        assert_eq!(root.put_create(&at(name)?, content)?, Put::Exists, "{name:?}");
    }
    for name in odd {
        assert_eq!(root.get(&at(name)?)?, name.as_bytes(), "{name:?}");
        assert_eq!(root.get_range(&at(name)?, 0..1)?, name.as_bytes()[..1], "{name:?}");
        assert_eq!(root.head(&at(name)?)?.path.as_ref(), name);
        if let Some((folder, _)) = name.split_once('/') {
            let listed = names(root, Some(folder))?;
            assert!(listed.iter().any(|listed| listed == name), "{name:?} is not listed");
        }
    }
    let mut sorted = odd.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(names(root, None)?, sorted);
    for name in odd {
        root.delete(&at(name)?)?;
    }
    assert_eq!(names(root, None)?, [""; 0]);
    Ok(())
}

/// Times are those of a clock that goes forward; tags change with the content; every way of asking tells the same.
///
/// # Errors
/// What the store says.
pub fn times_and_tags_tell_what_changed(root: &Root) -> Outcome {
    let day = Duration::from_secs(86_400);
    let mut before =
        SystemTime::now().checked_sub(day).ok_or("the clock of this machine stands near 1970")?;
    let mut tags = BTreeSet::new();
    for n in 0..5_u8 {
        let name = at(&format!("{n}"))?;
        let _ = root.put_create(&name, Bytes::from(vec![n; 9]))?;
        let (head, (_, read)) = (root.head(&name)?, root.get_at_most(&name, 9)?);
        assert_eq!((&head.etag, head.size, head.modified), (&read.etag, read.size, read.modified));
        assert!(head.modified >= before, "{:?} after {before:?}", head.modified);
        assert!(head.modified < SystemTime::now() + day, "{:?}", head.modified);
        before = head.modified;
        assert!(tags.insert(head.etag.ok_or("no tag")?), "two objects with one tag");
        let listed = root.list(None)?;
        let listed = listed.iter().find(|object| object.path == name).ok_or("not listed")?;
        // Headers tell seconds, listings some more.
        let apart = listed.modified.duration_since(head.modified).unwrap_or_default();
        assert!(apart < Duration::from_secs(1) && listed.size == 9, "{apart:?}");
        assert_eq!(root.head(&name)?.modified, head.modified);
    }
    Ok(())
}
