//! The target grammar: `path[@revision][#fqn-glob]`.
//!
//! `@` and `#` are looked for from the right, and only where what is left of them is not an existing path in full:
//! a folder that is really called `run@2` is still reachable.

use std::str::FromStr;

/// What a verb works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Path or URL.
    pub(crate) location: String,
    /// Which committed step of a root: `latest`, `latest~2`, `step:1000`, `tag:best`, or a prefix of a digest.
    pub(crate) revision: Option<String>,
    /// Which tensors.
    pub(crate) glob: Option<String>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty path names no checkpoint".to_owned());
        }
        let (rest, glob) = split(text, '#');
        let (location, revision) = split(rest, '@');
        Ok(Self {
            location: location.to_owned(),
            revision: revision.map(str::to_owned),
            glob: glob.map(str::to_owned),
        })
    }
}

fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    if std::path::Path::new(text).exists() {
        return (text, None);
    }
    match text.rsplit_once(mark) {
        // Within the authority of a URL: `abfss://container@account.dfs.core.windows.net`.
        Some((left, _))
            if mark == '@' && left.split_once("://").is_some_and(|(_, rest)| !rest.contains('/')) =>
        {
            (text, None)
        }
        // A slash behind an `@` makes it part of a path, unless a tag is named, which may hold slashes.
        Some((_, right)) if mark == '@' && right.contains('/') && !right.starts_with("tag:") => (text, None),
        Some((left, right)) if !left.is_empty() && !right.is_empty() => (left, Some(right)),
        _ => (text, None),
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.location)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.glob.iter().try_for_each(|glob| write!(f, "#{glob}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_splits_into_location_revision_and_glob() {
        let target: Target = "run/ckpt@step:1000#layers.3.*".parse().unwrap();
        assert_eq!(target.location, "run/ckpt");
        assert_eq!(target.revision.as_deref(), Some("step:1000"));
        assert_eq!(target.glob.as_deref(), Some("layers.3.*"));
        assert_eq!(target.to_string(), "run/ckpt@step:1000#layers.3.*");
    }

    #[test]
    fn an_at_sign_in_a_folder_name_is_not_a_revision() {
        let target: Target = "user@host/ckpt".parse().unwrap();
        assert_eq!((target.location.as_str(), target.revision), ("user@host/ckpt", None));
    }

    #[test]
    fn a_url_has_a_revision_behind_its_path_only() {
        for (text, location, revision) in [
            ("s3://bucket/run@step:7", "s3://bucket/run", Some("step:7")),
            ("abfss://c@acc.dfs.core.windows.net", "abfss://c@acc.dfs.core.windows.net", None),
            (
                "abfss://c@acc.dfs.core.windows.net/run@latest",
                "abfss://c@acc.dfs.core.windows.net/run",
                Some("latest"),
            ),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.location.as_str(), target.revision.as_deref()), (location, revision));
        }
    }
}
