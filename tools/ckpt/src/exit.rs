//! Exit codes, and the one place that maps failures to them. The codes are stable; scripts may rely on them.

use std::process::ExitCode;

use dcp::{Error, ErrorKind};

use crate::{cli::Global, output};

/// A documented exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    /// The number.
    pub(crate) number: u8,
    /// What it means.
    pub(crate) meaning: &'static str,
}

macro_rules! codes {
    ($($name:ident = $number:literal $meaning:literal;)*) => {
        $(#[doc = $meaning] pub(crate) const $name: Code = Code { number: $number, meaning: $meaning };)*
        /// All of them, as `ckpt help exit-codes` lists them.
        pub(crate) const ALL: &[Code] = &[$($name,)*];
    };
}

codes! {
    DONE = 0 "done; identical; clean";
    DIFFERENT = 1 "the answer is no: `diff` or `fqn check` found differences";
    USAGE = 2 "wrong usage of the command line";
    NOT_FOUND = 10 "not found, not a checkpoint, or no committed step";
    CONFLICT = 11 "conflict: the target exists, or another writer is at work";
    ACCESS = 12 "access refused";
    CORRUPT = 20 "data is corrupt, incomplete, contradictory or hostile";
    UNSUPPORTED = 21 "format version or feature not supported";
    INCOMPATIBLE = 22 "request does not fit the checkpoint: mesh, name, dtype, rule";
    INTERNAL = 70 "internal error; please report it";
    IO = 74 "the file system or store failed, or is full";
    INTERRUPTED = 130 "interrupted (SIGINT); nothing half-visible, the same command goes on where it stopped";
    TERMINATED = 143 "terminated (SIGTERM); nothing half-visible, the same command goes on where it stopped";
}

/// The code of a failure.
pub(crate) const fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::Conflict => CONFLICT,
        ErrorKind::Access => ACCESS,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::Unsupported => UNSUPPORTED,
        ErrorKind::Incompatible => INCOMPATIBLE,
        ErrorKind::Io => IO,
        ErrorKind::Cancelled => INTERRUPTED,
        _ => INTERNAL,
    }
}

/// What to do about a failure that does not say it itself.
pub(crate) const fn advice(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => {
            "give the file or folder of a checkpoint; `ckpt help formats` lists what is read"
        }
        ErrorKind::Access => "check the owner and the permissions of the path",
        ErrorKind::Corrupt => {
            "take the file from another copy of the checkpoint, or save it again; `ckpt verify` lists all that is wrong"
        }
        ErrorKind::Unsupported => "`ckpt help formats` lists what is read and written",
        ErrorKind::Io => {
            "see that the disk is there and has space, and run the same command again: it goes on"
        }
        ErrorKind::Internal => "this is a defect of ckpt; please report it with the command that showed it",
        _ => return None,
    })
}

/// Says what went wrong, if anything did, and yields the process's exit code.
pub(crate) fn conclude(global: &Global, outcome: Result<Code, Error>) -> ExitCode {
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            let code = match (error.kind(), crate::interrupt::signal()) {
                (ErrorKind::Cancelled, Some(signal_hook::consts::SIGTERM)) => TERMINATED,
                (kind, _) => code_of(kind),
            };
            output::failure(global, &error, code);
            code
        }
    };
    ExitCode::from(code.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_told_apart_by_its_number() {
        let mut numbers: Vec<u8> = ALL.iter().map(|code| code.number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), ALL.len());
        assert!(numbers.is_sorted());
    }
}
