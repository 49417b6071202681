//! The guard of a worker: asks the kernel to end this process when the launcher dies, then becomes the worker's program.
//!
//! A process can ask that for itself only, so the launcher starts this guard instead of the program; `exec` keeps the
//! request. The kernel watches the *thread* that started the worker, so the launcher starts all from its main thread.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{Error, ErrorKind};

/// Becomes `program`, to be ended when process `launcher` ends. Returns only if it can't.
#[must_use]
pub fn guarded(launcher: u32, program: &OsString, arguments: &[OsString]) -> Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Error::new(ErrorKind::Internal, "the kernel will not watch the launcher").caused_by(error);
    }
    // It may have died before the request, which then never fires.
    let parent = getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    if parent != Some(launcher) {
        return Error::new(ErrorKind::Cancelled, "the launcher is gone");
    }
    let error = Command::new(program).args(arguments).exec();
    let said = format!("cannot run {}: {error}", program.to_string_lossy());
    Error::new(ErrorKind::NotFound, said).hint("give --program a command that exists").caused_by(error)
}
