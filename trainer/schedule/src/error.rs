//! Why a schedule is refused. Each refusal of a cell names the rank, the step (its position in the row) and the cell.

use super::{Action, Deadlock, SlotFault};

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Not the text of an action.
    #[error(
        "{text:?} is no action: {why}; actions are written 2F0, 3SEND_B1, 1REDUCE_GRAD, (0F7;7B3)OVERLAP_F_B"
    )]
    Text {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No generator has that name.
    #[error("no schedule is called {name:?}; the nearest is {nearest}, known are {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The known one that is most like it.
        nearest: &'static str,
        /// All known ones.
        known: Vec<&'static str>,
    },
    /// Numbers of stages, ranks and microbatches that no schedule, or not this one, can have.
    #[error("{0}")]
    Shape(String),
    /// A stage lies on no rank, or a rank has no stage.
    #[error("placement of stages: {0}")]
    Placement(String),
    /// Not as many rows as ranks.
    #[error("the table has {rows} rows, but its stages are placed on {ranks} ranks")]
    Rows {
        /// Rows of the table.
        rows: usize,
        /// Ranks of the placement.
        ranks: usize,
    },
    /// A cell that can't be there.
    #[error("rank {rank}, step {step}, cell {cell}: {fault}")]
    Cell {
        /// The rank.
        rank: usize,
        /// The cell's position in the rank's row, from 0.
        step: usize,
        /// The cell.
        cell: Action,
        /// Why.
        fault: CellFault,
    },
    /// A cell that isn't there.
    #[error("rank {rank}, step {step} (the end of its row): cell {cell} is missing")]
    Missing {
        /// The rank.
        rank: usize,
        /// The length of its row.
        step: usize,
        /// The cell.
        cell: Action,
    },
    /// A cell of a CSV file that can't be read, or can't be in it.
    #[error("row {row} (rank {}), column {column}, cell \"{cell}\": {why}", row.saturating_sub(1))]
    Csv {
        /// From 1, as spreadsheets count.
        row: usize,
        /// From 1.
        column: usize,
        /// Its text, escaped.
        cell: String,
        /// What is wrong with it.
        why: String,
    },
    /// A CSV file as a whole.
    #[error("{0}")]
    File(String),
    /// A refusal of a cell that came from a CSV file.
    #[error("row {row}, column {column}: {source}")]
    InFile {
        /// From 1, as spreadsheets count.
        row: usize,
        /// From 1.
        column: usize,
        /// The refusal.
        source: Box<Self>,
    },
    /// Ranks wait for each other.
    #[error("{0}")]
    Deadlock(Deadlock),
    /// Cells in time slots before what they need.
    #[error("{}", slot_faults(.0))]
    Slots(Vec<SlotFault>),
}

/// What is wrong with a cell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CellFault {
    /// Communication and bookkeeping are added by lowering.
    #[error("a table that is not lowered holds F, I, W and B only")]
    NotCompute,
    /// No such stage.
    #[error("there are only {0} stages")]
    Stage(usize),
    /// A stage elsewhere.
    #[error("stage {stage} lies on rank {rank}")]
    Elsewhere {
        /// The stage.
        stage: usize,
        /// Where it lies.
        rank: usize,
    },
    /// No such microbatch.
    #[error("there are only {0} microbatches")]
    Microbatch(usize),
    /// Twice.
    #[error("it was there already, at step {0}")]
    Duplicate(usize),
    /// B, and also I or W.
    #[error("{other} at step {step} is there too: a microbatch has B, or I and W")]
    Mixed {
        /// The other cell.
        other: Action,
        /// Where it is.
        step: usize,
    },
    /// Too early.
    #[error("it needs {0}, which is not before it on this rank")]
    Before(Action),
    /// The other side does something else at its turn.
    #[error("as exchange {turn} with rank {peer} it needs {expected} on the other side, which has {found}")]
    Pair {
        /// Number of the exchange between the two ranks.
        turn: usize,
        /// The other rank.
        peer: usize,
        /// What must be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Weights that are gathered twice.
    #[error("its weights are gathered already, since step {0}")]
    Gathered(usize),
    /// Weights that are not there.
    #[error("the weights of stage {0} are not gathered here: between {0}UNSHARD and {0}RESHARD they are")]
    NotGathered(usize),
    /// One of a composite's two.
    #[error("its part {part}: {fault}")]
    Part {
        /// The part.
        part: Action,
        /// What is wrong with it.
        fault: Box<Self>,
    },
    /// No other side.
    #[error("{0}")]
    NoPeer(&'static str),
}

fn slot_faults(faults: &[SlotFault]) -> String {
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    format!("{} cells come too early: {}", faults.len(), lines.join("; "))
}
