//! The public error of the crate: a small kind that says what a caller can do, and a message that says what, where,
//! why. Modules have enums of their own; they convert at the boundary of an operation and stay as the `source`.
//!
//! Policy: one kind per *reaction*, not per cause (`ckpt` maps each to an exit code in one file); causes are in the
//! message, which is not API. A kind is never changed on the way up.

use std::{error::Error as StdError, fmt};

use crate::store::StoreError;

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing is there, or nothing of the kind: not a checkpoint, no committed step.
    NotFound,
    /// Somebody else's object is in the way: a target that exists, another writer, a fenced epoch.
    Conflict,
    /// The store refused access.
    Access,
    /// Data is torn, flipped, missing, contradictory, or hostile.
    Corrupt,
    /// Well-formed, but of a version or with a feature that this build does not read.
    Unsupported,
    /// The request does not fit the checkpoint: mesh, name, dtype, shape.
    Incompatible,
    /// The store failed, after retries; space ran out.
    Io,
    /// Stopped on request; the same command goes on from here.
    Cancelled,
    /// A broken invariant of ours.
    Internal,
}

/// A failure of an operation of this crate.
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of `kind`; the message is a lower-case fragment that says what, where and why.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// Data that contradicts itself.
    #[must_use]
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// A request that does not fit.
    #[must_use]
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Incompatible, message)
    }

    /// Something this build does not read or write.
    #[must_use]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// A broken invariant of ours.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Puts `place` (a file, a tensor) before the message.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// What a caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the user can do.
    #[must_use]
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, " ({source:?})"))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// A failed I/O operation, by what the operating system says of it.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let kind = match error.kind() {
            Os::NotFound => ErrorKind::NotFound,
            Os::AlreadyExists => ErrorKind::Conflict,
            Os::PermissionDenied | Os::ReadOnlyFilesystem => ErrorKind::Access,
            Os::UnexpectedEof | Os::InvalidData => ErrorKind::Corrupt,
            _ => ErrorKind::Io,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}

/// Adds the place to a failure on its way up.
pub trait Place<T> {
    /// Puts `place` before the message.
    ///
    /// # Errors
    /// The failure it was called on.
    fn place(self, place: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> Place<T> for Result<T, E> {
    fn place(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().at(place))
    }
}

/// A failed operation on a store, by what a caller can do.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::NotFound { .. } | StoreError::NoBucket { .. } => ErrorKind::NotFound,
            StoreError::AlreadyExists { .. } => ErrorKind::Conflict,
            StoreError::Access { .. } => ErrorKind::Access,
            StoreError::Refused { .. } | StoreError::OutOfRange { .. } | StoreError::TooLarge { .. } => {
                ErrorKind::Corrupt
            }
            StoreError::Unsupported { .. } | StoreError::UnsafeStore { .. } => ErrorKind::Unsupported,
            StoreError::BadWrite { .. } | StoreError::Gap { .. } => ErrorKind::Internal,
            StoreError::NoSpace { .. }
            | StoreError::NotDurable { .. }
            | StoreError::NotDone { .. }
            | StoreError::Io { .. } => ErrorKind::Io,
        };
        Self::new(kind, error.to_string()).caused_by(error)
    }
}
