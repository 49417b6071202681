//! Exact mode: numbers that are a function of a *virtual mesh*, never of the real one.
//!
//! A run fixes G virtual tensor-parallel ranks, whether tokens are cut over them (sequence parallelism), a micro-batch size and
//! the global list of microbatches. A real rank plays its virtual ranks one after another, so every product has the same
//! shape on every mesh; every sum is an aligned binary tree over virtual rank or over global microbatch index. A real rank's
//! share of the leaves is a whole subtree, so the tree is the same however it is shared out, and the order of arrival cannot
//! matter.
//!
//! # Fast mode
//!
//! Sums are made in whatever order is fastest, and products have the shapes that the real mesh gives them. What is promised:
//!
//! * the same configuration on the same mesh gives the same bits again: each sum has a fixed order on a given mesh;
//! * between meshes, losses of the first steps agree to a relative [`FAST_LOSS`], as only the rounding of f32 differs
//!   (with `training.mixed_precision_param = "bfloat16"` also that of products, to eight bits: no bound is stated);
//! * a weight differs by at most [`FAST_WEIGHT`] of the learning rates so far: AdamW makes steps of about the rate from
//!   gradients of any size, so that where a gradient is nothing but rounding, its steps may go apart.
//!
//! Differences grow with the number of steps, as those of any two trainings do that round differently.

pub mod norm;
mod tree;

pub use tree::{TreeSum, sum};

use crate::{Error, Result};

/// Fast mode: by how much losses of two meshes may differ, relative, over the first ten steps.
pub const FAST_LOSS: f64 = 1e-5;
/// Fast mode: by how much a weight of two meshes may differ, as a part of the sum of the learning rates so far.
pub const FAST_WEIGHT: f64 = 0.01;

/// How sums over ranks and microbatches are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sums {
    /// As aligned binary trees: the same bits on every mesh.
    Exact,
    /// In whatever order is fastest.
    Fast,
}

/// The virtual tensor-parallel ranks that a real one plays: `first..first + count` of `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VirtualTp {
    /// G, all virtual ranks.
    pub total: usize,
    /// The first that this rank plays.
    pub first: usize,
    /// How many it plays.
    pub count: usize,
}

impl VirtualTp {
    /// What rank `index` of `size` real ones plays of `total` virtual ones.
    ///
    /// # Errors
    /// `Config` when `size` does not divide `total`, or when a rank's share is no power of two (it would be no whole
    /// subtree).
    pub fn of(index: usize, size: usize, total: usize) -> Result<Self> {
        if size == 0 || total == 0 || !total.is_multiple_of(size) {
            return Err(Error::config(format!(
                "tp={size} does not divide the {total} virtual tensor-parallel ranks"
            ))
            .hint("in exact mode, choose a tp that divides exact.virtual_tp"));
        }
        let count = total / size;
        if !count.is_power_of_two() {
            return Err(Error::config(format!(
                "tp={size} gives each rank {count} of the {total} virtual tensor-parallel ranks, which is no power of two"
            ))
            .hint("in exact mode, virtual_tp / tp is a power of two"));
        }
        Ok(Self { total, first: index * count, count })
    }
}
