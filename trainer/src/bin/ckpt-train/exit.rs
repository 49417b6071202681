//! Exit codes, the one place that maps failures to them, and what the launcher does about each. The codes are stable;
//! where they mean the same as those of `ckpt`, they are the same.

use std::process::ExitCode;

use trainer::{
    Error, ErrorKind,
    launch::{Meaning, Reaction},
};

/// A documented exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    /// The number.
    pub(crate) number: u8,
    /// What it means.
    pub(crate) meaning: &'static str,
    /// What the launcher does when a rank ends with it.
    pub(crate) reaction: Reaction,
}

macro_rules! codes {
    ($($name:ident = $number:literal $reaction:ident $meaning:literal;)*) => {
        $(#[doc = $meaning] pub(crate) const $name: Code =
            Code { number: $number, meaning: $meaning, reaction: Reaction::$reaction };)*
        /// All of them, as `ckpt-train exit-codes` lists them.
        pub(crate) const ALL: &[Code] = &[$($name,)*];
    };
}

codes! {
    DONE = 0 Final "done";
    DIFFERENT = 1 Restart "the answer is no: `compare` found a difference, what `plan` was asked for does not fit, `doctor` found a symptom";
    USAGE = 2 Final "wrong usage of the command line";
    NOT_FOUND = 10 Final "not found: file, folder, checkpoint or program";
    CONFLICT = 11 Final "conflict: another writer or incarnation is at work, or a port is taken";
    ACCESS = 12 Final "access refused";
    CORRUPT = 20 Final "data is corrupt, incomplete or contradictory";
    UNSUPPORTED = 21 Final "not supported by this build";
    INCOMPATIBLE = 22 Final "the checkpoint does not fit: another model or another exact-mode geometry";
    NOT_FINITE = 23 Final "a loss or a gradient is not finite";
    DATA = 65 Final "the training data is missing, too short, or not what the run was trained on";
    INTERNAL = 70 Restart "internal error; please report it";
    IO = 74 Restart "the file system, store or a socket failed, or is full";
    PEER = 75 Follows "a peer did not arrive, died, or did not answer in time";
    CONFIG = 78 Final "the configuration contradicts itself, the model or the number of ranks";
    INTERRUPTED = 130 Final "interrupted (SIGINT)";
    TERMINATED = 143 Final "terminated (SIGTERM)";
}

/// The code of a failure.
pub(crate) const fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Config => CONFIG,
        ErrorKind::Data => DATA,
        ErrorKind::Incompatible => INCOMPATIBLE,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::Conflict => CONFLICT,
        ErrorKind::Peer => PEER,
        ErrorKind::NotFinite => NOT_FINITE,
        ErrorKind::Io => IO,
        ErrorKind::Cancelled => INTERRUPTED,
        ErrorKind::Unsupported => UNSUPPORTED,
        _ => INTERNAL,
    }
}

/// What an exit code of a rank of ours means to the launcher.
pub(crate) fn meaning(number: u8) -> Option<Meaning> {
    let code = ALL.iter().find(|code| code.number == number)?;
    Some(Meaning { text: code.meaning, reaction: code.reaction })
}

/// What an exit code of any other program means to the launcher: nothing that it knows.
pub(crate) const fn unknown(_number: u8) -> Option<Meaning> {
    None
}

/// Says what went wrong, if anything did, and yields the process's exit code.
pub(crate) fn conclude(outcome: Result<u8, Error>) -> ExitCode {
    let error = match outcome {
        Ok(number) => return ExitCode::from(number),
        Err(error) => error,
    };
    eprintln!("error  {}", harmless(&error.to_string()));
    for cause in causes(&error) {
        eprintln!("cause  {}", harmless(&cause));
    }
    if let Some(hint) = error.hint_text() {
        eprintln!("hint   {}", harmless(hint));
    }
    ExitCode::from(code_of(error.kind()).number)
}

/// What lies behind a failure and is not in its message already.
fn causes(error: &Error) -> Vec<String> {
    let (mut said, mut causes) = (error.to_string(), Vec::new());
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.contains(&text) {
            said.push_str(&text);
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}

/// Without control characters, which file names and values may hold.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_told_apart_by_its_number() {
        let numbers: Vec<u8> = ALL.iter().map(|code| code.number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn what_would_fail_again_is_not_started_again() {
        let reaction = |kind| meaning(code_of(kind).number).unwrap().reaction;
        for kind in [ErrorKind::Config, ErrorKind::Data, ErrorKind::NotFinite, ErrorKind::Conflict] {
            assert_eq!(reaction(kind), Reaction::Final, "{kind:?}");
        }
        assert_eq!(reaction(ErrorKind::Io), Reaction::Restart);
        assert_eq!(reaction(ErrorKind::Peer), Reaction::Follows);
        assert_eq!(meaning(3), None);
    }
}
