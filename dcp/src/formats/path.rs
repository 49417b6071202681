//! Paths that come from files: relative, downward, printable, or refused.
//!
//! Invariant: a path accepted by [`check`] names something beneath the folder that it is joined to, as far as names
//! can tell; links within that folder are the user's own and are followed (a hub cache is made of them).

use std::path::{Component, Path};

use crate::{Error, Result};

/// Checks a path that stands in an index or in metadata.
///
/// # Errors
/// [`crate::ErrorKind::Corrupt`] for an empty or absolute path, one that holds `..`, `.`, an empty part, a
/// backslash, a drive letter or a control character.
pub fn check(text: &str) -> Result<&Path> {
    let shown = || text.chars().take(200).flat_map(char::escape_default).collect::<String>();
    let refuse = |why: &str| Err(Error::corrupt(format!("path \"{}\" {why}", shown())).hint(HINT));
    if fqn::check_name(text).is_err() {
        return refuse("is empty, too long, or holds control characters");
    }
    if text.contains('\\') || text.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return refuse("does not lead downward into the checkpoint's own folder");
    }
    if text.as_bytes().get(1) == Some(&b':') {
        return refuse("begins with a drive letter");
    }
    let path = Path::new(text);
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(path)
    } else {
        refuse("does not lead downward into the checkpoint's own folder")
    }
}

/// Checks a path that has no folders: the name of a file beside the index that names it.
///
/// # Errors
/// As [`check`], and for a path with folders.
pub fn check_file_name(text: &str) -> Result<&Path> {
    let path = check(text)?;
    if text.contains('/') {
        return Err(Error::corrupt(format!("file name \"{text}\" leads into another folder")).hint(HINT));
    }
    Ok(path)
}

const HINT: &str = "a checkpoint's files lie in its own folder; this one was made by hand or to do harm";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for text in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a/.",
            "a\\b",
            "C:evil",
            "a\u{1b}[2J",
            "a\0b",
            "a\u{202e}b",
        ] {
            assert_eq!(check(text).unwrap_err().kind(), ErrorKind::Corrupt, "{text:?}");
        }
        assert_eq!(check("sharded/a.safetensors").unwrap(), Path::new("sharded/a.safetensors"));
        assert!(check("__0_0.distcp").is_ok() && check("..a").is_ok() && check_file_name("a/b").is_err());
    }
}
