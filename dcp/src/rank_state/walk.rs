//! [`Walk`]: the values of all data ranks side by side, down to their leaves, each of which a rule decides on.

use std::collections::{BTreeSet, HashMap, HashSet};

use fqn::rank_state::Cursor;

use super::{
    RankRule, RankScheme, Spread,
    leaf::Change,
    state::{Pickled, State},
    uncovered::{Joined, Leaf, Uncovered},
};
use crate::{Error, Result};

/// A change of the number of data ranks, and what was found on the way.
#[derive(Debug)]
pub(crate) struct Walk<'s> {
    /// What becomes of each leaf.
    pub(super) scheme: &'s RankScheme,
    pub(super) change: Change,
    /// Leaves that no rule covers.
    pub(crate) uncovered: Uncovered,
    /// Positions of the rules that decided on a leaf.
    pub(crate) decided: BTreeSet<usize>,
    /// Where it is, for the rules and for people.
    cursor: Cursor<'s>,
    pub(super) path: Vec<String>,
}

/// What a leaf becomes: one value for each rank, or nothing.
type Made = Option<Vec<State>>;

impl<'s> Walk<'s> {
    /// A walk that has met nothing yet.
    pub(crate) fn new(scheme: &'s RankScheme, from: Option<u64>, to: u64) -> Self {
        let change = Change { from, to };
        let cursor = scheme.cursor();
        Self {
            scheme,
            change,
            uncovered: Uncovered::default(),
            decided: BTreeSet::new(),
            cursor,
            path: Vec::new(),
        }
    }

    /// Begins at the place of a value.
    pub(super) fn enter(&mut self, path: &[&str]) {
        self.cursor = self.scheme.at(path);
        self.path = path.iter().map(|part| (*part).to_owned()).collect();
    }

    /// Goes down to a key of a dict and back up.
    pub(super) fn within<T>(&mut self, key: &State, there: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let segment = key.segment();
        self.cursor.push(&segment);
        self.path.push(segment);
        let found = there(self);
        self.cursor.pop();
        self.path.pop();
        found
    }

    /// What becomes of the leaf here, and by which rule.
    pub(super) fn decide(&mut self) -> Option<&'s RankRule> {
        let at = self.cursor.rule()?;
        self.decided.insert(at);
        self.scheme.rules().get(at)
    }

    /// The values of all data ranks, for as many as there will be. What no rule covers is noted, and left out.
    ///
    /// # Errors
    /// `Incompatible` for a leaf that does not fit its rule.
    pub(super) fn family(&mut self, path: &[&str], values: &[State]) -> Result<Made> {
        self.enter(path);
        self.node(&values.iter().collect::<Vec<_>>())
    }

    fn node(&mut self, values: &[&State]) -> Result<Made> {
        let dicts: Option<Vec<_>> = values.iter().map(|value| dict(value)).collect();
        if let Some(dicts) = dicts.filter(|dicts| dicts.iter().any(|dict| !dict.is_empty())) {
            return self.dicts(&dicts);
        }
        let pickled: Option<Vec<&Pickled>> = values.iter().map(|value| pickle(value)).collect();
        match pickled.as_deref() {
            Some([first, ..]) => self.pickles(first, pickled.as_deref().unwrap_or_default()),
            _ => self.leaf(values),
        }
    }

    fn pickles(&mut self, first: &Pickled, all: &[&Pickled]) -> Result<Made> {
        let inner: Vec<&State> = all.iter().map(|pickled| &pickled.value).collect();
        let Some(made) = self.node(&inner)? else { return Ok(None) };
        let wrap = |value: State| {
            // A value that stays keeps its bytes.
            let same = all.iter().find(|pickled| pickled.value == value);
            let pickled = same.map_or_else(|| first.around(value), |same| Ok((*same).clone()))?;
            Ok(State::Pickled(Box::new(pickled)))
        };
        made.into_iter().map(wrap).collect::<Result<Vec<_>>>().map(Some)
    }

    /// Each key of dicts by itself. A dict that loses all its keys goes with them.
    fn dicts(&mut self, dicts: &[&[(State, State)]]) -> Result<Made> {
        let tables: Vec<HashMap<&State, &State>> =
            dicts.iter().map(|dict| dict.iter().map(|(key, value)| (key, value)).collect()).collect();
        let (mut seen, mut made) = (HashSet::new(), Vec::new());
        for key in dicts.iter().flat_map(|dict| dict.iter().map(|(key, _)| key)) {
            if !seen.insert(key) {
                continue;
            }
            let values: Option<Vec<&State>> = tables.iter().map(|table| table.get(key).copied()).collect();
            let one = self.within(key, |walk| match values {
                Some(values) => walk.node(&values),
                None => walk.missing(key, &tables),
            })?;
            made.extend(one.map(|states| (key, states)));
        }
        if made.is_empty() {
            return Ok(None);
        }
        let each = (0..self.ranks()?).map(|rank| {
            let pair =
                |(key, states): &(&State, Vec<State>)| Some(((*key).clone(), states.get(rank)?.clone()));
            State::Dict(made.iter().filter_map(pair).collect())
        });
        Ok(Some(each.collect()))
    }

    /// What some ranks have and others don't can only be dropped.
    fn missing(&mut self, key: &State, tables: &[HashMap<&State, &State>]) -> Result<Made> {
        if self.decide().is_some_and(|rule| rule.spread == Spread::Drop) {
            return Ok(None);
        }
        let without = tables.iter().position(|table| !table.contains_key(key)).unwrap_or(0);
        let why = format!("is not there on data rank {without}, and on others it is");
        Err(self.refused(&why).hint(format!("'{}=drop' leaves it out", Joined(&self.path))))
    }

    fn leaf(&mut self, values: &[&State]) -> Result<Made> {
        let empty = |value: &&State| matches!(value, State::Dict(pairs) if pairs.is_empty());
        let spread = match self.decide() {
            Some(rule) => rule.spread,
            // No leaf below, so nothing to decide on.
            None if values.iter().all(empty) => Spread::Same,
            None => {
                let value = || values.first().map(ToString::to_string).unwrap_or_default();
                let path = &self.path;
                self.uncovered.note(|| Leaf { path: Joined(path).to_string(), value: value() });
                return Ok(None);
            }
        };
        if spread == Spread::Drop {
            return Ok(None);
        }
        for (rank, value) in values.iter().enumerate() {
            self.can_be_written(value, &format!(" on data rank {rank}"))?;
        }
        self.change.spread(spread, values).map(Some).map_err(|why| self.refused(&why))
    }

    /// Refuses what would not come back as it was.
    pub(super) fn can_be_written(&self, value: &State, of_whom: &str) -> Result<()> {
        let Some((below, what)) = value.odd() else { return Ok(()) };
        let path = Joined(&self.path);
        let text = format!("{path}{below} holds {what}{of_whom}, which can't be written again");
        Err(Error::incompatible(text).hint(format!("'{path}{below}=drop' leaves it out")))
    }

    pub(super) fn refused(&self, why: &str) -> Error {
        let path = Joined(&self.path);
        let hint = format!(
            "another rule may fit: --rank-state '{path}=HOW', later ones win; see `ckpt help rank-state`"
        );
        Error::incompatible(format!("{path} {why}")).hint(hint)
    }

    fn ranks(&self) -> Result<usize> {
        usize::try_from(self.change.to)
            .map_err(|_| Error::incompatible(format!("{} data ranks", self.change.to)))
    }
}

fn dict(value: &State) -> Option<&[(State, State)]> {
    if let State::Dict(pairs) = value { Some(pairs) } else { None }
}

fn pickle(value: &State) -> Option<&Pickled> {
    if let State::Pickled(pickled) = value { Some(pickled) } else { None }
}
