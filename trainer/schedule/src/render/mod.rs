//! A schedule drawn in time: on a terminal ([`terminal()`]), as a picture ([`svg()`]), for a trace viewer ([`chrome()`]). All three
//! draw the same [`Picture`]: a table, and when its cells run.
//!
//! Invariants: what is drawn is what was simulated, nothing is rounded to slots before it is drawn; text that comes from
//! outside (titles, units) is escaped as the format asks for.

mod cells;
mod chrome;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;

pub use chrome::chrome;
pub use svg::svg;
pub use terminal::{Terminal, terminal};

use crate::{Simulation, Table, Usage};

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// One line above it.
    pub title: &'a str,
    /// The schedule, lowered or not.
    pub table: &'a Table,
    /// When its cells run.
    pub simulation: &'a Simulation,
    /// What each rank holds over time; left out if empty.
    pub memory: &'a [Usage],
    /// What memory is counted in, as in "3.5 microbatches".
    pub memory_unit: &'a str,
}
