//! [`Cost`]: bytes, reads, passes and memory of a plan, counted from the same moves that an engine will make.

use fqn::Registry;
use serde::{Deserialize, Serialize};

use super::{
    Fold,
    class::{Classes, Counted},
    fold::Folding,
};
use crate::{Layout, LayoutRank, Mesh, MoveError, Region};

/// What an engine may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of memory, all buffers together.
    pub max_memory: u64,
    /// Bytes buffered for each target that is open for writing.
    pub part_bytes: u64,
}

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
    /// Passes over the source: more than 1 where open targets × part size exceed half the memory.
    pub passes: u64,
    /// Estimate of the memory used at most.
    pub peak_memory: u64,
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
    /// Counts what it takes to make `target` of a source whose tensor number `t` of `registry` has the chunks that
    /// `chunks(t)` gives. `from` is the source's mesh where it is known, for the text only.
    ///
    /// # Errors
    /// The first tensor whose chunks don't cover a target region exactly.
    pub fn count<'a>(
        registry: &Registry,
        from: Option<&Mesh>,
        target: &Layout,
        chunks: impl Fn(usize) -> std::borrow::Cow<'a, [Region]>,
        budget: Budget,
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
            folding.add(entry, from, target.mesh(), bytes, moves);
        }
        cost.bytes_read = cost.bytes_written;
        cost.folds = folding.finish();
        cost.weigh(target, budget);
        Ok(cost)
    }

    fn weigh(&mut self, target: &Layout, budget: Budget) {
        let open = target.ranks().iter().filter(|rank| rank.written > 0).count() as u64;
        let half = (budget.max_memory / 2).max(1);
        let buffers = open.saturating_mul(budget.part_bytes);
        self.passes = buffers.div_ceil(half).max(1);
        self.peak_memory = buffers.min(half).saturating_add(half).min(self.bytes_written.saturating_mul(2));
    }
}
