//! [`Params`] over shards: a part's weights are gathered in one collective when it begins, and freed when nobody needs
//! them any more. The gather of the part that comes next in the pass is begun before this one is computed.
//!
//! Invariants: `begin` and `end` are counted, so that passes of several microbatches may nest; at most one gather is
//! under way; pieces begin at multiples of 64 bytes on every mesh, so that no product depends on where its weights lie.

use tch::Tensor;

use super::{
    plan::{Held, Slot, Unit, extents, padded},
    shards::{part, view},
    state::State,
};
use crate::{
    Error, Result,
    model::Param,
    parallel::{Cut, Params, Pass, Precision},
    transport::{Gathering, Purpose},
};

/// What libtorch's allocator aligns to on CPUs.
const BYTES: usize = 64;

/// Gathered weights that live now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Parts that are gathered now, or on the way.
    pub parts: usize,
    /// The most that were at once.
    pub peak_parts: usize,
    /// Elements of the pieces of those parts.
    pub elements: u64,
    /// The most that were at once.
    pub peak_elements: u64,
    /// How often a part was gathered.
    pub gathers: u64,
}

/// A unit's weights, while they are needed.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    holders: usize,
    /// By slot, pieces of the virtual tensor-parallel ranks.
    slots: Option<Vec<Vec<Tensor>>>,
    elements: u64,
}

/// The gather of a unit that is needed next.
#[derive(Debug)]
pub(super) struct Ahead {
    unit: usize,
    gathering: Gathering,
    elements: u64,
}

impl Params for State {
    fn version(&self) -> u64 {
        self.step_count()
    }

    fn precision(&self) -> Precision {
        self.compute
    }

    fn cut(&self, param: Param) -> Cut {
        self.plan.held(param.index).map_or(Cut::Whole, |held| held.cut)
    }

    fn weight(&self, param: Param) -> Result<Vec<Tensor>> {
        let (at, unit) = self.plan.unit(param.part)?;
        let (slot, held) = self.slot(unit, param)?;
        let gathered = self.gathered.borrow();
        let pieces = gathered.get(at).filter(|gathered| gathered.holders > 0);
        let pieces = pieces.and_then(|gathered| gathered.slots.as_ref()?.get(slot));
        let pieces = pieces.ok_or_else(|| {
            Error::internal(format!("{} is used in part {}, which has not begun", held.spec.fqn, param.part))
        })?;
        Ok(pieces.iter().map(Tensor::shallow_clone).collect())
    }

    fn gradient(&self, param: Param, microbatch: usize, pieces: Vec<Tensor>) -> Result<()> {
        self.accumulate(param, microbatch, pieces)
    }

    fn begin(&self, part: usize, pass: Pass) -> Result<()> {
        let (at, unit) = self.plan.unit(part)?;
        let missing = !self.has(at);
        let fresh = if missing { Some(self.gather(at, unit)?) } else { None };
        if let Some(gathered) = self.gathered.borrow_mut().get_mut(at) {
            gathered.holders += 1;
            if let Some(slots) = fresh {
                gathered.elements = slots.iter().flatten().map(|piece| piece.numel() as u64).sum();
                gathered.slots = Some(slots);
                self.live.set(self.live.get().with(gathered.elements));
            }
        }
        if missing { self.begin_next(part, pass) } else { Ok(()) }
    }

    fn end(&self, part: usize, _pass: Pass) -> Result<()> {
        let (at, _) = self.plan.unit(part)?;
        if let Some(gathered) = self.gathered.borrow_mut().get_mut(at) {
            gathered.holders = gathered
                .holders
                .checked_sub(1)
                .ok_or_else(|| Error::internal(format!("part {part} ended more often than it began")))?;
            self.free(gathered);
        }
        Ok(())
    }
}

impl State {
    /// What is gathered now, and was at most.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.get()
    }

    /// Starts a new measurement of peaks.
    pub fn reset_peaks(&self) {
        let Live { parts, elements, .. } = self.live.get();
        self.live.set(Live { peak_parts: parts, peak_elements: elements, ..self.live.get() });
    }

    /// Refuses to go on while a part is in use: what is gathered of it would be old. Drops what was gathered ahead.
    pub(super) fn unused(&self) -> Result<()> {
        self.drop_ahead()?;
        let gathered = self.gathered.borrow();
        let used = gathered.iter().zip(&self.plan.units).find(|(gathered, _)| gathered.holders > 0);
        used.map_or(Ok(()), |(_, unit)| {
            Err(Error::internal(format!("an update while part {} is in use", unit.part)))
        })
    }

    fn free(&self, gathered: &mut Gathered) {
        if gathered.holders == 0 && gathered.slots.take().is_some() {
            self.live.set(self.live.get().without(gathered.elements));
        }
    }

    pub(super) fn slot<'a>(&'a self, unit: &Unit, param: Param) -> Result<(usize, &'a Held)> {
        let held = self.plan.held(param.index);
        let slot = unit
            .slots
            .iter()
            .position(|slot| self.plan.params.get(slot.param).is_some_and(|held| held.index == param.index));
        slot.zip(held).ok_or_else(|| {
            let name = self.names.get(param.index).map_or_else(|| "?".to_owned(), ToString::to_string);
            Error::internal(format!("part {} has no parameter {} ({name})", param.part, param.index))
        })
    }

    fn has(&self, at: usize) -> bool {
        self.gathered.borrow().get(at).is_some_and(|gathered| gathered.slots.is_some())
    }

    /// Everyone's flat buffers, put together to pieces.
    fn gather(&self, at: usize, unit: &Unit) -> Result<Vec<Vec<Tensor>>> {
        let _guard = tch::no_grad_guard();
        let flats = if self.data.shard == 1 {
            vec![self.compute.operand(&self.lent(at, unit)?)?]
        } else if self.ahead.borrow().as_ref().is_some_and(|ahead| ahead.unit == at) {
            self.take_ahead()?
        } else {
            self.drop_ahead()?;
            self.begin_gather(at, unit)?.take()?
        };
        unit.slots.iter().map(|slot| self.pieces(&flats, slot)).collect()
    }

    fn begin_gather(&self, at: usize, unit: &Unit) -> Result<Gathering> {
        let mine = self.compute.operand(&self.lent(at, unit)?)?;
        let shapes: Vec<_> = unit.lengths.iter().map(|length| vec![*length]).collect();
        let purpose = Purpose(format!("weights of part {}", unit.part));
        self.groups.shard.begin_all_gather(&purpose, &mine, &shapes)
    }

    /// Begins the gather of the part that comes after `part` in this pass of its stage.
    fn begin_next(&self, part: usize, pass: Pass) -> Result<()> {
        let next = match pass {
            Pass::Forward => part.checked_add(1),
            Pass::Backward => part.checked_sub(1),
        };
        let needed = |next: usize| pass == Pass::Forward || self.backward_needs.get(next) == Some(&true);
        let next = next.filter(|next| self.in_one_stage(part, *next) && needed(*next));
        let Some(next) = next.filter(|_| self.prefetch && self.data.shard > 1) else { return Ok(()) };
        let (at, unit) = self.plan.unit(next)?;
        if self.has(at) || self.ahead.borrow().is_some() {
            return Ok(());
        }
        let _guard = tch::no_grad_guard();
        let gathering = self.begin_gather(at, unit)?;
        let elements = unit.lengths.iter().sum::<i64>().unsigned_abs();
        self.live.set(self.live.get().with(elements));
        *self.ahead.borrow_mut() = Some(Ahead { unit: at, gathering, elements });
        Ok(())
    }

    fn in_one_stage(&self, one: usize, other: usize) -> bool {
        self.stages.iter().any(|parts| parts.contains(&one) && parts.contains(&other))
    }

    /// Waits for the gather that is under way.
    fn take_ahead(&self) -> Result<Vec<Tensor>> {
        let Some(Ahead { gathering, elements, .. }) = self.ahead.take() else { return Ok(Vec::new()) };
        let live = self.live.get().without(elements);
        // Begun once, and counted again when its pieces are there.
        self.live.set(Live { gathers: live.gathers.saturating_sub(1), ..live });
        gathering.take()
    }

    /// Waits for a gather that turned out not to be needed: its messages are on their way.
    fn drop_ahead(&self) -> Result<()> {
        let live = self.live.get();
        let dropped = self.ahead.borrow().is_some();
        self.take_ahead()?;
        if dropped {
            self.live.set(Live { gathers: live.gathers, ..self.live.get() });
        }
        Ok(())
    }

    /// This rank's flat buffer of a unit; with what other units keep for it, if there is any.
    fn lent(&self, at: usize, unit: &Unit) -> Result<Tensor> {
        let own = self.shards.get(at).ok_or_else(|| Error::internal("a unit without shards"))?;
        let mut all = vec![own.param.shallow_clone()];
        for slot in unit.slots.iter().filter(|slot| slot.borrowed) {
            let kept = self.kept(self.plan.of(slot)?)?;
            let length = padded(kept.region);
            all.push(kept.shards.param.f_narrow(0, kept.offset, length)?);
        }
        match all.as_slice() {
            [only] => Ok(only.shallow_clone()),
            _ => Ok(Tensor::f_cat(&all, 0)?),
        }
    }

    fn pieces(&self, flats: &[Tensor], slot: &Slot) -> Result<Vec<Tensor>> {
        let held = self.plan.of(slot)?;
        let shards = (0..).zip(flats).map(|(member, flat)| view(flat, &self.plan, slot, member));
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let piece = |whole: &reshard::Region| {
            let mut rows = Vec::new();
            for (shard, region) in shards.iter().zip(&held.regions) {
                if let Some(shared) = region.intersect(whole) {
                    rows.push(part(shard, region, &shared)?);
                }
            }
            match rows.as_slice() {
                [] => {
                    let shard = shards.first().ok_or_else(|| Error::internal("a group of nobody"))?;
                    Ok(shard.f_new_empty(extents(whole), (shard.kind(), shard.device()))?)
                }
                [only] => aligned(only),
                _ => Ok(Tensor::f_cat(&rows, 0)?),
            }
        };
        held.pieces.iter().map(piece).collect()
    }
}

/// The tensor itself if it is contiguous and begins where a fresh one could; else a copy.
fn aligned(tensor: &Tensor) -> Result<Tensor> {
    let contiguous = tensor.f_contiguous()?;
    if (contiguous.data_ptr() as usize).is_multiple_of(BYTES) {
        return Ok(contiguous);
    }
    let mut fresh = contiguous.f_empty_like()?;
    fresh.f_copy_(&contiguous)?;
    Ok(fresh)
}

impl Live {
    const fn with(self, elements: u64) -> Self {
        let (parts, elements) = (self.parts + 1, self.elements + elements);
        let peak_parts = if parts > self.peak_parts { parts } else { self.peak_parts };
        let peak_elements = if elements > self.peak_elements { elements } else { self.peak_elements };
        Self { parts, peak_parts, elements, peak_elements, gathers: self.gathers + 1 }
    }

    const fn without(self, elements: u64) -> Self {
        Self { parts: self.parts - 1, elements: self.elements - elements, ..self }
    }
}
