//! What can be wrong with a manifest.

use thiserror::Error;

use crate::{Error, ErrorKind, digest::Sha256Digest};

/// Why a manifest cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Its bytes are not those that its name or its record promises.
    #[error("manifest hashes to {found}, expected {expected}")]
    Digest {
        /// The digest in the name.
        expected: Sha256Digest,
        /// The digest of the bytes.
        found: Sha256Digest,
    },
    /// Not an SQLite image of the one kind that is written.
    #[error("not a manifest: {0}")]
    Image(String),
    /// Its tables are not the tables of the format.
    #[error("manifest has a schema of its own: {0}")]
    Schema(String),
    /// A later major version.
    #[error("manifest of major version {0}; this build reads version 1")]
    Version(u32),
    /// A feature that a reader must understand.
    #[error("manifest needs the feature {0:?}, which this build doesn't know")]
    Feature(String),
    /// A row that breaks a rule.
    #[error("manifest, {place}: {problem}")]
    Row {
        /// Table and row.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What cannot be written as a manifest.
    #[error("cannot be kept in a manifest: {0}")]
    Unwritable(String),
    /// SQLite refused.
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

impl ManifestError {
    pub(super) fn row(place: &str, problem: &impl ToString) -> Self {
        Self::Row { place: place.to_owned(), problem: problem.to_string() }
    }
}

impl From<ManifestError> for Error {
    fn from(error: ManifestError) -> Self {
        let kind = match &error {
            ManifestError::Version(_) | ManifestError::Feature(_) => ErrorKind::Unsupported,
            ManifestError::Unwritable(_) => ErrorKind::Incompatible,
            _ => ErrorKind::Corrupt,
        };
        let text = Self::new(kind, error.to_string());
        let text = match kind {
            ErrorKind::Unsupported => text.hint("use a newer `ckpt`"),
            _ => text,
        };
        text.caused_by(error)
    }
}
