//! [`Record`]: what a rank does with others, in order.

/// A rank's events, each with what the rank was doing.
#[derive(Debug, Clone)]
pub struct Record {
    pub(super) rank: usize,
    /// Number of a note, and the event.
    pub(super) events: Vec<(u32, Event)>,
}

/// One of them; words by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A group comes to be.
    Open(u32),
    /// To a peer.
    Send(Message),
    /// From a peer; its number is the one that is due.
    Receive(Message),
    /// All that was sent must have been taken.
    Flush,
    /// A collective of a group.
    Collective(Collective),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) peer: usize,
    /// Among those of its sender to its receiver.
    pub(super) number: u64,
    /// Whether its tensors are what its header says.
    pub(super) whole: bool,
    pub(super) header: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Collective {
    pub(super) group: u32,
    pub(super) act: u32,
    /// Shapes that this member gives: to each, or one to all.
    pub(super) given: u32,
    /// Shapes that it expects of each.
    pub(super) expected: u32,
    /// Bytes that it sends to the others, as a ring would.
    pub(super) bytes: u64,
}

impl Record {
    pub(super) const fn new(rank: usize) -> Self {
        Self { rank, events: Vec::new() }
    }

    /// The rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// How many events there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the rank did nothing with others.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
