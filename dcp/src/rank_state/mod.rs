//! State that every data rank has of its own, when their number changes: merged into the whole and shared out again, leaf by leaf,
//! as a declared [`RankScheme`] says.
//!
//! ```text
//!  objects ─► family (one value a rank) ─► decode (JSON, pickle, nested pickle) ─► State × R ─┐
//!                                                              scheme: leaf by leaf ──► walk ─┤ merge, split (spread)
//!  objects ◄────────────────────────────────────────────────── encode ◄──────────── State × R'┘
//! ```
//!
//! # Invariants
//!
//! * Nothing is guessed: a leaf that no rule covers is refused by its path, with its value; what a rule says is checked (a leaf
//!   that is the `same` must agree, `ranks` must be their number, an interleaved list must have a whole).
//! * Merging and splitting by the same scheme depend on the whole alone, so R → R′ → R″ is R → R″, and no item of a list is lost or
//!   doubled.
//! * Values come back as they were, types and bits; what cannot (tensors, classes, numbers that JSON would round) is refused by
//!   path, and can be dropped. Only the identity of objects that occur twice in one value is not kept.
//! * Pickles are read as inert data: nothing is run.

mod decode;
mod encode;
mod family;
mod spread;
mod state;
#[cfg(test)]
mod tests;
mod walk;

pub use fqn::rank_state::{RankRule, RankScheme, RankStateError, Spread};

pub(crate) use family::{Families, Family};
pub(crate) use walk::{Uncovered, Walk};

use crate::{Catalog, Error, ObjectEntry, Result};
use state::State;

/// What became of non-tensor values; every value of the source is in one of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ObjectCounts {
    /// Written as they were.
    pub kept: usize,
    /// Of single data ranks, made into those of more.
    pub split: usize,
    /// Of single data ranks, made into those of fewer.
    pub merged: usize,
    /// Of the whole run, with the number of data ranks in them rewritten.
    pub rewritten: usize,
    /// Left out.
    pub dropped: usize,
}

impl ObjectCounts {
    /// All values of the source.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.kept + self.split + self.merged + self.rewritten + self.dropped
    }
}

/// Records a scheme among the facts of a checkpoint, as [`Catalog::RANK_STATE`]; none where it has no rules.
///
/// # Errors
/// None in practice: every scheme has a JSON form.
pub(crate) fn record(
    scheme: RankScheme,
    extra: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    if !scheme.is_empty() {
        let value = serde_json::to_value(scheme).map_err(|error| Error::internal(error.to_string()))?;
        extra.insert(Catalog::RANK_STATE.to_owned(), value);
    }
    Ok(())
}

/// The values of `members`, one of each data rank, for as many as `walk` says; `None` where rules drop all of them. What no rule covers
/// is noted in `walk`, and its value is then missing.
///
/// # Errors
/// `Incompatible` for values that don't fit their rules, or can't be carried; `Corrupt` for bytes that are not of their encoding.
pub(crate) fn respread(
    walk: &mut Walk<'_>,
    path: &[&str],
    members: &[&ObjectEntry],
) -> Result<Option<Vec<ObjectEntry>>> {
    let Some(first) = members.first() else { return Ok(None) };
    if let Some(other) = members.iter().find(|member| member.encoding != first.encoding) {
        let text = format!("{} and {} are encoded differently", first.key, other.key);
        return Err(Error::incompatible(text));
    }
    let states = members.iter().map(|member| decode::decode(member)).collect::<Result<Vec<_>>>()?;
    let Some(made) = walk.family(path, &states)? else { return Ok(None) };
    let entry = |state: &State| encode::encode(first, state);
    made.iter().map(entry).collect::<Result<Vec<_>>>().map(Some)
}

/// The value of `object`, which is one for the whole run, with what rules say of it; itself where they change nothing.
///
/// # Errors
/// As [`respread`].
pub(crate) fn rewritten(walk: &Walk<'_>, path: &[&str], object: &ObjectEntry) -> Result<Option<ObjectEntry>> {
    let state = match decode::decode(object) {
        Ok(state) => state,
        // What no rule is about is carried along unread, as ever.
        Err(_) if walk.scheme.spread(path).is_none() => return Ok(Some(object.clone())),
        Err(error) => return Err(error),
    };
    match walk.global(path, &state)? {
        Some(made) if made == state => Ok(Some(object.clone())),
        Some(made) => encode::encode(object, &made).map(Some),
        None => Ok(None),
    }
}
