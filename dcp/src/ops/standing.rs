//! [`Standing`]: what lies at a place, in one word. Copies of a store are made by tools that know nothing of it, and stop anywhere;
//! whatever they leave is one of these, and never passes for more than it is.
//!
//! ```text
//!  a root:   log whole, checkpoint whole ─► committed       another root's record, a broken chain ─► mixed
//!            record, manifest or file missing, or cut short ─► incomplete
//!  a step's folder by itself, whole ─► sealed               right sizes, other bytes ─► damaged
//! ```
//!
//! Invariants: *committed* is said only where a root's log names the checkpoint and all of it was found; a log whose last records
//! are missing is a valid shorter log, and what it names is committed; of several faults the one that forbids most is told.

use std::{error::Error as StdError, fmt};

use serde::Serialize;

use super::verify::{VerifyOptions, VerifyReport, verify};
use crate::{
    Cancel, Error, ErrorKind, Finding, FindingCode, Result, Severity, Silent,
    commit::CommitError,
    formats::{OpenOptions, Strictness, native},
    store::{StoreError, Stores},
};

/// What lies at a place. The later ones forbid more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// A root's log names it, and all of it is there.
    Committed,
    /// A step's folder by itself: all of it is there; whether it was ever committed, only a root could say.
    Sealed,
    /// Something that it needs is missing or cut short: a copy, or a save, that was stopped.
    Incomplete,
    /// All there, with other bytes than were written.
    Damaged,
    /// Of two roots, or of two states of one.
    Mixed,
}

/// What was found at a place.
#[derive(Debug)]
pub struct Judged {
    /// In a word.
    pub standing: Standing,
    /// The worst that was found, in a sentence; nothing where all is well.
    pub why: Option<String>,
    /// What verifying found, where it could be opened.
    pub report: Option<VerifyReport>,
}

impl Standing {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Sealed => "sealed",
            Self::Incomplete => "incomplete",
            Self::Damaged => "damaged",
            Self::Mixed => "mixed",
        }
    }

    /// Of a checkpoint that was opened, by what verifying it found.
    #[must_use]
    pub fn of_findings(committed: bool, findings: &[Finding]) -> Self {
        let whole = if committed { Self::Committed } else { Self::Sealed };
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        errors.map(|finding| Self::of_code(finding.code)).fold(whole, Self::max)
    }

    const fn of_code(code: FindingCode) -> Self {
        match code {
            FindingCode::Mixed => Self::Mixed,
            FindingCode::MissingFile | FindingCode::SizeMismatch | FindingCode::Gap => Self::Incomplete,
            _ => Self::Damaged,
        }
    }

    /// Of what could not be opened; nothing where the failure says nothing about the data.
    #[must_use]
    pub fn of_error(error: &Error) -> Option<Self> {
        let of_kind = (error.kind() == ErrorKind::Corrupt).then_some(Self::Damaged);
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(found) = of_cause(inner) {
                return Some(found);
            }
            cause = inner.source();
        }
        of_kind
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

fn of_cause(cause: &(dyn StdError + 'static)) -> Option<Standing> {
    if let Some(error) = cause.downcast_ref::<CommitError>() {
        return match error {
            CommitError::Mixed { .. } => Some(Standing::Mixed),
            CommitError::Incomplete { .. } | CommitError::Cut { .. } => Some(Standing::Incomplete),
            CommitError::Damaged { .. } if error.is_cut() => Some(Standing::Incomplete),
            CommitError::Damaged { .. } => Some(Standing::Damaged),
            _ => None,
        };
    }
    match cause.downcast_ref::<StoreError>() {
        Some(StoreError::NotFound { .. } | StoreError::OutOfRange { .. }) => Some(Standing::Incomplete),
        _ => None,
    }
}

/// Opens what is at a location and reads it, as far as `options` say; what can be forgiven is, whatever `open` says of it.
///
/// # Errors
/// Where nothing of a native store is there, and where it could not be looked at.
pub fn judge(
    stores: &Stores,
    location: &str,
    revision: Option<&str>,
    open: OpenOptions,
    options: &VerifyOptions,
) -> Result<Judged> {
    let lenient = open.strictness(Strictness::Lenient);
    let source = match native::open_in(stores, location, revision, lenient) {
        Ok(source) => source,
        Err(error) => {
            return match Standing::of_error(&error) {
                Some(standing) => Ok(Judged { standing, why: Some(error.to_string()), report: None }),
                None => Err(error),
            };
        }
    };
    let report = verify(&source, options, &Silent, &Cancel::new())?;
    let standing = Standing::of_findings(source.commit().is_some(), &report.findings);
    let worst = report.findings.iter().filter(|it| it.severity == Severity::Error);
    let worst = worst.max_by_key(|it| Standing::of_code(it.code));
    Ok(Judged { standing, why: worst.map(|it| it.message.clone()), report: Some(report) })
}

#[cfg(test)]
mod tests;
