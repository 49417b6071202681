//! What can go wrong in a chore. Each message says what to do; the exit code is always 1.

use std::io;
use std::path::PathBuf;

/// A chore's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Something that the machine must have is not there.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// The program or module.
        what: String,
        /// One sentence on how to get it.
        remedy: String,
    },
    /// A file or folder of the project or of the cache could not be used.
    #[error("could not {action} {}", path.display())]
    Path {
        /// What was tried, as an infinitive.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("could not start `{command}`")]
    Start {
        /// The command line.
        command: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}){advice}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What to do about it: empty, or `: ` and a sentence.
        advice: String,
    },
    /// A program printed what we can't read.
    #[error("could not read what `{command}` printed")]
    Answer {
        /// The command line.
        command: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Checks of ours failed; they have been printed.
    #[error("{count} of {what} failed")]
    Checks {
        /// How many.
        count: usize,
        /// Of what.
        what: String,
    },
    /// Neither `CKPT_CACHE_DIR` nor `XDG_CACHE_HOME` nor `HOME` says where a cache may lie.
    #[error("no place for the cache: set CKPT_CACHE_DIR to a folder with about 9 GB free")]
    NoCache,
}

impl Error {
    /// Attaches what was tried, and where, to a system error.
    pub(crate) fn path(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { action, path, source }
    }
}
