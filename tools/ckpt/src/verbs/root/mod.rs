//! The verbs about a root's history: what was committed, what is kept, what takes space, what is wrong.

mod doctor;
mod du;
mod forget;
mod gc;
mod log;
mod ls;
mod marks;
mod record;

pub(super) use self::{
    doctor::run as doctor,
    du::run as du,
    forget::run as forget,
    gc::run as gc,
    log::run as log,
    ls::run as ls,
    marks::{pin, tag},
    record::Recorder,
};

use dcp::commit::{Label, Log, LogOptions};
use dcp::retention::has_attempts;
use dcp::store::{Root, Stores};
use dcp::{Error, ErrorKind, Place, Result};

use super::write;
use crate::target::Target;

/// The run in whose name garbage is condemned: it belongs to none.
const KEEPER: &str = "ckpt.gc";

/// Opens the log of a root that was committed to.
///
/// # Errors
/// `NotFound` for a place without a log; the store's and the log's.
fn open(target: &Target) -> Result<Log> {
    let log = open_any(target)?;
    if log.head().is_none() {
        return Err(no_log(target));
    }
    Ok(log)
}

/// Opens the log of a root that was committed to, to change something: what is decided on is the word of the log alone, not a hint's.
///
/// # Errors
/// As [`open`].
fn open_to_change(target: &Target) -> Result<Log> {
    let mut log = open(target)?;
    log.prove().place(&target.location)?;
    Ok(log)
}

/// Opens the log of a root whose first save may have been stopped.
///
/// # Errors
/// As [`open`], but for a place with a stopped save.
fn open_begun(target: &Target) -> Result<Log> {
    let log = open_any(target)?;
    if log.head().is_none() && !has_attempts(log.root())? {
        return Err(no_log(target));
    }
    Ok(log)
}

fn no_log(target: &Target) -> Error {
    let text = format!(
        "{}: there is no commit log: no root of the native store, or nothing was committed to it",
        target.location
    );
    Error::new(ErrorKind::NotFound, text)
        .hint("give the folder or URL that holds commits/; `ckpt doctor` says what a place is fit for")
}

fn open_any(target: &Target) -> Result<Log> {
    let root = Root::open(&target.location, &Stores::new())?;
    Log::open_with(&root, options()).place(&target.location)
}

/// Refuses what only the name of a checkpoint has.
fn whole_root(target: &Target) -> Result<()> {
    let extra = match (&target.revision, &target.glob) {
        (Some(revision), _) => format!("@{revision}"),
        (None, Some(glob)) => format!("#{glob}"),
        (None, None) => return Ok(()),
    };
    Err(Error::incompatible(format!("{target}: a root is meant here, not one of its checkpoints"))
        .hint(format!("leave {extra} out")))
}

pub(super) fn options() -> LogOptions {
    LogOptions { writer: write::writer(), ..LogOptions::default() }
}

pub(super) fn label(text: &str) -> Result<Label> {
    text.parse().map_err(|error: dcp::commit::InvalidName| {
        Error::incompatible(error.to_string()).caused_by(error).hint("choose another name")
    })
}

/// Milliseconds since 1970.
fn millis(time: std::time::SystemTime) -> u64 {
    let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
