//! One leaf of R ranks, merged into the whole and split for R′: pure, each scheme's algebra by itself.
//!
//! Invariant: what [`split`] makes of the whole, [`merge`] makes the whole of, for any number of ranks.

use super::state::State;

/// Refusal of a leaf, to be read after its path.
pub(super) type Why = String;

/// The items of the whole list, of R parts in the order of ranks.
///
/// # Errors
/// Why an interleaved list has no whole: ranks that come later have more items, or some more than one fewer.
pub(super) fn merge(parts: &[&[State]], interleaved: bool) -> Result<Vec<State>, Why> {
    if !interleaved {
        return Ok(parts.concat());
    }
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let ranks = parts.len().max(1);
    let ragged = parts.iter().enumerate().find(|(rank, part)| part.len() != share(total, ranks, *rank));
    if let Some((rank, part)) = ragged {
        let lengths: Vec<String> = parts.iter().take(16).map(|part| part.len().to_string()).collect();
        return Err(format!(
            "is interleaved over {ranks} data ranks, but their lists have {} items: rank {rank} has {} where {} are due, \
             so it is not known which item follows which",
            lengths.join(", "),
            part.len(),
            share(total, ranks, rank)
        ));
    }
    let item = |at: usize| parts.get(at % ranks)?.get(at / ranks).cloned();
    Ok((0..total).filter_map(item).collect())
}

/// The whole list in parts for `ranks`.
pub(super) fn split(whole: &[State], ranks: usize, interleaved: bool) -> Vec<Vec<State>> {
    if interleaved {
        return (0..ranks).map(|rank| whole.iter().skip(rank).step_by(ranks).cloned().collect()).collect();
    }
    // As torch.chunk: all parts as long as the first, but for the last ones.
    let size = whole.len().div_ceil(ranks.max(1));
    let part = |rank: usize| {
        let start = rank.saturating_mul(size).min(whole.len());
        let end = start.saturating_add(size).min(whole.len());
        whole.get(start..end).unwrap_or_default().to_vec()
    };
    (0..ranks).map(part).collect()
}

/// Items of rank `rank` of `ranks` when `total` are dealt out in turn.
const fn share(total: usize, ranks: usize, rank: usize) -> usize {
    total / ranks + if rank < total % ranks { 1 } else { 0 }
}

/// Numbers added up and shared out again, what is left over on the first ranks.
///
/// # Errors
/// What is no number, or can't be counted with exactly.
pub(super) fn sum(values: &[&State], ranks: usize) -> Result<Vec<State>, Why> {
    let floats = values.iter().filter(|value| matches!(value, State::Float(_))).count();
    if floats != 0 && floats != values.len() {
        return Err("is a float on some data ranks and an int on others".to_owned());
    }
    let mut total = 0_i128;
    for value in values {
        total += exact(value)?;
    }
    let count = i128::try_from(ranks).unwrap_or(i128::MAX).max(1);
    let (each, over) = (total.div_euclid(count), total.rem_euclid(count));
    (0..count).map(|rank| number(each + i128::from(rank < over), floats > 0)).collect()
}

/// Integers up to here are floats of their own.
const EXACT: i128 = 1 << 53;

fn exact(value: &State) -> Result<i128, Why> {
    match value {
        State::Int(int) => Ok(*int),
        State::Float(bits) => {
            let float = f64::from_bits(*bits);
            let whole = float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0;
            if !whole {
                return Err(format!(
                    "is the float {float:?}, and floats are not added and shared out exactly"
                ));
            }
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and below 2^53")]
            Ok(float as i128)
        }
        other => Err(format!("is {} ({other}), and only numbers add up", other.noun())),
    }
}

fn number(int: i128, float: bool) -> Result<State, Why> {
    if float {
        #[expect(clippy::cast_precision_loss, reason = "it is below 2^53")]
        return if int.abs() <= EXACT { Ok(State::float(int as f64)) } else { Err(beyond(int)) };
    }
    let fits = i64::try_from(int).is_ok() || u64::try_from(int).is_ok();
    if fits { Ok(State::Int(int)) } else { Err(beyond(int)) }
}

fn beyond(int: i128) -> Why {
    format!("adds up to a share of {int}, which has no exact form")
}
