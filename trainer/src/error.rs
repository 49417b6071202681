//! The public error of the crate: a small kind that says what a caller can do, and a message that says what, where, why.
//! Modules have enums of their own; they convert at the boundary of an operation and stay as the `source`.
//!
//! Policy: one kind per *reaction* (the launcher restarts after some and not after others; `ckpt-train` maps each to an
//! exit code in one file). A kind is never changed on the way up; a message gains places on its way, never loses any.

use std::{error::Error as StdError, fmt};

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration contradicts itself or the model: meshes, batches, names, values.
    Config,
    /// The training data is missing, too short, or not what a checkpoint was trained on.
    Data,
    /// A checkpoint does not fit: another model, another exact-mode geometry.
    Incompatible,
    /// A checkpoint, or what a peer sent, is damaged.
    Corrupt,
    /// Nothing is there: no checkpoint, no such file.
    NotFound,
    /// Another incarnation or writer is in the way.
    Conflict,
    /// A peer did not arrive, died, or did not answer in time.
    Peer,
    /// A loss or a gradient is not finite.
    NotFinite,
    /// A file, a store or a socket failed; space ran out.
    Io,
    /// This build cannot do it.
    Unsupported,
    /// Stopped on request.
    Cancelled,
    /// libtorch refused, or an invariant of ours broke.
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

    /// A configuration that can't be.
    #[must_use]
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
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

    /// Puts `place` (a rank, a step, a tensor) before the message.
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

/// libtorch's refusals: the first line says what, the rest is its stack.
impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or("libtorch failed").to_owned();
        Self::internal(first).caused_by(error)
    }
}

/// Failures of the store, by what a trainer can do about them.
impl From<dcp::Error> for Error {
    fn from(error: dcp::Error) -> Self {
        let kind = match error.kind() {
            dcp::ErrorKind::NotFound => ErrorKind::NotFound,
            dcp::ErrorKind::Conflict => ErrorKind::Conflict,
            dcp::ErrorKind::Corrupt => ErrorKind::Corrupt,
            dcp::ErrorKind::Unsupported | dcp::ErrorKind::Incompatible => ErrorKind::Incompatible,
            dcp::ErrorKind::Access | dcp::ErrorKind::Io => ErrorKind::Io,
            dcp::ErrorKind::Cancelled => ErrorKind::Cancelled,
            _ => ErrorKind::Internal,
        };
        let found = Self::new(kind, error.to_string());
        let hinted = error.hint_text().map(str::to_owned);
        let found = hinted.map_or(found, |hint| Self::new(kind, error.to_string()).hint(hint));
        found.caused_by(error)
    }
}

/// A schedule that can't be.
impl From<schedule::ScheduleError> for Error {
    fn from(error: schedule::ScheduleError) -> Self {
        Self::config(error.to_string()).caused_by(error)
    }
}

/// A failed I/O operation.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
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
