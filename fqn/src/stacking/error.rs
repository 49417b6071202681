//! [`StackError`]: why tensors can't be stacked or unstacked.

use super::MOST_TENSORS;
use crate::{PlacementError, RegistryError, Shape, TensorId, pattern::PatternError};

/// Why tensors can't be stacked or unstacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// A text that is no pair of names.
    #[error("{text:?} is no pair of names: {why}")]
    Text {
        /// The text.
        text: String,
        /// Why not.
        why: &'static str,
    },
    /// A name that is no pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A pair of names that differ in more, or less, than one index.
    #[error("{apart:?} must hold exactly one capture that {stacked:?} lacks, and every one that it has")]
    Captures {
        /// Name of a member.
        apart: String,
        /// Name of the stack.
        stacked: String,
    },
    /// Members that are neither layers nor experts.
    #[error("{{{capture}}}, which only {apart:?} holds, is neither {{layer}} nor {{expert}}")]
    Index {
        /// The capture.
        capture: String,
        /// Name of a member.
        apart: String,
    },
    /// A member that is missing or comes twice.
    #[error("{stack} needs members 0 to {last}, but {missing} is missing or comes twice")]
    Members {
        /// The stack.
        stack: TensorId,
        /// Highest index there is.
        last: u64,
        /// The first index that is wrong.
        missing: u64,
    },
    /// A role of a stack that lacks a member of another.
    #[error("{stack} would lack member {missing}, which {other} has")]
    Roles {
        /// The stack.
        stack: TensorId,
        /// The same stack in another role.
        other: TensorId,
        /// The first index that it lacks.
        missing: u64,
    },
    /// Members that differ.
    #[error(
        "{first} and {other} can't be members of one stack: they differ in shape, dtype, fused parts, placement, layer or \
         expert"
    )]
    Unlike {
        /// One member.
        first: TensorId,
        /// One that differs from it.
        other: TensorId,
    },
    /// Something known of a tensor that can't be said of the other side.
    #[error("{id} can't be stacked or taken apart: it {why}")]
    Unfit {
        /// The tensor.
        id: TensorId,
        /// What is in the way.
        why: &'static str,
    },
    /// More members than any model has.
    #[error("{stack} is not taken apart: with it there are more than {MOST_TENSORS} members")]
    TooMany {
        /// The stack.
        stack: TensorId,
    },
    /// A stack without the dimension, without members, or with more than names can number.
    #[error("{stack} of shape {shape} has no dimension {axis} of members")]
    Axis {
        /// The stack.
        stack: TensorId,
        /// Its shape.
        shape: Shape,
        /// The dimension.
        axis: usize,
    },
    /// A name that can't be.
    #[error("{from} would be called {to:?}, which is no name")]
    Name {
        /// The tensor.
        from: TensorId,
        /// The name.
        to: String,
    },
    /// A name that is taken.
    #[error(transparent)]
    Taken(#[from] RegistryError),
    /// A placement that has no counterpart.
    #[error("placement of {id}: {source}")]
    Placement {
        /// The tensor.
        id: TensorId,
        /// Why.
        source: PlacementError,
    },
}
