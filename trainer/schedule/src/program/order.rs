//! Rule A: what two ranks exchange comes in one order on both sides, both directions together.

use std::collections::BTreeMap;

use super::{
    super::{Action, CellFault, ScheduleError, Table},
    peer,
};

/// What a rank exchanges with each other one, in order, with positions.
type Exchanges = BTreeMap<usize, Vec<(usize, Action)>>;

/// # Errors
/// The first exchange of a pair that the other side does not have at its turn.
pub(super) fn same(table: &Table) -> Result<(), ScheduleError> {
    let all: Vec<_> = (0..table.ranks.len()).map(|rank| exchanges(table, rank)).collect();
    for (rank, ours) in all.iter().enumerate() {
        for (peer, ours) in ours {
            let theirs = all.get(*peer).and_then(|theirs| theirs.get(&rank)).map_or(&[][..], Vec::as_slice);
            // A pair is looked at once, but where one side has nothing it is looked at from the other.
            if rank < *peer || theirs.is_empty() {
                pair((rank, ours), (*peer, theirs))?;
            }
        }
    }
    Ok(())
}

fn exchanges(table: &Table, rank: usize) -> Exchanges {
    let mut found = Exchanges::new();
    for (step, cell) in table.row(rank).iter().copied().enumerate() {
        if let Some(peer) = peer(&table.placement, cell) {
            found.entry(peer).or_default().push((step, cell));
        }
    }
    found
}

fn pair(
    (one, ours): (usize, &[(usize, Action)]),
    (other, theirs): (usize, &[(usize, Action)]),
) -> Result<(), ScheduleError> {
    let text = |found: Option<&(usize, Action)>| {
        found.map_or_else(|| "nothing".to_owned(), |(step, cell)| format!("{cell} (step {step})"))
    };
    for turn in 0..ours.len().max(theirs.len()) {
        let (a, b) = (ours.get(turn), theirs.get(turn));
        if a.and_then(|(_, cell)| cell.partner()) == b.map(|(_, cell)| *cell) && a.is_some() {
            continue;
        }
        let at = if let Some(at) = a { Some((one, other, at, b)) } else { b.map(|at| (other, one, at, a)) };
        let Some((rank, peer, (step, cell), found)) = at else { break };
        let expected = cell.partner().map_or_else(|| "nothing".to_owned(), |it| it.to_string());
        let fault = CellFault::Pair { turn, peer, expected, found: text(found) };
        return Err(ScheduleError::Cell { rank, step: *step, cell: *cell, fault });
    }
    Ok(())
}
