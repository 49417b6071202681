//! Which parts of which chunks make up a target region.
mod derive;
#[cfg(test)]
mod tests;

pub use derive::{Move, MoveError, Moves};
