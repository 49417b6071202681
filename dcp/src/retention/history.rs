//! [`history()`]: the records of a log, newest first, with what each came to.

use std::time::SystemTime;

use crate::{
    Place, Result,
    commit::{CommitError, Log, Record, Seq, State, Void},
};

/// A record, and what it came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The record, without the state that it may carry.
    pub record: Record,
    /// When it was written, by the clock of the store.
    pub stored: SystemTime,
    /// Why it has no effect, if it has none.
    pub void: Option<Void>,
}

/// The last `limit` records, newest first.
///
/// # Errors
/// The store's and the log's.
pub fn history(log: &Log, limit: usize) -> Result<Vec<Event>> {
    let place = log.root().display_name();
    let Some(head) = log.head() else { return Ok(Vec::new()) };
    let first = head.get().saturating_sub(u64::try_from(limit).unwrap_or(u64::MAX).saturating_sub(1)).max(1);
    let first = Seq::new(first).map_err(|error| crate::Error::internal(error.to_string()))?;
    let mut seq = first.last_with_state().unwrap_or(Seq::FIRST);
    let mut state: Option<State> = (seq == Seq::FIRST).then(State::default);
    let mut events = Vec::new();
    while seq <= head {
        let missing = || CommitError::Incomplete { path: log.root().full_name(&seq.path()), later: head };
        let entry = log.read(seq).place(place)?.ok_or_else(missing).place(place)?;
        let mut record = entry.record;
        let carried = record.state.take();
        let mut before = state.take().or(carried).unwrap_or_default();
        let void = before.apply(&record).err();
        state = Some(before);
        if seq >= first {
            events.push(Event { record, stored: entry.stored, void });
        }
        seq = seq.next();
    }
    events.reverse();
    if limit == 0 {
        events.clear();
    }
    Ok(events)
}
