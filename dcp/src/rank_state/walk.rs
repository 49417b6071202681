//! [`Walk`]: the values of all data ranks side by side, down to their leaves, each of which a rule decides on.

use std::collections::{HashMap, HashSet};

use super::{
    RankScheme, Spread,
    spread::{self, Why},
    state::{Pickled, State},
};
use crate::{Error, Result};

/// A change of the number of data ranks, and what was found on the way.
#[derive(Debug)]
pub(crate) struct Walk<'s> {
    /// What becomes of each leaf.
    pub(crate) scheme: &'s RankScheme,
    /// Data ranks that there were, where it is known.
    pub(crate) from: Option<u64>,
    /// Data ranks that there will be.
    pub(crate) to: u64,
    /// Leaves that no rule covers.
    pub(crate) uncovered: Vec<Uncovered>,
    /// Leaves that one does.
    pub(crate) covered: usize,
}

/// A leaf that no rule covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uncovered {
    /// Its path, without the rank.
    pub(crate) path: String,
    /// Its value on the first rank, as text.
    pub(crate) value: String,
}

/// What a leaf becomes: one value for each rank, or nothing.
type Made = Option<Vec<State>>;

impl<'s> Walk<'s> {
    /// A walk that has met nothing yet.
    pub(crate) const fn new(scheme: &'s RankScheme, from: Option<u64>, to: u64) -> Self {
        Self { scheme, from, to, uncovered: Vec::new(), covered: 0 }
    }

    /// The values of all data ranks, for as many as there will be. What no rule covers is noted, and left out.
    ///
    /// # Errors
    /// `Incompatible` for a leaf that does not fit its rule.
    pub(super) fn family(&mut self, path: &[&str], values: &[State]) -> Result<Made> {
        let mut path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        self.node(&mut path, &values.iter().collect::<Vec<_>>())
    }

    fn node(&mut self, path: &mut Vec<String>, values: &[&State]) -> Result<Made> {
        let dicts: Option<Vec<_>> = values.iter().map(|value| dict(value)).collect();
        if let Some(dicts) = dicts.filter(|dicts| dicts.iter().any(|dict| !dict.is_empty())) {
            return self.dicts(path, &dicts);
        }
        let pickled: Option<Vec<&Pickled>> = values.iter().map(|value| pickle(value)).collect();
        match pickled.as_deref() {
            Some([first, ..]) => self.pickles(path, first, pickled.as_deref().unwrap_or_default()),
            _ => self.leaf(path, values),
        }
    }

    fn pickles(&mut self, path: &mut Vec<String>, first: &Pickled, all: &[&Pickled]) -> Result<Made> {
        let inner: Vec<&State> = all.iter().map(|pickled| &pickled.value).collect();
        let Some(made) = self.node(path, &inner)? else { return Ok(None) };
        let wrap = |value: State| {
            // A value that stays keeps its bytes.
            let same = all.iter().find(|pickled| pickled.value == value);
            let pickled = same.map_or_else(|| first.around(value), |same| Ok((*same).clone()))?;
            Ok(State::Pickled(Box::new(pickled)))
        };
        made.into_iter().map(wrap).collect::<Result<Vec<_>>>().map(Some)
    }

    /// Each key of dicts by itself. A dict that loses all its keys goes with them.
    fn dicts(&mut self, path: &mut Vec<String>, dicts: &[&[(State, State)]]) -> Result<Made> {
        let tables: Vec<HashMap<&State, &State>> =
            dicts.iter().map(|dict| dict.iter().map(|(key, value)| (key, value)).collect()).collect();
        let (mut seen, mut made) = (HashSet::new(), Vec::new());
        for key in dicts.iter().flat_map(|dict| dict.iter().map(|(key, _)| key)) {
            if !seen.insert(key) {
                continue;
            }
            path.push(key.segment());
            let values: Option<Vec<&State>> = tables.iter().map(|table| table.get(key).copied()).collect();
            let one = match values {
                Some(values) => self.node(path, &values)?,
                None => self.missing(path, key, &tables)?,
            };
            path.pop();
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
    fn missing(&mut self, path: &[String], key: &State, tables: &[HashMap<&State, &State>]) -> Result<Made> {
        if self.spread(path) == Some(Spread::Drop) {
            self.covered += 1;
            return Ok(None);
        }
        let without = tables.iter().position(|table| !table.contains_key(key)).unwrap_or(0);
        let why = format!("is not there on data rank {without}, and on others it is");
        Err(refused(path, &why).hint(format!("'{}=drop' leaves it out", path.join("."))))
    }

    fn leaf(&mut self, path: &[String], values: &[&State]) -> Result<Made> {
        let rule = self.spread(path);
        let empty = |value: &&State| matches!(value, State::Dict(pairs) if pairs.is_empty());
        let spread = match rule {
            Some(spread) => spread,
            // No leaf below, so nothing to decide on.
            None if values.iter().all(empty) => Spread::Same,
            None => {
                let value = values.first().map(ToString::to_string).unwrap_or_default();
                self.uncovered.push(Uncovered { path: path.join("."), value });
                return Ok(None);
            }
        };
        self.covered += usize::from(rule.is_some());
        if spread == Spread::Drop {
            return Ok(None);
        }
        carried(path, values)?;
        self.respread(spread, values).map(Some).map_err(|why| refused(path, &why))
    }

    fn respread(&self, spread: Spread, values: &[&State]) -> Result<Vec<State>, Why> {
        let ranks = usize::try_from(self.to).map_err(|_| "is for more ranks than memory holds".to_owned())?;
        match spread {
            Spread::Same => same(values).map(|value| vec![value.clone(); ranks]),
            Spread::Ranks => values
                .iter()
                .try_for_each(|value| self.is_ranks(value))
                .map(|()| vec![State::Int(self.to.into()); ranks]),
            Spread::Sum => spread::sum(values, ranks),
            Spread::Concat => lists(values, ranks, false),
            Spread::Interleave => lists(values, ranks, true),
            Spread::Drop => Err("is left out".to_owned()),
        }
    }

    fn is_ranks(&self, value: &State) -> Result<(), Why> {
        let Some(from) = self.from else {
            return Err(format!("is {value}, and how many data ranks there were is not known"));
        };
        match value {
            State::Int(int) if *int == i128::from(from) => Ok(()),
            other => Err(format!("is {other}, and not the number of data ranks, which was {from}")),
        }
    }

    /// One value for the whole run, with what rules say of its leaves; `None` where they drop it.
    ///
    /// # Errors
    /// `Incompatible` for a leaf that does not fit its rule.
    pub(super) fn global(&self, path: &[&str], value: &State) -> Result<Option<State>> {
        let mut path: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        self.of_run(&mut path, value)
    }

    fn of_run(&self, path: &mut Vec<String>, value: &State) -> Result<Option<State>> {
        if let State::Dict(pairs) = value
            && !pairs.is_empty()
        {
            let mut kept = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                path.push(key.segment());
                let one = self.of_run(path, value)?;
                path.pop();
                kept.extend(one.map(|value| (key.clone(), value)));
            }
            return Ok((!kept.is_empty()).then_some(State::Dict(kept)));
        }
        if let State::Pickled(pickled) = value {
            return Ok(match self.of_run(path, &pickled.value)? {
                Some(same) if same == pickled.value => Some(value.clone()),
                Some(made) => Some(State::Pickled(Box::new(pickled.around(made)?))),
                None => None,
            });
        }
        match self.spread(path) {
            None | Some(Spread::Same) => Ok(Some(value.clone())),
            Some(Spread::Drop) => Ok(None),
            Some(Spread::Ranks) => {
                self.is_ranks(value).map_err(|why| refused(path, &why))?;
                Ok(Some(State::Int(self.to.into())))
            }
            Some(spread @ (Spread::Concat | Spread::Interleave | Spread::Sum)) => {
                let why = format!("is one value for the whole run, and a rule says {spread}");
                Err(refused(path, &why).hint("same, ranks or drop is what can become of it: later rules win"))
            }
        }
    }

    fn spread(&self, path: &[String]) -> Option<Spread> {
        self.scheme.spread(&path.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn ranks(&self) -> Result<usize> {
        usize::try_from(self.to).map_err(|_| Error::incompatible(format!("{} data ranks", self.to)))
    }
}

fn dict(value: &State) -> Option<&[(State, State)]> {
    if let State::Dict(pairs) = value { Some(pairs) } else { None }
}

fn pickle(value: &State) -> Option<&Pickled> {
    if let State::Pickled(pickled) = value { Some(pickled) } else { None }
}

fn same<'v>(values: &[&'v State]) -> Result<&'v State, Why> {
    let Some((first, rest)) = values.split_first() else { return Err("is nowhere".to_owned()) };
    match rest.iter().zip(1..).find(|(other, _)| *other != first) {
        None => Ok(first),
        Some((other, rank)) => Err(format!(
            "is {first} on data rank 0 and {other} on data rank {rank}, and it is to be the same"
        )),
    }
}

/// Lists or tuples, which they stay.
fn lists(values: &[&State], ranks: usize, interleaved: bool) -> Result<Vec<State>, Why> {
    let mut parts: Vec<&[State]> = Vec::with_capacity(values.len());
    for (rank, value) in values.iter().enumerate() {
        match (value, values.first()) {
            (State::List(items), Some(State::List(_))) | (State::Tuple(items), Some(State::Tuple(_))) => {
                parts.push(items);
            }
            (State::List(_) | State::Tuple(_), _) => {
                return Err("is a list on some data ranks and something else on others".to_owned());
            }
            (other, _) => {
                return Err(format!(
                    "is {} ({other}) on data rank {rank}, where a list is expected",
                    other.noun()
                ));
            }
        }
    }
    let whole = spread::merge(&parts, interleaved)?;
    let tuple = matches!(values.first(), Some(State::Tuple(_)));
    let wrap = |items| if tuple { State::Tuple(items) } else { State::List(items) };
    Ok(spread::split(&whole, ranks, interleaved).into_iter().map(wrap).collect())
}

/// Refuses what would not come back as it was.
fn carried(path: &[String], values: &[&State]) -> Result<()> {
    let Some((rank, (below, what))) =
        values.iter().enumerate().find_map(|(rank, value)| Some((rank, value.odd()?)))
    else {
        return Ok(());
    };
    let text =
        format!("{}{below} holds {what} on data rank {rank}, which can't be written again", path.join("."));
    Err(Error::incompatible(text).hint(format!("'{}=drop' leaves it out", path.join("."))))
}

fn refused(path: &[String], why: &str) -> Error {
    let path = path.join(".");
    let hint = format!(
        "another rule may fit: --rank-state '{path}=HOW', later ones win; see `ckpt help rank-state`"
    );
    Error::incompatible(format!("{path} {why}")).hint(hint)
}
