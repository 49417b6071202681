//! Values of the whole run: each leaf is kept, rewritten or dropped, and what may be the number of data ranks is not kept by accident.

use super::{
    RankRule, Spread, Walk,
    state::State,
    uncovered::{Joined, Leaf, Uncovered},
};
use crate::Result;

/// Names under which the number of data ranks is kept beside their values, by TorchTitan and others: kept as it is, it would be
/// wrong. Whether it is that number is not guessed from the name: a rule has to say.
const COUNTS: [&str; 2] = ["world_size", "dp_world_size"];

/// One value of the whole run.
#[derive(Debug, Default)]
pub(super) struct Global<'a> {
    /// Places where values of data ranks lie, or lay: what is called like their number is looked for there and below.
    pub(super) beside: Vec<&'a [String]>,
    /// Leaves that are called so, and of which no rule speaks by name.
    pub(super) stale: Uncovered,
}

impl Global<'_> {
    /// Whether a value that may be the number of data ranks would be kept by accident: no rule is about it, or one for many that says
    /// that all are the same.
    fn may_be_stale(&self, path: &[String], rule: Option<&RankRule>) -> bool {
        path.last().is_some_and(|key| COUNTS.contains(&key.rsplit('.').next().unwrap_or_default()))
            && rule.is_none_or(|rule| rule.spread == Spread::Same && !names(rule, path))
            && self.beside.iter().any(|place| path.starts_with(place))
    }
}

/// Whether a rule is for this path alone, and says so.
fn names(rule: &RankRule, path: &[String]) -> bool {
    let mut rest = Some(rule.pattern.as_str());
    for (at, key) in path.iter().enumerate() {
        rest = rest.and_then(|rest| if at == 0 { Some(rest) } else { rest.strip_prefix('.') });
        rest = rest.and_then(|rest| rest.strip_prefix(key.as_str()));
    }
    rest.is_some_and(str::is_empty)
}

impl Walk<'_> {
    /// One value for the whole run, with what rules say of its leaves; `None` where they drop it.
    ///
    /// # Errors
    /// `Incompatible` for a leaf that does not fit its rule.
    pub(super) fn global(
        &mut self,
        path: &[&str],
        value: &State,
        global: &mut Global<'_>,
    ) -> Result<Option<State>> {
        self.enter(path);
        let made = self.of_run(value, global)?;
        if let Some(made) = made.as_ref().filter(|made| *made != value) {
            self.can_be_written(made, "")?;
        }
        Ok(made)
    }

    fn of_run(&mut self, value: &State, global: &mut Global<'_>) -> Result<Option<State>> {
        if let State::Dict(pairs) = value
            && !pairs.is_empty()
        {
            let mut kept = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                let one = self.within(key, |walk| walk.of_run(value, global))?;
                kept.extend(one.map(|value| (key.clone(), value)));
            }
            return Ok((!kept.is_empty()).then_some(State::Dict(kept)));
        }
        if let State::Pickled(pickled) = value {
            return Ok(match self.of_run(&pickled.value, global)? {
                Some(same) if same == pickled.value => Some(value.clone()),
                Some(made) => {
                    self.can_be_written(&made, "")?;
                    Some(State::Pickled(Box::new(pickled.around(made)?)))
                }
                None => None,
            });
        }
        let rule = self.decide();
        if global.may_be_stale(&self.path, rule) {
            let value = || format!("{value} (kept as it is only where a rule names it)");
            let path = &self.path;
            global.stale.note(|| Leaf { path: Joined(path).to_string(), value: value() });
        }
        match rule.map(|rule| rule.spread) {
            None | Some(Spread::Same) => Ok(Some(value.clone())),
            Some(Spread::Drop) => Ok(None),
            Some(Spread::Ranks) => {
                self.change.is_ranks(value).map_err(|why| self.refused(&why))?;
                Ok(Some(State::Int(self.change.to.into())))
            }
            Some(spread @ (Spread::Concat | Spread::Interleave | Spread::Sum)) => {
                let why = format!("is one value for the whole run, and a rule says {spread}");
                Err(self.refused(&why).hint("same, ranks or drop is what can become of it: later rules win"))
            }
        }
    }
}
