//! One leaf of all data ranks, side by side, as its rule says: for as many ranks as there will be.

use super::{
    Spread,
    spread::{self, Why},
    state::State,
};

/// How many data ranks there were, where that is known, and how many there will be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) from: Option<u64>,
    pub(super) to: u64,
}

impl Change {
    /// What becomes of a leaf.
    ///
    /// # Errors
    /// Why it does not fit its rule.
    pub(super) fn spread(self, how: Spread, values: &[&State]) -> Result<Vec<State>, Why> {
        let ranks = usize::try_from(self.to).map_err(|_| "is for more ranks than memory holds".to_owned())?;
        match how {
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

    /// Whether a leaf is the number of data ranks that there were.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn is_ranks(self, value: &State) -> Result<(), Why> {
        let Some(from) = self.from else {
            return Err(format!(
                "is {value}, and how many data ranks there were is not known: --from says on which mesh it was written"
            ));
        };
        match value {
            State::Int(int) if *int == i128::from(from) => Ok(()),
            other => Err(format!("is {other}, and not the number of data ranks, which was {from}")),
        }
    }
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
