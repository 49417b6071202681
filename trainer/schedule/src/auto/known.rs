//! Orders that are known by a name, with as short a warm-up as the memory asks for. They begin the search beside the greedy
//! scheduler's: an automatic schedule is then never worse than what one could have taken by hand.

use super::{
    Problem,
    order::{Kind, Order, row_fits},
};

/// Those that fit: 1F1B, ZB-H1 and ZB-H2.
pub(super) fn all(problem: &Problem) -> Vec<(&'static str, Order)> {
    let of = |hops: usize, lag: Option<usize>| {
        // A rank that is further ahead than the one before it would wait for it for ever.
        let mut most = usize::MAX;
        let row = |rank| {
            let warm = most.min(hops * problem.ranks().saturating_sub(rank + 1));
            let lag = lag.filter(|_| problem.split(rank)).map(|lag| lag * rank);
            let (warm, row) =
                (0..=warm).rev().find_map(|warm| Some((warm, fitting(problem, rank, warm, lag)?)))?;
            most = warm;
            Some(row)
        };
        Some(Order { rows: (0..problem.ranks()).map(row).collect::<Option<_>>()? })
    };
    let orders = [("1F1B", of(1, None)), ("ZBH1", of(1, Some(1))), ("ZBH2", of(2, Some(2)))];
    orders.into_iter().filter_map(|(name, order)| Some((name, order?))).collect()
}

/// The order that needs least memory: a microbatch is finished before the next one begins.
pub(super) fn one_at_a_time(problem: &Problem) -> Order {
    let row = |rank| paired(problem.microbatches, 0, problem.split(rank).then_some(0));
    Order { rows: (0..problem.ranks()).map(row).collect() }
}

/// The row with `warm` forwards ahead and weight gradients up to `lag` behind, the most that fits.
fn fitting(problem: &Problem, rank: usize, warm: usize, lag: Option<usize>) -> Option<Vec<Kind>> {
    let rows = match lag {
        None => vec![paired(problem.microbatches, warm, None)],
        Some(lag) => (0..=lag).rev().map(|lag| paired(problem.microbatches, warm, Some(lag))).collect(),
    };
    rows.into_iter().find(|row| row_fits(problem, rank, row))
}

/// `warm` forwards, then a forward and a backward in turns; weight gradients `lag` behind, or whole backwards.
fn paired(microbatches: usize, warm: usize, lag: Option<usize>) -> Vec<Kind> {
    let warm = warm.min(microbatches);
    let mut row = vec![Kind::F; warm];
    for turn in 0..microbatches {
        row.extend((warm + turn < microbatches).then_some(Kind::F));
        row.push(if lag.is_some() { Kind::I } else { Kind::B });
        row.extend(lag.filter(|lag| turn >= *lag).map(|_| Kind::W));
    }
    row.extend(lag.into_iter().flat_map(|lag| vec![Kind::W; lag.min(microbatches)]));
    row
}
