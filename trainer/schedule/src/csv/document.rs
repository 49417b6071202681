//! [`Document`]: a file that was read: its cells as they stood, and what they mean.

use super::Dialect;
use crate::{
    Action, Gather, Placement, Program, ScheduleError, Step, Table, lower, lower::reduced,
    program::computations, validate,
};

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// F, I, W, B and composites: it is lowered before it runs.
    ComputeOnly,
    /// Communication, gathers and reductions too: it runs as it is.
    ComputeComms,
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub(super) dialect: Dialect,
    pub(super) format: Format,
    pub(super) placement: Placement,
    pub(super) microbatches: usize,
    /// `None` is an empty cell.
    pub(super) rows: Vec<Vec<Option<Action>>>,
    /// What ends a line.
    pub(super) newline: &'static str,
    /// Whether the last line ends too.
    pub(super) ended: bool,
}

impl Document {
    /// Its dialect.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// What it holds.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The cells of every rank; `None` is a time in which it is meant to be idle.
    #[must_use]
    pub fn cells(&self) -> &[Vec<Option<Action>>] {
        &self.rows
    }

    /// The file's text.
    #[must_use]
    pub fn text(&self) -> String {
        let cell = |cell: &Option<Action>| cell.map(|it| self.dialect.text(it)).unwrap_or_default();
        let row = |row: &Vec<Option<Action>>| row.iter().map(cell).collect::<Vec<_>>().join(",");
        let mut text = self.rows.iter().map(row).collect::<Vec<_>>().join(self.newline);
        text.push_str(if self.ended { self.newline } else { "" });
        text
    }

    /// Its computations, without idle times.
    ///
    /// # Errors
    /// What [`validate()`] refuses, with row and column.
    pub fn table(&self) -> Result<Table, ScheduleError> {
        let table = computations(&self.whole());
        validate(&table).map_err(|error| self.found(error, Action::computes))?;
        Ok(table)
    }

    /// The program: computations are lowered with `gather`; a file with communication must be right as it is, and is taken
    /// as it is. Files of older releases hold no REDUCE_GRAD: where there is none at all, one is put after the last
    /// weight gradient of each stage.
    ///
    /// # Errors
    /// What [`validate()`] and [`Program::new`] refuse, with row and column.
    pub fn program(&self, gather: Gather) -> Result<Program, ScheduleError> {
        if self.format == Format::ComputeOnly {
            return lower(&self.table()?, gather);
        }
        self.table()?;
        let whole = self.whole();
        let reduces = |action: &Action| action.step == Step::ReduceGrad;
        if whole.ranks.iter().flatten().any(reduces) {
            return Program::new(whole).map_err(|error| self.found(error, |_| true));
        }
        let ranks = whole.ranks.iter().map(|row| with_reductions(row, self.microbatches)).collect();
        let program = Program::new(Table { ranks, ..whole });
        // Positions after an added cell would be those of other cells.
        program.map_err(|error| self.found(error, reduces))
    }

    fn whole(&self) -> Table {
        let ranks = self.rows.iter().map(|row| row.iter().copied().flatten().collect()).collect();
        Table { placement: self.placement.clone(), microbatches: self.microbatches, ranks }
    }

    /// Adds row and column to a refusal of a cell of a table that has the cells that `counted` holds for.
    fn found(&self, error: ScheduleError, counted: impl Fn(&Action) -> bool) -> ScheduleError {
        let ScheduleError::Cell { rank, step, cell, .. } = error else { return error };
        let row = self.rows.get(rank).map_or(&[][..], Vec::as_slice);
        let places = (1..).zip(row).filter_map(|(column, it)| it.filter(&counted).map(|it| (column, it)));
        match places.into_iter().nth(step) {
            Some((column, it)) if it == cell => {
                ScheduleError::InFile { row: rank + 1, column, source: Box::new(error) }
            }
            _ => error,
        }
    }
}

/// REDUCE_GRAD after the last weight gradient of each stage, and after what is sent then: others wait for that.
fn with_reductions(row: &[Action], microbatches: usize) -> Vec<Action> {
    let mut row = reduced(row, microbatches);
    for at in 1..row.len() {
        if let Some([Action { step: Step::ReduceGrad, .. }, Action { step: Step::SendB(_), .. }]) =
            row.get(at - 1..=at)
        {
            row.swap(at - 1, at);
        }
    }
    row
}
