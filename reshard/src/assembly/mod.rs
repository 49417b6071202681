//! Tensors made of boxes of other tensors: fused projections, stacked layers and experts, and the way back.
//!
//! `made` is the mapping itself, `arrange` makes the usual ones. An assembly is only copying between boxes, so it composes
//! with resharding: ask it which boxes of which sources a target region is, then [`Moves`](crate::Moves) for the chunks
//! that hold those.
mod arrange;
mod made;
#[cfg(test)]
mod tests;

pub use made::{Assembly, AssemblyError, AssemblyPart, Strand};
