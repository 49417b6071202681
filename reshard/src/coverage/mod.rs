//! Whether chunks tile a tensor, and which chunks a box meets.
//!
//! `tiling` proves exact cover without comparing boxes with each other, `defect` finds what to say when it fails,
//! `index` answers which chunks meet a box.
mod defect;
mod grid;
mod index;
#[cfg(test)]
mod tests;
mod tiling;

pub(crate) use grid::Grid;
pub use index::Index;
pub use tiling::{CoverageError, check};
