//! Meshes: named, ordered axes of ranks.
//!
//! `grid` is the type and its arithmetic, `text` the spellings that a command line accepts.
mod grid;
#[cfg(test)]
mod tests;
mod text;

pub use grid::{MAX_RANKS, Mesh, MeshError};
