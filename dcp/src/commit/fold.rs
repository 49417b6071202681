//! What a log means: a pure function of its records.

use super::record::Record;
use super::seq::Seq;
use super::state::{State, Void};

/// What records amount to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fold {
    /// The state after them.
    pub state: State,
    /// The records among them that have no effect, and why.
    pub voids: Vec<(Seq, Void)>,
}

/// Folds all records of a log, from the first. Their order in the slice does not matter; their numbers do.
#[must_use]
pub fn fold(records: &[Record]) -> Fold {
    fold_from(State::default(), records)
}

/// Folds the records that follow a state.
#[must_use]
pub fn fold_from(state: State, records: &[Record]) -> Fold {
    let mut ordered: Vec<_> = records.iter().collect();
    ordered.sort_by_key(|record| record.seq);
    let mut fold = Fold { state, voids: Vec::new() };
    for record in ordered {
        if let Err(void) = fold.state.apply(record) {
            fold.voids.push((record.seq, void));
        }
    }
    fold
}

#[cfg(test)]
pub(super) mod tests;
