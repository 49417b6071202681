//! Gradients: one sum for each use of a parameter over the microbatches, then one exchange for each part, which leaves
//! every rank with the gradient of its own shard.
//!
//! In exact mode both sums are one aligned tree over the *global* microbatch index: replica d plays microbatches
//! d·M..(d+1)·M, M a power of two, so that a rank's sum is a whole subtree and the sum over ranks is the rest of the tree.
//!
//! In fast mode a sum follows the order of arrival: copies of a parameter on several tensor-parallel ranks agree because
//! those ranks run one schedule.
//!
//! Invariants: a gradient is taken once for each use and microbatch, and none may be missing when a part is reduced;
//! sums are freed then.

use fqn::Fqn;
use tch::Tensor;

use super::{
    plan::{Held, Plan, Slot, Unit, elements, extents, padded},
    shards::part,
    state::State,
};
use crate::{
    Error, Result,
    exact::{self, Sums, TreeSum},
    model::Param,
    stage::GradReduce,
    transport::Purpose,
};

/// The gradient of every shard of a rank, reduced over the mesh.
#[derive(Debug)]
pub struct Gradients {
    /// By unit, in the layout of its kept buffers.
    pub(super) units: Vec<Tensor>,
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

    fn finish(self) -> Result<Vec<Tensor>> {
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

    /// Reduces the gradients of a part to its shards. Collective over the data-parallel group.
    ///
    /// # Errors
    /// `Internal` for a gradient that is missing: names it and its microbatch; the transport's.
    pub fn reduce(&self, part: usize) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let (_, unit) = self.plan.unit(part)?;
        if self.reduced.borrow().contains_key(&part) {
            return Err(Error::internal(format!("part {part} was reduced already in this step")));
        }
        let mut sums = Vec::new();
        for slot in &unit.slots {
            let held = self.plan.of(slot)?;
            let sum = self.accumulators.borrow_mut().remove(&(part, held.index));
            let sum = sum
                .ok_or_else(|| Error::internal("no gradient for microbatch 0"))
                .and_then(Accumulator::finish);
            sums.push(sum.map_err(|error| error.at(&held.spec.fqn).at(format_args!("part {part}")))?);
        }
        let flats =
            (0..self.mesh.dp).map(|dp| flat(&self.plan, unit, &sums, dp)).collect::<Result<Vec<_>>>()?;
        drop(sums);
        let reduced = self.over_replicas(unit, flats)?;
        self.reduced.borrow_mut().insert(part, reduced);
        Ok(())
    }

    fn over_replicas(&self, unit: &Unit, mut flats: Vec<Tensor>) -> Result<Tensor> {
        let nobody = || Error::internal("a group of nobody");
        if self.mesh.dp == 1 {
            return flats.pop().ok_or_else(nobody);
        }
        let own = unit.lengths.get(self.at.dp).copied().ok_or_else(nobody)?;
        let purpose = Purpose(format!("gradients of part {}", unit.part));
        let theirs = self.groups.dp.exchange(&purpose, flats, &vec![vec![own]; self.mesh.dp])?;
        if self.sums == Sums::Exact {
            return exact::sum(theirs);
        }
        let mut theirs = theirs.into_iter();
        let first = theirs.next().ok_or_else(nobody)?;
        theirs.try_fold(first, |sum, other| Ok(sum.f_add(&other)?))
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
        Ok(Gradients { units: units.collect::<Result<_>>()? })
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
    }
}

/// What member `dp` holds of a unit's sums, in the layout of its flat buffer.
fn flat(plan: &Plan, unit: &Unit, sums: &[Vec<Tensor>], dp: usize) -> Result<Tensor> {
    let mut all = Vec::new();
    for (slot, pieces) in unit.slots.iter().zip(sums) {
        let (held, region) = shard(plan, slot, dp)?;
        let mut length = 0;
        if let Some(cut) = cut_out(held, region, pieces)? {
            length = i64::try_from(cut.numel()).unwrap_or(i64::MAX);
            all.push(cut.f_reshape([-1])?);
        }
        if let (Some(any), padding @ 1..) = (pieces.first(), padded(region) - length) {
            all.push(any.f_new_zeros([padding], (any.kind(), any.device()))?);
        }
    }
    match sums.iter().flatten().next() {
        Some(any) if all.is_empty() => Ok(any.f_new_zeros([0], (any.kind(), any.device()))?),
        _ => Ok(Tensor::f_cat(&all, 0)?),
    }
}

fn shard<'a>(plan: &'a Plan, slot: &Slot, dp: usize) -> Result<(&'a Held, &'a reshard::Region)> {
    let held = plan.of(slot)?;
    let region = held.regions.get(dp);
    Ok((held, region.ok_or_else(|| Error::internal(format!("{} has no shard {dp}", held.spec.fqn)))?))
}

/// The elements of `region`, from the pieces of the virtual ranks; none for an empty one.
fn cut_out(held: &Held, region: &reshard::Region, pieces: &[Tensor]) -> Result<Option<Tensor>> {
    let mut found = Vec::new();
    for (piece, whole) in pieces.iter().zip(&held.pieces) {
        if let Some(shared) = whole.intersect(region) {
            found.push(part(piece, whole, &shared)?);
        }
    }
    let dim = match held.cut {
        crate::parallel::Cut::Dim(dim) => i64::try_from(dim).unwrap_or(0),
        crate::parallel::Cut::Whole => 0,
    };
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.shallow_clone())),
        _ => Ok(Some(Tensor::f_cat(&found, dim)?)),
    }
}

/// A stage's parts, one after the other; ascending, as on every member of the group.
impl GradReduce for State {
    fn reduce(&self, mut parts: std::ops::Range<usize>) -> Result<()> {
        parts.try_for_each(|part| Self::reduce(self, part))
    }
}
