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
mod global;
mod leaf;
mod spread;
mod state;
#[cfg(test)]
mod tests;
mod uncovered;
mod walk;

pub use fqn::rank_state::{RankRule, RankScheme, RankStateError, Spread};

pub(crate) use family::{Families, Family};
pub(crate) use uncovered::Uncovered;
pub(crate) use walk::Walk;

use fqn::rank_state::{Below, MOST_RULES};

use crate::{Catalog, Error, ObjectEntry, Result};
use decode::Budget;
use global::Global;
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
    /// Of the whole run, with the number of data ranks in them rewritten, or with leaves left out, as rules say.
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
/// `Incompatible` for more rules than are read again.
pub(crate) fn record(
    scheme: RankScheme,
    extra: &mut serde_json::Map<String, serde_json::Value>,
) -> Result<()> {
    if scheme.rules().len() > MOST_RULES {
        let text = format!("{} rules for rank state, and {MOST_RULES} are kept", scheme.rules().len());
        return Err(Error::incompatible(text).hint("one rule may be for many leaves: 'dataloader.**=same'"));
    }
    if !scheme.is_empty() {
        let value = serde_json::to_value(scheme).map_err(|error| Error::internal(error.to_string()))?;
        extra.insert(Catalog::RANK_STATE.to_owned(), value);
    }
    Ok(())
}

/// Refuses values of data ranks that are not of as many as there are: with one that is missing, its state is lost.
///
/// # Errors
/// `Incompatible`, naming them.
pub(crate) fn must_be_of(objects: &[ObjectEntry], ranks: u64) -> Result<()> {
    let families = Families::of(objects, Some(ranks));
    families.all.iter().try_for_each(|family| family.must_be_of(ranks, "the mesh has"))
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
    let mut budget = Budget::of(members);
    let states = members.iter().map(|member| budget.decode(member)).collect::<Result<Vec<_>>>();
    let states = states.map_err(|error| unread(error, path))?;
    let Some(made) = walk.family(path, &states)? else { return Ok(None) };
    let entry = |state: &State| encode::encode(first, state);
    made.iter().map(entry).collect::<Result<Vec<_>>>().map(Some)
}

/// The value of `object`, which is one for the whole run, with what rules say of it; itself where they change nothing, and `None` where
/// they drop all of it. Then what may be the number of data ranks at one of the places `beside` and is kept without a rule that names it.
///
/// # Errors
/// As [`respread`].
pub(crate) fn rewritten(
    walk: &mut Walk<'_>,
    path: &[&str],
    object: &ObjectEntry,
    beside: Vec<&[String]>,
) -> Result<(Option<ObjectEntry>, Uncovered)> {
    let spread = |at: usize| walk.scheme.rules().get(at).map(|rule| rule.spread);
    let below = walk.scheme.at(path).below();
    let changes = match below {
        Below::Nothing => false,
        Below::Rule(at) if spread(at) == Some(Spread::Drop) => {
            walk.decided.insert(at);
            return Ok((None, Uncovered::default()));
        }
        Below::Rule(at) => spread(at) != Some(Spread::Same),
        Below::Mixed => true,
    };
    if !changes && beside.is_empty() {
        if let Below::Rule(at) = below {
            walk.decided.insert(at);
        }
        return Ok((Some(object.clone()), Uncovered::default()));
    }
    let state = match Budget::of(&[object]).decode(object) {
        Ok(state) => state,
        // What no rule can change is carried along unread, as ever.
        Err(_) if !changes => return Ok((Some(object.clone()), Uncovered::default())),
        Err(error) => return Err(unread(error, path)),
    };
    let mut global = Global { beside, stale: Uncovered::default() };
    let made = match walk.global(path, &state, &mut global)? {
        Some(made) if made == state => Some(object.clone()),
        Some(made) => Some(encode::encode(object, &made)?),
        None => None,
    };
    Ok((made, global.stale))
}

/// A value that has to be looked into, and can't be.
fn unread(error: Error, path: &[&str]) -> Error {
    error.hint(format!("--rank-state '{}=drop' leaves the value out", path.join(".")))
}
