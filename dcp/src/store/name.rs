//! Names of objects: checked before anything is opened by them.
//!
//! `object_store` forgives (it strips a leading slash, and encodes what it does not like), so that two names may mean one
//! object. Here a name that comes from outside is either exactly the name of one object, or refused.

use object_store::path::Path;

use super::error::{Result, StoreError};

/// The path of an object below its root: segments separated by `/`, none of them empty, `.` or `..`.
pub use object_store::path::Path as ObjectPath;

/// Begins the names of files that are being written. They are no objects: hidden from listings, refused as names.
pub(crate) const STAGING: &str = ".staging-";

/// Begins the names of probes (see [`Root::probe`](super::Root::probe)).
pub(crate) const PROBE: &str = ".probe-";

/// The longest segment that file systems take.
const LONGEST: usize = 255;

/// Checks a name that comes from outside.
///
/// # Errors
/// [`StoreError::Refused`] for absolute names, empty segments, `.`, `..`, control characters, backslashes, and segments
/// longer than 255 bytes or reserved by the store.
pub fn object_path(name: &str) -> Result<ObjectPath> {
    check(name).map_err(|reason| refused(name, reason))?;
    Path::parse(name).map_err(|error| refused(name, &error.to_string()))
}

/// What an adapter may still hand over unchecked: a [`Path`] built by other means than [`object_path`].
pub(crate) fn check_path(path: &Path) -> Result<&str> {
    check(path.as_ref()).map_err(|reason| refused(path.as_ref(), reason))?;
    Ok(path.as_ref())
}

fn check(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    if name.starts_with('/') {
        return Err("the name is absolute; give it relative to the root");
    }
    name.split('/').try_for_each(check_segment)
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    match segment {
        "" => Err("the name has an empty segment"),
        "." | ".." => Err("the name has a segment `.` or `..`, which could lead out of the root"),
        s if s.chars().any(char::is_control) => Err("the name has control characters"),
        s if s.contains('\\') => Err("the name has a backslash, which some systems take for a separator"),
        s if s.len() > LONGEST => Err("the name has a segment of more than 255 bytes"),
        s if s.starts_with(STAGING) => Err("names that begin with `.staging-` are those of unfinished files"),
        _ => Ok(()),
    }
}

fn refused(name: &str, reason: &str) -> StoreError {
    StoreError::Refused { path: name.escape_debug().take(300).collect(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in
            ["a", "commits/00000000000000000042.json", "step-1/data/x~y [z].safetensors", ".metadata", "ä/…"]
        {
            assert_eq!(object_path(name).unwrap().as_ref(), name);
        }
    }

    #[test]
    fn names_with_tricks_are_refused() {
        let long = "x".repeat(256);
        for name in
            ["", "/", "/etc/passwd", "a/", "a//b", "..", "../a", "a/../b", "a/.", "./a", "a\0b", "a\nb"]
                .into_iter()
                .chain(["a\u{85}b", "a\\..\\b", ".staging-1", "a/.staging-1/b", &long])
        {
            let error = object_path(name).unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{name:?}: {error:?}");
            assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn a_path_that_object_store_would_encode_is_not_another_name() {
        let encoded = Path::from("a#b");
        assert_ne!(encoded.as_ref(), "a#b");
        assert_eq!(object_path("a#b").unwrap().as_ref(), "a#b");
    }
}
