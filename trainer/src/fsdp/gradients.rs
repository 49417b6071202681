//! Gradients of this rank: one sum for each use of a parameter over the microbatches, without any communication: however many
//! microbatches a step has, [`reduce`](super::reduce) follows once.
//!
//! In fast mode a sum follows the order of arrival: copies of a parameter on several tensor-parallel ranks agree because
//! those ranks run one schedule.
//!
//! Invariants: a gradient is taken once for each use and microbatch.

use fqn::Fqn;
use tch::Tensor;

use super::{
    plan::{elements, extents},
    state::State,
};
use crate::{
    Error, Result,
    exact::{Sums, TreeSum},
    model::Param,
};

/// In place of a parameter's index: none.
pub(super) const NONE: u64 = u64::MAX;

/// The gradient of every shard of a rank, reduced over the mesh.
#[derive(Debug)]
pub struct Gradients {
    /// By unit, in the layout of its kept buffers.
    pub(super) units: Vec<Tensor>,
    /// Index of the first parameter of which this rank itself gave a gradient that is not finite, or [`NONE`].
    pub(super) suspect: u64,
}

/// The sum of one use, as far as it has come.
#[derive(Debug)]
pub(super) struct Accumulator {
    arrived: Vec<bool>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
enum Piece {
    Exact(TreeSum),
    Fast { sum: Option<Tensor>, fresh: bool },
}

impl Accumulator {
    fn new(sums: Sums, microbatches: usize, pieces: usize) -> Result<Self> {
        let piece = || match sums {
            Sums::Exact => TreeSum::new(microbatches).map(Piece::Exact),
            Sums::Fast => Ok(Piece::Fast { sum: None, fresh: false }),
        };
        let pieces = (0..pieces).map(|_| piece()).collect::<Result<_>>()?;
        Ok(Self { arrived: vec![false; microbatches], pieces })
    }

    fn add(&mut self, microbatch: usize, pieces: Vec<Tensor>) -> Result<()> {
        match self.arrived.get_mut(microbatch) {
            Some(arrived) if !*arrived => *arrived = true,
            Some(_) => return Err(Error::internal(format!("a second gradient for microbatch {microbatch}"))),
            None => {
                return Err(Error::internal(format!(
                    "a gradient for microbatch {microbatch}, which is none"
                )));
            }
        }
        self.pieces.iter_mut().zip(pieces).try_for_each(|(sum, piece)| sum.add(microbatch, piece))
    }

    /// The sums, by piece.
    pub(super) fn finish(self) -> Result<Vec<Tensor>> {
        if let Some(missing) = self.arrived.iter().position(|arrived| !arrived) {
            return Err(Error::internal(format!("no gradient for microbatch {missing}")));
        }
        self.pieces.into_iter().map(Piece::finish).collect()
    }
}

impl Piece {
    fn add(&mut self, microbatch: usize, piece: Tensor) -> Result<()> {
        match self {
            Self::Exact(tree) => tree.add(microbatch, piece),
            Self::Fast { sum, fresh } => {
                // The first one may be someone else's memory; from the second on the sum is ours.
                *sum = Some(match sum.take() {
                    None => piece,
                    Some(mut sum) if *fresh => sum.f_add_(&piece)?,
                    Some(sum) => {
                        *fresh = true;
                        sum.f_add(&piece)?
                    }
                });
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<Tensor> {
        match self {
            Self::Exact(tree) => tree.finish(),
            Self::Fast { sum, .. } => sum.ok_or_else(|| Error::internal("a sum of nothing")),
        }
    }
}

impl State {
    pub(super) fn accumulate(&self, param: Param, microbatch: usize, pieces: Vec<Tensor>) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let (_, unit) = self.plan.unit(param.part)?;
        let (_, held) = self.slot(unit, param)?;
        let at = |error: Error| error.at(&held.spec.fqn).at(format_args!("part {}", param.part));
        let found: Vec<Vec<i64>> = pieces.iter().map(Tensor::size).collect();
        let expected: Vec<Vec<i64>> = held.pieces.iter().map(extents).collect();
        if found != expected {
            return Err(at(Error::internal(format!("a gradient {found:?} of pieces {expected:?}"))));
        }
        let mut accumulators = self.accumulators.borrow_mut();
        let accumulator = match accumulators.entry((param.part, param.index)) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Accumulator::new(self.sums, self.microbatches, expected.len())?)
            }
        };
        accumulator.add(microbatch, pieces).map_err(at)
    }

    /// The gradients of all shards, once every part is reduced; tied parameters' uses are added. Collective over the
    /// pipeline group.
    ///
    /// # Errors
    /// `Internal` for a part that was not reduced; the transport's.
    pub fn gradients(&self) -> Result<Gradients> {
        let _guard = tch::no_grad_guard();
        if let Some(unit) =
            self.plan.units.iter().find(|unit| !self.reduced.borrow().contains_key(&unit.part))
        {
            return Err(Error::internal(format!("part {} was not reduced in this step", unit.part)));
        }
        self.add_ties()?;
        let mut reduced = self.reduced.take();
        let units = self.plan.units.iter().map(|unit| {
            let flat =
                reduced.remove(&unit.part).ok_or_else(|| Error::internal("a part without gradients"))?;
            Ok(flat.f_narrow(0, 0, unit.kept)?)
        });
        let units = units.collect::<Result<_>>()?;
        Ok(Gradients { units, suspect: self.suspect.replace(NONE) })
    }

    /// Gradients by name: where each lies in the whole tensor, and its elements. For comparing layouts.
    ///
    /// # Errors
    /// `Internal` for gradients of another state.
    pub fn named(&self, gradients: &Gradients) -> Result<Vec<(Fqn, reshard::Region, Tensor)>> {
        let named = self.plan.params.iter().map(|held| {
            let kept = self.kept(held)?;
            let flat = gradients.units.get(held.home.0);
            let flat = flat.ok_or_else(|| Error::internal("gradients of another state"))?;
            let tensor = flat.f_narrow(0, kept.offset, elements(kept.region))?;
            let tensor = tensor.f_view(extents(kept.region).as_slice())?;
            Ok((held.spec.fqn.clone(), kept.region.clone(), tensor))
        });
        named.collect()
    }

    /// Forgets what an abandoned step has summed.
    pub fn discard_gradients(&self) {
        self.accumulators.borrow_mut().clear();
        self.reduced.borrow_mut().clear();
        self.suspect.set(NONE);
    }
}
