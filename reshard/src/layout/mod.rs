//! Layouts: symbolic placement rules resolved on a mesh.
//!
//! `cut` does the arithmetic of one dimension, `stages` splits layers over pipeline stages, `tensor` gives the regions
//! of one tensor and their owners, `whole` does it for a registry and picks who writes what, `divide` refuses meshes
//! that a model doesn't divide over.
mod cut;
mod divide;
mod error;
mod stages;
mod tensor;
#[cfg(test)]
mod tests;
mod whole;

pub use cut::chunk;
pub use divide::{Divisibility, DivisibilityError, check_divisibility};
pub use error::LayoutError;
pub use stages::{MAX_LAYERS, StageError, StageSplit, Stages};
pub use tensor::{Local, LocalPiece, Owners, Shard, TensorLayout};
pub use whole::{Layout, LayoutRank};
