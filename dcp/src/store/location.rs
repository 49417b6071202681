//! What a location says: a folder, a store in memory, or a bucket. Known in every build, whether or not it can open it.
//!
//! Invariant: no error repeats what may be a secret. Whoever writes keys or tokens into a URL gets a refusal that shows the URL without them.

use std::path::{Path, PathBuf};

use url::Url;

use super::error::{Result, StoreError};
use super::name::object_path;

/// What a location says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    Folder(PathBuf),
    /// A store in memory, and a path within it.
    Memory(String, String),
    Bucket(Bucket),
}

/// Whose protocol a bucket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Gcs,
    Azure,
}

impl Kind {
    /// The Cargo feature that brings it.
    #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
    pub(super) const fn feature(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gcs",
            Self::Azure => "azure",
        }
    }
}

/// A bucket, or a container of an Azure account, and a prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The account, where the location names it; the environment does otherwise.
    pub(super) account: Option<String>,
    /// Empty for the bucket itself.
    pub(super) below: String,
}

/// Bytes that each blob holds in memory while it is written at this location: [`UPLOADING`](super::UPLOADING) where it names a bucket.
#[must_use]
pub fn bytes_of_open_blob(location: &str) -> u64 {
    if matches!(parse(location), Ok(Location::Bucket(_))) { super::UPLOADING } else { 0 }
}

/// A location with `scheme://` is a URL; anything else is a path, whatever characters it has.
pub(super) fn parse(location: &str) -> Result<Location> {
    let Some((scheme, rest)) = location.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return folder(location, Path::new(location));
    };
    let kind = match scheme.to_ascii_lowercase().as_str() {
        "memory" => return memory(location, rest),
        "file" => {
            let url = Url::parse(location).map_err(|error| refused(location, &error.to_string()))?;
            let path = url
                .to_file_path()
                .map_err(|()| refused(location, "a file URL needs an absolute path and no host"))?;
            return folder(location, &path);
        }
        "s3" | "s3a" => Kind::S3,
        "gs" => Kind::Gcs,
        "az" | "azure" | "abfs" | "abfss" => Kind::Azure,
        "http" | "https" => {
            let reason = "a web address is no store that can be listed; copy the checkpoint to a folder, or name its bucket by \
                          s3://, gs:// or az://";
            return Err(StoreError::Unsupported { what: shown(location), reason: reason.to_owned() });
        }
        _ => {
            let reason = format!(
                "{scheme:?} is not a kind of store; give a path, file://, memory://, s3://, gs:// or az://"
            );
            return Err(StoreError::Unsupported { what: shown(location), reason });
        }
    };
    bucket(kind, location, rest).map(Location::Bucket)
}

fn memory(location: &str, rest: &str) -> Result<Location> {
    let (name, below) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(refused(location, "a memory store needs a name: `memory://name`"));
    }
    Ok(Location::Memory(name.to_owned(), below.trim_end_matches('/').to_owned()))
}

fn bucket(kind: Kind, location: &str, rest: &str) -> Result<Bucket> {
    let (authority, below) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.contains(['?', '#']) {
        return Err(refused(location, "a location has no query; credentials come from the environment"));
    }
    let (name, account) = match (kind, authority.split_once('@')) {
        (Kind::Azure, Some((name, host))) => (name, Some(account(location, host)?)),
        (_, Some(_)) => {
            return Err(refused(location, "a location holds no credentials; they come from the environment"));
        }
        (_, None) => (authority, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.$".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(refused(location, "it names no bucket: write scheme://bucket/prefix"));
    }
    let below = below.trim_end_matches('/');
    if !below.is_empty() {
        object_path(below)?;
    }
    Ok(Bucket { kind, name: name.to_owned(), account, below: below.to_owned() })
}

/// The account in `account.dfs.core.windows.net`.
fn account(location: &str, host: &str) -> Result<String> {
    let known = [".dfs.core.windows.net", ".blob.core.windows.net"];
    let account = known.iter().find_map(|end| host.strip_suffix(end));
    account.filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())).map(str::to_owned).ok_or_else(
        || {
            refused(
                location,
                "after the `@` stands account.dfs.core.windows.net; for another cloud write az://container/prefix and set \
                 AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
            )
        },
    )
}

fn folder(location: &str, path: &Path) -> Result<Location> {
    match path.to_str() {
        Some("") | None => Err(refused(location, "the path is empty")),
        Some(text) if text.contains('\0') => Err(refused(location, "the path has a NUL character")),
        Some(_) => Ok(Location::Folder(path.to_owned())),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// The location without what may be a secret: a user before `@`, and everything behind `?` or `#`.
pub(super) fn shown(location: &str) -> String {
    let Some((scheme, rest)) = location.split_once("://") else { return location.escape_debug().to_string() };
    let bare = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = bare.split_at(bare.find('/').unwrap_or(bare.len()));
    let authority =
        authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("…@{host}"));
    let cut = if bare.len() < rest.len() { "?…" } else { "" };
    format!("{scheme}://{authority}{path}{cut}").escape_debug().to_string()
}

fn refused(location: &str, reason: &str) -> StoreError {
    StoreError::Refused { path: shown(location), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(location: &str) -> Bucket {
        match parse(location) {
            Ok(Location::Bucket(bucket)) => bucket,
            other => panic!("{location}: {other:?}"),
        }
    }

    #[test]
    fn a_bucket_is_named_by_the_urls_that_its_users_write() {
        for (location, kind, name, account, below) in [
            ("s3://b/runs/a b%20+é", Kind::S3, "b", None, "runs/a b%20+é"),
            ("S3A://my-bucket.x", Kind::S3, "my-bucket.x", None, ""),
            ("gs://b/p/", Kind::Gcs, "b", None, "p"),
            ("az://c/p//", Kind::Azure, "c", None, "p"),
            ("abfss://c@acc1.dfs.core.windows.net/p/q", Kind::Azure, "c", Some("acc1"), "p/q"),
            ("abfs://$root/p", Kind::Azure, "$root", None, "p"),
        ] {
            let expected =
                Bucket { kind, name: name.into(), account: account.map(Into::into), below: below.into() };
            assert_eq!(bucket_of(location), expected);
        }
    }

    #[test]
    fn what_names_no_bucket_is_refused() {
        for location in
            ["s3://", "s3:///x", "gs://a b/x", "s3://b/../x", "s3://b//x", "abfss://c@elsewhere.org/p"]
        {
            assert!(matches!(parse(location), Err(StoreError::Refused { .. })), "{location}");
        }
    }

    #[test]
    fn no_refusal_repeats_a_secret() {
        for location in [
            "s3://AKIA:hunter2@bucket/x",
            "gs://hunter2@bucket",
            "az://c/p?sv=1&sig=hunter2",
            "s3://b/x#hunter2",
            "abfss://c:hunter2@x.org/p",
            "foo://me:hunter2@h/x?hunter2",
            "https://me:hunter2@h/x?sig=hunter2",
        ] {
            let error = parse(location).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
