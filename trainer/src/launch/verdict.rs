//! What an ending means, and what follows from it. Pure.

use std::{fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

use serde::{Deserialize, Serialize};

/// What is done about a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Start all again.
    Restart,
    /// Do not: the same would happen again.
    Final,
    /// It died because another had: that one is the cause, if it is known. Start all again.
    Follows,
}

/// What an exit code of a program means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// In words.
    pub text: &'static str,
    /// What is done about it.
    pub reaction: Reaction,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself, with a code.
    Code(u8),
    /// By a signal.
    Signal(i32),
}

impl Ending {
    /// From what the system says.
    #[must_use]
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Whether it did what it was meant to do.
    #[must_use]
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// The code that a shell would report.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }

    /// What is done about it.
    #[must_use]
    pub fn reaction(self, meaning: fn(u8) -> Option<Meaning>) -> Reaction {
        match self {
            Self::Code(code) => meaning(code).map_or(Reaction::Restart, |meaning| meaning.reaction),
            Self::Signal(_) => Reaction::Restart,
        }
    }

    /// In words.
    #[must_use]
    pub fn told(self, meaning: fn(u8) -> Option<Meaning>) -> String {
        match self {
            Self::Code(code) => match meaning(code) {
                Some(meaning) => format!("exited with code {code} ({})", meaning.text),
                None => format!("exited with code {code}"),
            },
            Self::Signal(signal) => format!("was killed by {}", Signalled(signal)),
        }
    }
}

struct Signalled(i32);

impl fmt::Display for Signalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "signal {}", self.0)?;
        let name = signal_hook::low_level::signal_name(self.0);
        name.map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

/// The death that caused the others: the first that does not merely follow from another, else the first. Deaths are in
/// the order in which they were noticed; those that the launcher brought about are not among them.
#[must_use]
pub(super) fn cause(
    deaths: &[(usize, Ending)],
    meaning: fn(u8) -> Option<Meaning>,
) -> Option<(usize, Ending)> {
    let own = deaths.iter().find(|(_, ending)| ending.reaction(meaning) != Reaction::Follows);
    own.or_else(|| deaths.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: u8) -> Option<Meaning> {
        match code {
            75 => Some(Meaning { text: "lost a peer", reaction: Reaction::Follows }),
            78 => Some(Meaning { text: "bad configuration", reaction: Reaction::Final }),
            _ => None,
        }
    }

    #[test]
    fn a_rank_that_lost_its_peer_is_not_taken_for_the_cause() {
        let deaths = [(1, Ending::Code(75)), (3, Ending::Signal(9)), (0, Ending::Code(78))];
        assert_eq!(cause(&deaths, meaning), Some((3, Ending::Signal(9))));
        assert_eq!(cause(&deaths[..1], meaning), Some((1, Ending::Code(75))));
        assert_eq!(cause(&[], meaning), None);
    }

    #[test]
    fn endings_are_told_by_number_and_meaning() {
        assert_eq!(Ending::Signal(9).told(meaning), "was killed by signal 9 (SIGKILL)");
        assert_eq!(Ending::Code(78).told(meaning), "exited with code 78 (bad configuration)");
        assert_eq!(Ending::Code(3).told(meaning), "exited with code 3");
        assert_eq!((Ending::Signal(9).code(), Ending::Code(3).code()), (137, 3));
        assert_eq!(Ending::Signal(11).reaction(meaning), Reaction::Restart);
        assert_eq!(Ending::Code(78).reaction(meaning), Reaction::Final);
    }
}
