//! Schedules as CSV files, in both dialects that torch has written: one row per rank, one cell per action, an empty cell
//! for a time in which the rank is meant to be idle.
//!
//! ```text
//!  0F0,0F1,,0I0,0W0,0I1,0W1        rank 0
//!  ,1F0,1I0,1F1,1I1,1W0,1W1        rank 1
//! ```
//!
//! [`read()`] finds out what a file does not say and refuses it where that is not certain: the dialect of its letters
//! ([`Dialect`]), whether it holds computations only or communication too ([`Format`]), the rank of every stage, and the
//! number of microbatches. What the caller declares in [`Options`] is checked instead. Refusals name row and column,
//! counted from 1 as spreadsheets do.
//!
//! A [`Document`] holds the cells as they stood, so that [`Document::text`] is byte for byte what was read, where that was
//! as torch, or [`write()`], writes it: blanks around cells, quotes and empty lines at the end are understood but not kept.
//! [`Document::table`] and [`Document::program`] pass every check that generated tables pass: torch runs files with
//! communication unchecked.

mod detect;
mod dialect;
mod document;
mod read;

pub use dialect::Dialect;
pub use document::{Document, Format};
pub use read::{Options, read};

use super::Table;

/// The text of a table, or of a program's: lines end with `\n`, no cell is empty.
#[must_use]
pub fn write(table: &Table, dialect: Dialect) -> String {
    let row = |row: &Vec<super::Action>| {
        let cells: Vec<_> = row.iter().map(|action| dialect.text(*action)).collect();
        format!("{}\n", cells.join(","))
    };
    table.ranks.iter().map(row).collect()
}

#[cfg(test)]
mod tests;
