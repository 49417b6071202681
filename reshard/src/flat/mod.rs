//! Between boxes and the row-major order of elements.
//!
//! `range` turns flat ranges (ZeRO, FSDP1) into boxes and back, `group` says which ranges of which tensors a rank's flat
//! buffer holds, `runs` walks a box as contiguous stretches, `tiles`
//! cuts a box into pieces of bounded size. All share one order: row-major, last dimension fastest.
mod group;
#[cfg(test)]
mod group_tests;
mod range;
mod runs;
#[cfg(test)]
mod tests;
mod tiles;

pub use group::{FlatBox, FlatGroup, FlatPadding, FlatPiece};
pub use range::{FlatError, boxes, ranges};
pub use runs::{Run, Runs, run_count, runs};
pub use tiles::{Tiles, tiles};
