//! [`Finding`]: one thing that a check found, with a stable code. Checks collect findings instead of stopping at the
//! first, so that one run tells everything that is wrong.

use fqn::TensorId;
use serde::Serialize;

use crate::{Error, store::StoreError};

/// One thing that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable code, as scripts see it.
    pub code: FindingCode,
    /// Whether the data can be trusted all the same.
    pub severity: Severity,
    /// The file concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The tensor concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorId>,
    /// The elements concerned, as a box (`[0..4, 0..128]`) or a range of row-major indices (`512..768`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// What is wrong and why.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Suspicious; the data itself was not shown to be wrong.
    Warning,
    /// Data is wrong, or missing.
    Error,
}

/// What kind of thing was found. The text form is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingCode {
    /// A record's CRC-32 differs from its bytes.
    CrcMismatch,
    /// A block's SHA-256 differs from its bytes.
    BlockMismatch,
    /// A block table, manifest or record differs from the digest that names it.
    DigestMismatch,
    /// Computed and recorded fingerprints differ.
    FingerprintMismatch,
    /// A file that is named is not there.
    MissingFile,
    /// A file's size differs from what is recorded.
    SizeMismatch,
    /// A payload's length differs from its dtype and shape.
    LengthMismatch,
    /// Chunks leave part of a tensor out.
    Gap,
    /// Chunks claim the same elements twice.
    Overlap,
    /// A chunk lies outside its tensor.
    OutOfBounds,
    /// Dtype, shape or name inside a blob differ from the metadata.
    MetadataMismatch,
    /// A file that nothing names.
    OrphanFile,
    /// Bytes in a file that nothing names.
    OrphanBytes,
    /// A file of another save than the metadata's.
    StaleFile,
    /// A name that the index has and no file holds, or the reverse.
    IndexMismatch,
    /// The format's own checksums are switched off.
    ChecksumsOff,
    /// A pickle names something outside the closed set.
    UnknownGlobal,
    /// A record of another root, or of another state of this one.
    Mixed,
    /// A step that no commit record names.
    Uncommitted,
    /// Anything else, told by the message.
    Other,
}

impl FindingCode {
    /// Of a failure to read an object: missing, cut short, or what it is otherwise.
    pub(crate) fn of_error(error: &Error, otherwise: Self) -> Self {
        match std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<StoreError>()) {
            Some(StoreError::NotFound { .. }) => Self::MissingFile,
            Some(StoreError::OutOfRange { .. }) => Self::SizeMismatch,
            _ => otherwise,
        }
    }
}

impl Finding {
    /// A finding; places are added by the other methods.
    #[must_use]
    pub fn new(severity: Severity, code: FindingCode, message: impl Into<String>) -> Self {
        Self { code, severity, file: None, tensor: None, range: None, message: message.into(), hint: None }
    }

    /// Names the file.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Names the tensor.
    #[must_use]
    pub fn tensor(mut self, id: TensorId) -> Self {
        self.tensor = Some(id);
        self
    }

    /// Names the elements.
    #[must_use]
    pub fn range(mut self, range: &impl ToString) -> Self {
        self.range = Some(range.to_string());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
