//! What can go wrong at the rim, classified by what the caller would do about it.
//!
//! Every variant that concerns an object carries its path below the root, and the source below it. The classes are coarse
//! on purpose; the one question that the commit protocol asks of an error (could the write have landed all the same?) is
//! answered by [`StoreError::may_have_landed`].

use std::error::Error as StdError;
use std::io;
use std::ops::Range;

/// A boxed source of an error.
pub type Source = Box<dyn StdError + Send + Sync + 'static>;

/// The result of an operation on a store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// An operation on a store that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no object of that name.
    #[error("{path}: no such object")]
    NotFound {
        /// The object.
        path: String,
    },
    /// The name is taken, and nothing here is ever overwritten.
    #[error("{path}: already exists")]
    AlreadyExists {
        /// The object.
        path: String,
    },
    /// The device is full, or the quota is used up.
    #[error("{path}: no space left to {op} it; free some space or raise the quota, then run it again")]
    NoSpace {
        /// The object.
        path: String,
        /// What was being done.
        op: &'static str,
        /// What the system said.
        #[source]
        source: Source,
    },
    /// The system forbids it.
    #[error("{path}: permission denied to {op} it")]
    Access {
        /// The object.
        path: String,
        /// What was being done.
        op: &'static str,
        /// What the system said.
        #[source]
        source: Source,
    },
    /// A name that could lead out of the root, that is reserved, or that leads over a symbolic link.
    #[error("{path}: refused: {reason}")]
    Refused {
        /// The name as it was given, with control characters escaped.
        path: String,
        /// Why it is refused.
        reason: String,
    },
    /// The object is visible, but the system would not confirm that it is durable. What the failed sync covered may be
    /// lost for good and a second sync may lie about it, so only a new attempt helps.
    #[error(
        "{path}: is written, but the system did not confirm that it would survive a crash; begin a new attempt"
    )]
    NotDurable {
        /// The object.
        path: String,
        /// What the system said.
        #[source]
        source: Source,
    },
    /// This build, this store or this file system cannot do what is asked for.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be, and what to do instead.
        reason: String,
    },
    /// A read beyond the end of an object.
    #[error("{path}: bytes {}..{} asked for, but it has only {size} bytes; it was cut short or is another file", range.start, range.end)]
    OutOfRange {
        /// The object.
        path: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// The bytes it has.
        size: u64,
    },
    /// An object that is larger than what its kind may have.
    #[error("{path}: has {size} bytes, more than the {limit} that such an object may have")]
    TooLarge {
        /// The object.
        path: String,
        /// The bytes it has.
        size: u64,
        /// The bytes it may have.
        limit: u64,
    },
    /// A blob was written at a place twice, or outside of the size it was declared with.
    #[error("{path}: bytes {}..{} written {why}", range.start, range.end)]
    BadWrite {
        /// The blob.
        path: String,
        /// The bytes of the write.
        range: Range<u64>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A blob was finished before all of its bytes were written.
    #[error("{path}: finished with bytes {}..{} never written", range.start, range.end)]
    Gap {
        /// The blob.
        path: String,
        /// The first bytes that are missing.
        range: Range<u64>,
    },
    /// The store takes a second create of the same name, so no commit on it would be safe.
    #[error(
        "{root}: accepted the creation of one object twice, so two writers could both believe that they committed; \
             use a store with conditional create"
    )]
    UnsafeStore {
        /// The root.
        root: String,
    },
    /// The bucket (or container) itself does not exist.
    #[error("{path}: no such bucket, or container; create it first, it is not made here")]
    NoBucket {
        /// The root.
        path: String,
    },
    /// The store was not reached, or declined: it is certain that nothing was written.
    #[error("{path}: failed to {op} it: {reason}")]
    NotDone {
        /// The object.
        path: String,
        /// What was being done.
        op: &'static str,
        /// Why, and what to do about it.
        reason: String,
        /// What the network or the store said.
        #[source]
        source: Source,
    },
    /// Anything else, the network included.
    #[error("{path}: failed to {op} it")]
    Io {
        /// The object.
        path: String,
        /// What was being done.
        op: &'static str,
        /// What the system or the store said.
        #[source]
        source: Source,
    },
}

impl StoreError {
    /// Whether a write that ended in this error may be there all the same, now or later.
    ///
    /// False only where it is certain that nothing landed.
    #[must_use]
    pub const fn may_have_landed(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::NotDurable { .. })
    }

    /// Whether the object was not there.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Classifies what a file system said.
    pub(crate) fn from_io(op: &'static str, path: &str, source: io::Error) -> Self {
        use rustix::io::Errno;
        let path = path.to_owned();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace { path, op, source: source.into() },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                Self::Access { path, op, source: source.into() }
            }
            Some(Errno::LOOP) => Self::Refused { path, reason: LINK.to_owned() },
            Some(Errno::XDEV) => Self::Refused { path, reason: "the name leads out of the root".to_owned() },
            _ => match source.kind() {
                io::ErrorKind::NotFound => Self::NotFound { path },
                io::ErrorKind::AlreadyExists => Self::AlreadyExists { path },
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Self::NoSpace { path, op, source: source.into() }
                }
                io::ErrorKind::PermissionDenied => Self::Access { path, op, source: source.into() },
                _ => Self::Io { path, op, source: source.into() },
            },
        }
    }

    /// Classifies what a store said about `path`.
    pub(crate) fn from_store(op: &'static str, path: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        let path = path.to_owned();
        match error {
            E::NotFound { .. } => Self::NotFound { path },
            E::AlreadyExists { .. } => Self::AlreadyExists { path },
            E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
                match Self::unbox(op, path, source) {
                    Self::Io { path, op, source } => Self::Access { path, op, source },
                    own => own,
                }
            }
            E::NotSupported { source } => match Self::unbox(op, path, source) {
                Self::Io { path, source, .. } => Self::Unsupported { what: path, reason: source.to_string() },
                own => own,
            },
            E::NotImplemented { operation, implementer } => {
                Self::Unsupported { what: path, reason: format!("{implementer} has no {operation}") }
            }
            E::Generic { source, .. } => Self::unbox(op, path, source),
            E::InvalidPath { source } => Self::Refused { path, reason: source.to_string() },
            other => Self::Io { path, op, source: other.into() },
        }
    }

    /// Our own stores put a `StoreError` inside; take it out instead of classifying twice.
    fn unbox(op: &'static str, path: String, source: Source) -> Self {
        match source.downcast::<Self>() {
            Ok(own) => *own,
            Err(source) => match source.downcast::<io::Error>() {
                Ok(io) => Self::from_io(op, &path, *io),
                Err(source) => Self::Io { path, op, source },
            },
        }
    }

    /// The same error for callers that speak `object_store`.
    pub(crate) fn into_object_store(self) -> object_store::Error {
        use object_store::Error as E;
        match self {
            Self::NotFound { ref path } => E::NotFound { path: path.clone(), source: self.into() },
            Self::AlreadyExists { ref path } => E::AlreadyExists { path: path.clone(), source: self.into() },
            Self::Access { ref path, .. } => E::PermissionDenied { path: path.clone(), source: self.into() },
            Self::Unsupported { .. } => E::NotSupported { source: self.into() },
            other => E::Generic { store: "store", source: other.into() },
        }
    }
}

const LINK: &str = "the name leads over a symbolic link, which could lead out of the root; replace the link by the file it points to";
