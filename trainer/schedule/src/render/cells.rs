//! What of a schedule is drawn: computations, collectives, and what goes from rank to rank.

use std::collections::HashMap;

use super::Picture;
use crate::{Action, Step, progress::Fact};

/// What a cell is, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Forward,
    Input,
    Weight,
    Backward,
    /// A forward and a full backward at once.
    Composite,
    /// UNSHARD or REDUCE_GRAD.
    Collective,
}

impl Kind {
    /// Letter and meaning, for legends.
    pub(super) const fn legend(self) -> (&'static str, &'static str) {
        match self {
            Self::Forward => ("F", "forward"),
            Self::Input => ("I", "input gradient"),
            Self::Weight => ("W", "weight gradient"),
            Self::Backward => ("B", "backward, both"),
            Self::Composite => ("O", "forward and backward in one"),
            Self::Collective => ("U", "weights or gradients of the group"),
        }
    }
}

/// One cell in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) rank: usize,
    pub(super) action: Action,
    pub(super) kind: Kind,
    /// Which of its rank's stages, from 0.
    pub(super) chunk: usize,
    pub(super) start: f64,
    pub(super) end: f64,
}

impl Cell {
    /// `F3`, or `4F3` where a rank has several stages.
    pub(super) fn label(&self, with_stage: bool) -> String {
        let text = |part: Action| {
            let text = part.to_string();
            if with_stage { text } else { text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned() }
        };
        self.action.parts().map(text).collect::<Vec<_>>().join("+")
    }

    pub(super) fn takes(&self) -> f64 {
        self.end - self.start
    }
}

/// A value that goes to another rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// Rank and cell (its number among all) that gives it.
    pub(super) from: (usize, usize),
    /// And that takes it.
    pub(super) to: (usize, usize),
    /// Whether it is activations, that go to the next stage.
    pub(super) activations: bool,
    /// When it was computed, and when it is used.
    pub(super) sent: f64,
    pub(super) used: f64,
}

/// Cells, row by row.
pub(super) fn cells(picture: &Picture<'_>) -> Vec<Cell> {
    let table = picture.table;
    let spans = &picture.simulation.spans;
    table
        .ranks
        .iter()
        .zip(spans)
        .enumerate()
        .flat_map(|(rank, (row, spans))| {
            let stages = table.placement.stages_of(rank);
            row.iter().zip(spans).filter_map(move |(action, (start, end))| {
                let chunk = stages.iter().position(|stage| *stage == action.stage).unwrap_or(0);
                Some(Cell { rank, action: *action, kind: kind(*action)?, chunk, start: *start, end: *end })
            })
        })
        .collect()
}

const fn kind(action: Action) -> Option<Kind> {
    match action.step {
        Step::F(_) => Some(Kind::Forward),
        Step::I(_) => Some(Kind::Input),
        Step::W(_) => Some(Kind::Weight),
        Step::B(_) => Some(Kind::Backward),
        Step::Overlap { .. } => Some(Kind::Composite),
        Step::Unshard | Step::ReduceGrad => Some(Kind::Collective),
        Step::Reshard | Step::SendF(_) | Step::RecvF(_) | Step::SendB(_) | Step::RecvB(_) => None,
    }
}

/// What goes between ranks, in the order of the cells that use it.
pub(super) fn transfers(picture: &Picture<'_>, cells: &[Cell]) -> Vec<Transfer> {
    let stages = picture.table.stages();
    let mut given: HashMap<Fact, usize> = HashMap::new();
    for (number, cell) in cells.iter().enumerate() {
        given.extend(Fact::given_by(cell.action).map(|fact| (fact, number)));
    }
    let mut found = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        for fact in Fact::needed_by(cell.action, stages) {
            let Some((from, giver)) = given.get(&fact).and_then(|from| Some((*from, cells.get(*from)?)))
            else {
                continue;
            };
            if giver.rank != cell.rank {
                let activations = matches!(fact, Fact::Forward(..));
                let (from, to) = ((giver.rank, from), (cell.rank, number));
                found.push(Transfer { from, to, activations, sent: giver.end, used: cell.start });
            }
        }
    }
    found
}

/// Kinds that are there, in the order of legends.
pub(super) fn kinds(cells: &[Cell]) -> Vec<Kind> {
    let mut kinds: Vec<_> = cells.iter().map(|cell| cell.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// As few digits as tell it.
pub(super) fn number(value: f64) -> String {
    let digits = if value.abs() >= 100.0 { 1 } else { 3 };
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}
