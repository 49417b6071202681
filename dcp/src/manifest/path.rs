//! Names of files in a manifest: what may stand there, so that no reader is led out of a folder by one.

/// Longest path, in bytes.
const LONGEST: usize = 4096;

/// Checks a path relative to a step, a root or a base: plain components between single slashes, none of them `.` or
/// `..`, no backslash and no control character.
///
/// # Errors
/// What is wrong with it.
pub fn check_path(path: &str) -> Result<(), &'static str> {
    check_text(path)?;
    if path.contains('\\') {
        return Err("a backslash stands in the path");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        None => Ok(()),
        Some("") => Err("the path is absolute or has an empty component"),
        Some(_) => Err("the path has a `.` or `..` component"),
    }
}

/// Checks the place of a foreign folder: an absolute path or a URL, without control characters.
///
/// # Errors
/// What is wrong with it.
pub fn check_base(base: &str) -> Result<(), &'static str> {
    check_text(base)?;
    if base.starts_with('/') || url::Url::parse(base).is_ok() {
        return Ok(());
    }
    Err("the base is neither an absolute path nor a URL")
}

fn check_text(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Err("the path is empty");
    }
    if text.len() > LONGEST {
        return Err("the path is longer than 4096 bytes");
    }
    if text.chars().any(char::is_control) {
        return Err("a control character stands in the path");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_stay_within_their_folder_pass() {
        for good in ["a", "data/0-of-4.safetensors", "model.safetensors", "..a/b..", "ü/…", ".hidden"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let long = "a".repeat(4097);
        for bad in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a\\b",
            "a\nb",
            "a\u{85}",
            "\0",
            long.as_str(),
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bases_are_absolute() {
        for good in ["/mnt/ckpt/step-1", "s3://bucket/run", "file:///mnt/x", "memory:///x"] {
            assert_eq!(check_base(good), Ok(()), "{good}");
        }
        for bad in ["", "relative/x", "../x", "/a\nb"] {
            assert!(check_base(bad).is_err(), "{bad:?}");
        }
    }
}
