//! What a rank has sent and received, and how many of its messages are under way: counted by every transport alike.
//!
//! Invariant: [`Traffic::peak_under_way`] never passes [`Traffic::room`] by more than the one message that a send in progress
//! hands over, whatever the receiver does.

use std::cell::Cell;

use tch::Tensor;

/// Messages and the bytes of their tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Messages.
    pub messages: u64,
    /// Bytes of their tensors.
    pub bytes: u64,
}

/// What a rank has sent and received since it joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Sent.
    pub sent: Count,
    /// Received.
    pub received: Count,
    /// Messages sent and not taken yet.
    pub under_way: usize,
    /// The most there were at once.
    pub peak_under_way: usize,
    /// How many there may be when a send returns.
    pub room: usize,
    /// Sends that had to wait for room.
    pub held_back: u64,
}

/// Counts for one rank.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Cell<Traffic>);

impl Ledger {
    /// Nothing has moved yet; `room` messages may be under way.
    pub(crate) fn new(room: usize) -> Self {
        Self(Cell::new(Traffic { room, ..Traffic::default() }))
    }

    pub(crate) fn sent(&self, tensors: &[Tensor], under_way: usize) {
        self.change(|it| {
            it.sent.add(tensors);
            it.peak_under_way = it.peak_under_way.max(under_way);
        });
    }

    pub(crate) fn received(&self, tensors: &[Tensor]) {
        self.change(|it| it.received.add(tensors));
    }

    pub(crate) fn held_back(&self) {
        self.change(|it| it.held_back += 1);
    }

    /// As of now.
    pub(crate) fn read(&self, under_way: usize) -> Traffic {
        Traffic { under_way, ..self.0.get() }
    }

    fn change(&self, act: impl FnOnce(&mut Traffic)) {
        let mut now = self.0.get();
        act(&mut now);
        self.0.set(now);
    }
}

impl Count {
    fn add(&mut self, tensors: &[Tensor]) {
        let bytes: usize = tensors.iter().map(|it| it.numel() * it.kind().elt_size_in_bytes()).sum();
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}
