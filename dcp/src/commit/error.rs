//! What can go wrong in reading the log, and in adding to it.

use super::names::Label;
use super::record::CUT;
use super::seq::Seq;
use super::state::Void;
use crate::store::StoreError;
use crate::{Error, ErrorKind};

/// The result of an operation on the log.
pub type Result<T, E = CommitError> = std::result::Result<T, E>;

/// An operation on the log that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The store failed, in a way that leaves no doubt about what is in the log.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store failed so that nobody knows whether the record is there, or will be. It may be: begin no clean-up. The same draft can be
    /// appended again; when its record has landed, it is found.
    #[error(
        "{path}: cannot tell whether the record was written; nothing may be cleaned up. Append it again when the store answers"
    )]
    Unknown {
        /// The record.
        path: String,
        /// What the store said last.
        #[source]
        source: StoreError,
    },
    /// The record would be void. Nothing was written.
    #[error("not committed: {void}")]
    Rejected {
        /// Why.
        void: Void,
    },
    /// The newest checkpoint of the run is another one than the record is tied to. Nothing was written.
    #[error("not committed: the newest checkpoint of run {run} is {}, and was {}", told(*newest), told(*expected))]
    Passed {
        /// The run.
        run: Label,
        /// What the record is tied to.
        expected: Option<Seq>,
        /// What is the newest.
        newest: Option<Seq>,
    },
    /// Others were faster too many times in a row. Nothing was written.
    #[error(
        "not committed: {rounds} times another writer was faster; try again, or let fewer of them write at once"
    )]
    Contended {
        /// How many times it was tried.
        rounds: u32,
    },
    /// A record whose bytes are not what its writer wrote.
    #[error("{path}: damaged record: {reason}; restore it from a copy of this root")]
    Damaged {
        /// The record.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A record that does not belong where it is: two roots were mixed, or a copy of another state was put over this one.
    #[error(
        "{path}: does not belong into this log: {reason}; the root is a mixture of two, or of two states of one"
    )]
    Mixed {
        /// The record.
        path: String,
        /// What does not fit.
        reason: String,
    },
    /// A record is missing although later ones are there: a copy that was stopped.
    #[error("{path}: missing, although record {later} is there; the root was copied in part, copy it again")]
    Incomplete {
        /// The record that is missing.
        path: String,
        /// A later one that is there.
        later: Seq,
    },
    /// The log ends before a record that the head hint names, and which was there when that was written.
    #[error(
        "{path}: missing, although {hint} tells of record {seq}; the root was copied in part, copy it again. If this end of the log is \
             wanted, delete {hint}"
    )]
    Cut {
        /// The record that is missing.
        path: String,
        /// The hint.
        hint: String,
        /// The record that it names.
        seq: Seq,
    },
    /// The head hint is wrong. Readers pass over it.
    #[error("{path}: no hint to believe: {reason}; readers pass over it, and it can be deleted")]
    BadHint {
        /// The hint.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A record of a later format.
    #[error("{path}: written in format {format}; this program reads up to {known}: use a newer one")]
    Newer {
        /// The record.
        path: String,
        /// Its format.
        format: u32,
        /// The largest that is known.
        known: u32,
    },
    /// A record that uses what this program does not know, and must not ignore.
    #[error(
        "{path}: uses features that this program does not know and must not ignore ({features}): use a newer one"
    )]
    NotUnderstood {
        /// The record.
        path: String,
        /// The features.
        features: String,
    },
    /// A record that would be larger than what readers take.
    #[error(
        "record {seq} would have {size} bytes, too many to be read again; retire checkpoints that are not needed"
    )]
    TooLong {
        /// The record.
        seq: Seq,
        /// The bytes that it would have.
        size: u64,
    },
}

impl CommitError {
    /// Whether a record lacks its end, as one whose copy was stopped does.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Damaged { reason, .. } if reason == CUT)
    }
}

fn told(checkpoint: Option<Seq>) -> String {
    checkpoint.map_or_else(|| "none".to_owned(), |seq| format!("record {seq}"))
}

/// A failed operation on the log, by what a caller can do.
impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        let kind = match error {
            CommitError::Store(error) => return error.into(),
            CommitError::Unknown { .. } => ErrorKind::Io,
            CommitError::Rejected { .. } | CommitError::Passed { .. } | CommitError::Contended { .. } => {
                ErrorKind::Conflict
            }
            CommitError::Damaged { .. }
            | CommitError::Mixed { .. }
            | CommitError::Incomplete { .. }
            | CommitError::Cut { .. }
            | CommitError::BadHint { .. } => ErrorKind::Corrupt,
            CommitError::Newer { .. } | CommitError::NotUnderstood { .. } => ErrorKind::Unsupported,
            CommitError::TooLong { .. } => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}
