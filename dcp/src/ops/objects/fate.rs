//! [`Fate`]: what becomes of each object of a checkpoint, by its position, and what there is to say of it.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{
    Error, ObjectEntry, Result,
    rank_state::{Family, ObjectCounts, RankScheme, Uncovered},
};

/// What becomes of the objects of one checkpoint, by their positions.
#[derive(Default)]
pub(super) struct Fate {
    /// Left out, since they can't follow and that is asked for.
    pub(super) left: HashSet<usize>,
    /// Left out by a rule.
    pub(super) dropped: HashSet<usize>,
    /// Those of data ranks whose number changes: written where the first of them was.
    pub(super) made: HashMap<usize, Vec<ObjectEntry>>,
    /// All others of those.
    pub(super) gone: HashSet<usize>,
    /// Families that change.
    pub(super) changed: Vec<Family>,
    /// Where values of data ranks lie that change, or lay that are left out.
    pub(super) places: Vec<Vec<String>>,
    /// Leaves of which no rule says what becomes of them.
    pub(super) uncovered: Uncovered,
    /// What may be the number of data ranks beside values that are left out.
    pub(super) stale: Uncovered,
    /// Positions of the rules that decided on something.
    pub(super) decided: BTreeSet<usize>,
    pub(super) counts: ObjectCounts,
}

impl Fate {
    /// Places beside whose values the object with this path lies, or holds some that do.
    pub(super) fn beside(&self, path: &[&str]) -> Vec<&[String]> {
        let near = |place: &&Vec<String>| !place.is_empty() || path.len() == 1;
        self.places.iter().filter(near).map(Vec::as_slice).collect()
    }

    /// Refuses leaves of which nothing says what becomes of them, all at once.
    pub(super) fn must_be_covered(&self, change: impl FnOnce(Option<&Family>) -> String) -> Result<()> {
        let Some(first) = self.uncovered.first.first() else { return Ok(()) };
        let change = change(self.changed.first());
        let text = format!("{change}: no rule says what becomes of {}", self.uncovered);
        let one = &first.path;
        Err(Error::incompatible(text).hint(format!(
            "say it of each: --rank-state '{one}=HOW' with same, concat, interleave, sum, ranks or drop, see `ckpt help \
             rank-state`; --drop-per-rank leaves out values that no rule is about at all"
        )))
    }

    /// What was left out, what is kept and may be wrong, and which of the first `given` rules decided on nothing.
    pub(super) fn notes(&self, scheme: &RankScheme, given: usize) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.left.is_empty() {
            notes.push(format!("{} per-rank values left out", self.left.len()));
        }
        let dropped = self.counts.dropped.saturating_sub(self.left.len());
        if dropped > 0 {
            notes.push(format!("{dropped} non-tensor values left out by rules for rank state"));
        }
        if !self.stale.is_empty() {
            notes.push(format!(
                "kept beside what is left out, and may be the old number of data ranks: {}; --rank-state 'PATH=ranks' rewrites it",
                self.stale
            ));
        }
        let idle = |(at, _): &(usize, _)| !self.decided.contains(at);
        let idle = scheme.rules().iter().enumerate().take(given).filter(idle);
        notes.extend(
            idle.map(|(_, rule)| {
                format!("--rank-state '{}={}' decided on nothing", rule.pattern, rule.spread)
            }),
        );
        notes
    }
}
