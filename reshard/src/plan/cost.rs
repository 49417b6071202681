//! [`Cost`]: bytes and reads of a plan, counted from the same moves that an engine will make. How often it goes over the source, and in
//! how much memory, only the engine knows.

use fqn::{Dtype, Registry};
use serde::{Deserialize, Serialize};

use super::{
    Fold,
    class::{Classes, Counted},
    fold::Folding,
};
use crate::{Layout, LayoutRank, Mesh, MoveError, Region};

/// What a plan takes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Bytes of source elements, each once.
    pub bytes_read: u64,
    /// Bytes of target elements, replicas once.
    pub bytes_written: u64,
    /// Contiguous stretches of source chunks that moves read.
    pub reads: u64,
    /// Boxes copied.
    pub moves: u64,
    /// Passes over the source: as the engine that is to run it says; 0 before it is asked.
    pub passes: u64,
    /// Memory of buffers and cache at most, as the engine says.
    pub peak_memory: u64,
    /// Bytes read for each byte of `bytes_read` at most, as the engine says.
    pub read_amplification: f64,
    /// Memory with which nothing is read twice for want of it, as the engine says.
    pub enough_memory: u64,
    /// Most bytes that one rank's files take, relative to the mean.
    pub write_imbalance: f64,
    /// Most bytes that one rank of the target mesh holds, relative to the mean.
    pub held_imbalance: f64,
    /// What each rank of the target mesh holds and whose files it gets; by rank.
    pub ranks: Vec<LayoutRank>,
    /// What moves where, tensors alike in one line.
    pub folds: Vec<Fold>,
}

/// Why a plan can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A target region that the source doesn't yield.
    #[error("{tensor}: {source}")]
    Move {
        /// The tensor.
        tensor: fqn::TensorId,
        /// Why.
        source: MoveError,
    },
}

impl Cost {
    /// Counts what it takes to make `target` of a source whose tensor number `t` is that of `registry` and has the chunks that
    /// `chunks(t)` gives. Both have the same tensors in the same order, of other dtypes where the target is cast. `from` is the source's mesh where it is known, for the text only.
    ///
    /// # Errors
    /// The first tensor whose chunks don't cover a target region exactly.
    pub fn count<'a>(
        registry: &Registry,
        from: Option<&Mesh>,
        target: &Layout,
        chunks: impl Fn(usize) -> std::borrow::Cow<'a, [Region]>,
    ) -> Result<Self, PlanError> {
        let mut cost = Self {
            write_imbalance: target.write_imbalance(),
            held_imbalance: target.held_imbalance(),
            ranks: target.ranks().to_vec(),
            ..Self::default()
        };
        let (mut folding, mut classes) = (Folding::default(), Classes::default());
        for (at, (entry, tensor)) in registry.entries().iter().zip(target.tensors()).enumerate() {
            let counted = classes.count(chunks(at), tensor, target.mesh());
            let Counted { bytes, moves, reads } =
                counted.map_err(|source| PlanError::Move { tensor: entry.id(), source })?;
            cost.reads += reads;
            cost.moves += moves;
            cost.bytes_written = cost.bytes_written.saturating_add(bytes);
            cost.bytes_read = cost.bytes_read.saturating_add(recast(bytes, tensor.dtype(), entry.dtype));
            folding.add(entry, from, target.mesh(), bytes, moves);
        }
        cost.folds = folding.finish();
        Ok(cost)
    }
}

/// Bytes that as many elements take in another dtype.
fn recast(bytes: u64, from: Dtype, to: Dtype) -> u64 {
    if from == to {
        return bytes;
    }
    let bits = u128::from(bytes) * u128::from(to.bits()) / u128::from(from.bits().max(1));
    u64::try_from(bits).unwrap_or(u64::MAX)
}
