//! What goes wrong between ranks. Converts to the crate's error at the boundary: peers that are late or dead are `Peer`,
//! peers that say something else than they should are `Corrupt`, calls that can't be right are `Internal`.

use std::{fmt, time::Duration};

use super::Header;
use crate::{Error, ErrorKind};

/// Result of a transport's inner parts.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A failure between ranks.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// The time limit passed.
    #[error("rank {rank} waited {} for {what}; missing: {missing}", Seconds(*.limit))]
    Late { rank: usize, what: String, limit: Duration, missing: Missing },
    /// A peer is gone: its thread or process has ended, or its connection closed.
    #[error("rank {rank} waits for {what}, but {peer} is gone: {why}")]
    Gone { rank: usize, what: String, peer: Peer, why: String },
    /// Another rank has failed and said so.
    #[error("rank {rank} stops, as rank {by} has failed: {why}")]
    Broken { rank: usize, by: usize, why: String },
    /// A message is not the expected one.
    #[error("rank {to} expected from rank {from} {expected}, and got {found}{order}")]
    Header { from: usize, to: usize, expected: Box<Header>, found: Box<Header>, order: Order },
    /// Its payload ends before what its header says.
    #[error("rank {to} got from rank {from} {header}, but its tensors are cut short: {found}")]
    Cut { from: usize, to: usize, header: Box<Header>, found: String },
    /// Members of a group do different things.
    #[error("group {group}: rank {rank} is at {mine}, while rank {other} is at {theirs}")]
    Diverged { group: String, rank: usize, mine: String, other: usize, theirs: String },
    /// A peer's part is not as announced.
    #[error("{what}: rank {from} gave {found}, and rank {rank} expected {expected}")]
    Unlike { what: String, from: usize, found: String, rank: usize, expected: String },
    /// Bytes that are no message of ours.
    #[error("rank {to} got from rank {from} what is no message: {why}")]
    Garbled { from: usize, to: usize, why: String },
    /// Ranks that wait for each other, or for what never comes.
    #[error("{0}")]
    Standstill(String),
    /// A call that contradicts itself.
    #[error("{0}")]
    Misuse(String),
    /// An address that can't be listened on or reached.
    #[error("{what}")]
    Address { what: String, hint: &'static str },
    /// libtorch refused.
    #[error("{what}: {why}")]
    Torch { what: String, why: String },
}

/// One peer, or one of several where the connection does not say which.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// This one.
    Rank(usize),
    /// One of these.
    OneOf(Vec<usize>),
}

/// Who has not arrived, and what each was seen doing last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Missing(pub(crate) Vec<(usize, String)>);

/// Which message of its sender was due, and which one came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) due: u64,
    pub(crate) found: u64,
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::OneOf(ranks) if ranks.len() == 1 => write!(f, "rank {}", ranks[0]),
            Self::OneOf(ranks) => write!(f, "one of ranks {ranks:?}"),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { due, found } = self;
        match due == found {
            true => Ok(()),
            false => {
                write!(f, " (its message {found}, while message {due} was due: one was lost, or overtaken)")
            }
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("not known");
        }
        for (at, (rank, doing)) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}rank {rank} ({doing})")?;
        }
        Ok(())
    }
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Late { .. } | Self::Gone { .. } | Self::Broken { .. } | Self::Standstill(_) => {
                ErrorKind::Peer
            }
            Self::Header { .. }
            | Self::Cut { .. }
            | Self::Diverged { .. }
            | Self::Unlike { .. }
            | Self::Garbled { .. } => ErrorKind::Corrupt,
            Self::Misuse(_) | Self::Torch { .. } => ErrorKind::Internal,
            Self::Address { .. } => ErrorKind::Io,
        }
    }

    const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Late { .. } => Some(
                "see what the missing ranks do in their scenes; a longer time limit helps only if they are slow, not stuck",
            ),
            Self::Header { order, .. } if order.due == order.found => {
                Some("the two ranks run different programs: compare their configurations and schedules")
            }
            Self::Header { .. } | Self::Cut { .. } => {
                Some("the network or the sender lost something: start again from the last checkpoint")
            }
            Self::Standstill(_) => Some(
                "the ranks' programs do not fit together: see the cells that are named (ckpt-train stages --schedule), and comm.mode and comm.buffers",
            ),
            Self::Broken { .. } => Some("the cause is in the log of the rank that failed first"),
            Self::Address { hint, .. } => Some(hint),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = Self::new(failure.kind(), failure.to_string());
        let error =
            failure.hint().map_or(error, |hint| Self::new(failure.kind(), failure.to_string()).hint(hint));
        error.caused_by(failure)
    }
}

impl From<tch::TchError> for Failure {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        let why = text.lines().next().unwrap_or("no reason given").to_owned();
        Self::Torch { what: "libtorch refused a tensor".to_owned(), why }
    }
}
