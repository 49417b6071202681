//! [`LayoutError`]: why a tensor, or a registry, has no layout on a mesh.

use fqn::{AxisName, PlacementRule, Shape, TensorId};

use super::StageError;
use crate::RegionError;

/// Why a tensor, or a registry, has no layout on a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No placement rule, on a mesh of more than one rank.
    #[error("no placement rule covers {tensor}; add one (`replicate` if every rank holds all of it)")]
    NoRule {
        /// The tensor.
        tensor: TensorId,
    },
    /// A rule cuts a dimension that isn't there.
    #[error("placement {rule} of {tensor} cuts dimension {dim}, but its shape is {shape}")]
    NoDimension {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// Two axes of a rule that the mesh maps to one.
    #[error("placement {rule} of {tensor} cuts twice over mesh axis {axis}")]
    AxisTwice {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
        /// The axis.
        axis: AxisName,
    },
    /// A rule by layer for a tensor without one.
    #[error("placement {rule} of {tensor} puts it on the stage of its layer, but it has no layer index")]
    NoLayer {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
    },
    /// Fused parts that don't add up to the tensor.
    #[error("fused parts of {tensor} do not add up to dimension {axis} of shape {shape}")]
    Fusion {
        /// The tensor.
        tensor: TensorId,
        /// The parts' dimension.
        axis: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A shape that no region can have.
    #[error("shape {shape} of {tensor}: {source}")]
    Shape {
        /// The tensor.
        tensor: TensorId,
        /// Its shape.
        shape: Shape,
        /// Why.
        source: RegionError,
    },
    /// A tensor that is one expert's, without an expert index.
    #[error("placement {rule} of {tensor} puts it where its expert is, but it has no expert index")]
    NoExpert {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
    },
    /// Padding beyond 64 bits, by two cuts, or of a dimension of fused parts or of stacked layers.
    #[error("{tensor} (placed {rule}) is padded along dimension {dim} of shape {shape}, which {why}")]
    Padding {
        /// The tensor.
        tensor: TensorId,
        /// Its rule.
        rule: PlacementRule,
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Shape,
        /// Why it can't.
        why: &'static str,
    },
    /// Two names of one tensor on different pipeline stages.
    #[error(
        "{first} (placed {first_rule}) and {second} (placed {second_rule}) are one tensor, but lie on different pipeline \
         stages: place both on one stage, or declare the tie on both with pp:first+last"
    )]
    TieApart {
        /// One name.
        first: TensorId,
        /// Its rule.
        first_rule: PlacementRule,
        /// The other.
        second: TensorId,
        /// Its rule.
        second_rule: PlacementRule,
    },
    /// Layers that don't split over the stages.
    #[error(transparent)]
    Stages(#[from] StageError),
}
