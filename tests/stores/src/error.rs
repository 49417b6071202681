//! Why a server does not run.

use std::io;
use std::path::PathBuf;

/// The result of starting a server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A server that does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not installed.
    #[error(
        "not run: {what}: {variable} is not set. `cargo xtask setup --servers` installs it and prints the value; `cargo xtask test` does both"
    )]
    NotInstalled {
        /// The server.
        what: &'static str,
        /// The variable that says where it is.
        variable: &'static str,
    },
    /// It is installed and would not start.
    #[error("not run: {what}, by {}: {why}", program.display())]
    NotStarted {
        /// The server.
        what: &'static str,
        /// What was started.
        program: PathBuf,
        /// What it printed, or what the system said.
        why: String,
    },
    /// The system gave no port, folder or thread.
    #[error("not run: {what}: {source}")]
    System {
        /// The server.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}
