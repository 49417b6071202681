//! Collectives among processes. Every collective begins with an all-gather of frames (see `frame`), which have one size for
//! all collectives of a group: members that are at different things, or give other shapes than announced, are named
//! instead of being cut down by gloo, which ends the process on a message that is longer than its buffer, or left waiting for ever
//! by NCCL. Small parts
//! ride in the frame, so that a small collective is one round; large ones take a second round, sized by the frames.
//!
//! `all_gather` and `all_reduce` of large parts skip the frame when `Limits::check_purposes` is off. All members know
//! whether a part is large, from its shapes, so they agree on that unless they have diverged already.
//!
//! Invariants: where frames go first, the data is sized by what they say, never by what this member believes; sums of small parts
//! are in rank order, those of large ones in the carrier's.

use std::{cell::Cell, rc::Rc, time::Instant};

use tch::{Kind as Dtype, Tensor};

use super::{
    call::{Call, bytes_of, carried, part_bytes, raw, sum, tensor},
    carrier::{Lane, Pending},
    core::{Core, Slot},
    frame::{Layout, Operation},
};
use crate::{
    Result,
    transport::{
        Gathering, Group, Purpose, check,
        failure::{Failure, Outcome},
    },
};

/// One member's end of a group.
pub(super) struct Member {
    pub(super) core: Rc<Core>,
    /// Connections for frames, and for data; none for a group of one.
    pub(super) slot: Option<(Slot, Rc<dyn Lane>)>,
    pub(super) key: String,
    pub(super) name: String,
    pub(super) members: Vec<usize>,
    pub(super) index: usize,
    pub(super) layout: Layout,
    entered: Cell<u64>,
}

/// A gather whose frames have gone.
enum Begun {
    /// They carried all.
    Done(Vec<Tensor>),
    /// The round of data.
    UnderWay { all: Tensor, work: Option<Box<dyn Pending>>, sequence: u64, deadline: Instant },
}

/// Parts in their shapes, without what they were padded with.
fn shaped(parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
    let parts = parts.into_iter().zip(shapes);
    let shape = |(part, shape): (Tensor, &Vec<i64>)| {
        Ok(part.f_narrow(0, 0, check::elements(shape)?)?.f_view(shape.as_slice())?)
    };
    parts.map(shape).collect()
}

impl Member {
    pub(super) fn new(core: Rc<Core>, key: String, name: &str, members: &[usize]) -> Outcome<Self> {
        let index = check::members(name, core.rank, core.world, members)?;
        let slot = match members.len() {
            1 => None,
            _ => Some(core.connect_both(&key, members, index)?),
        };
        let (name, members, layout) = (name.to_owned(), members.to_vec(), Layout::new(members.len()));
        Ok(Self { core, slot, key, name, members, index, layout, entered: Cell::new(0) })
    }

    /// This member again, to take what it has begun.
    fn again(&self) -> Self {
        Self {
            core: Rc::clone(&self.core),
            slot: self.slot.clone(),
            key: self.key.clone(),
            name: self.name.clone(),
            members: self.members.clone(),
            index: self.index,
            layout: self.layout,
            entered: Cell::new(0),
        }
    }

    fn call<'a>(&'a self, operation: Operation, dtype: Dtype, purpose: &'a Purpose) -> Call<'a> {
        let sequence = self.entered.get() + 1;
        self.entered.set(sequence);
        self.core.marks.enter(&self.key, sequence);
        let deadline = Instant::now() + self.core.limit();
        Call { operation, dtype, purpose, group: self, deadline, sequence }
    }

    fn gathered(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        match self.begun(purpose, mine, shapes)? {
            Begun::Done(parts) => Ok(parts),
            Begun::UnderWay { all, work, sequence, deadline } => {
                let dtype = mine.kind();
                let call =
                    Call { operation: Operation::AllGather, dtype, purpose, group: self, deadline, sequence };
                call.wait(work.as_deref())?;
                shaped(call.apart(&all)?, shapes)
            }
        }
    }

    fn gathering(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Gathering> {
        Ok(match self.begun(purpose, mine, shapes)? {
            Begun::Done(parts) => Gathering::done(parts),
            Begun::UnderWay { all, work, sequence, deadline } => {
                let (member, purpose, shapes, dtype) =
                    (self.again(), purpose.clone(), shapes.to_vec(), mine.kind());
                Gathering::later(move || {
                    let (operation, purpose, group) = (Operation::AllGather, &purpose, &member);
                    let call = Call { operation, dtype, purpose, group, deadline, sequence };
                    member.core.guarded(|| {
                        call.wait(work.as_deref())?;
                        shaped(call.apart(&all)?, &shapes)
                    })
                })
            }
        })
    }

    /// Sends frames where they go first, and begins the round of data, if there is one.
    fn begun(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Begun> {
        let what = self.what(Operation::AllGather, purpose);
        let dtype = check::dtype(&what, mine)?;
        check::shapes(&what, self.members.len(), shapes)?;
        check::own(&what, mine, shapes.get(self.index))?;
        check::placed(&what, mine, self.core.carrier.device())?;
        let lengths = shapes.iter().map(|shape| bytes_of(shape, dtype)).collect::<Outcome<Vec<_>>>()?;
        let call = self.call(Operation::AllGather, dtype, purpose);
        let largest = lengths.iter().copied().max().unwrap_or_default();
        if largest <= self.layout.carries() || self.core.limits.check_purposes {
            let frames = call.frames(lengths[self.index], Vec::new(), || raw(mine))?;
            call.announced(&frames, &lengths)?;
            if let Some(parts) = carried(&frames) {
                let parts = parts.zip(shapes).map(|(part, shape)| tensor(part, shape, dtype, mine.device()));
                return parts.collect::<Outcome<_>>().map(Begun::Done);
            }
        }
        let flat = mine.f_detach()?.f_contiguous()?.f_view([-1_i64].as_slice())?;
        let (all, work) = call.begin_padded(&flat, largest)?;
        Ok(Begun::UnderWay { all, work, sequence: call.sequence, deadline: call.deadline })
    }

    fn exchanged(&self, purpose: &Purpose, parts: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what(Operation::Exchange, purpose);
        check::shapes(&what, self.members.len(), shapes)?;
        let first = parts.first().filter(|_| parts.len() == self.members.len());
        let first = first.ok_or_else(|| {
            Failure::Misuse(format!("{what}: {} parts for {} members", parts.len(), self.members.len()))
        })?;
        let dtype = check::dtype(&what, first)?;
        parts.iter().try_for_each(|part| check::placed(&what, part, self.core.carrier.device()))?;
        if parts.iter().any(|part| part.kind() != dtype) {
            return Err(Failure::Misuse(format!("{what}: its parts are of several dtypes")));
        }
        let given = parts.iter().map(|part| bytes_of(&part.size(), dtype)).collect::<Outcome<Vec<_>>>()?;
        let expected = shapes.iter().map(|shape| bytes_of(shape, dtype)).collect::<Outcome<Vec<_>>>()?;
        let flat = parts.iter().map(|part| part.f_detach()?.f_contiguous()?.f_view([-1_i64].as_slice()));
        let flat = Tensor::f_cat(&flat.collect::<std::result::Result<Vec<_>, _>>()?, 0)?;
        let call = self.call(Operation::Exchange, dtype, purpose);
        let frames = call.frames(given.iter().sum(), given, || raw(&flat))?;
        let incoming: Vec<_> =
            frames.iter().map(|frame| frame.lengths.get(self.index).copied().unwrap_or(usize::MAX)).collect();
        call.alike(&incoming, &expected)?;
        match carried(&frames) {
            Some(parts) => call.pick(&frames, parts, shapes),
            None => call.all_to_all(&flat, parts, shapes),
        }
    }

    fn reduced(&self, purpose: &Purpose, mine: &Tensor) -> Outcome<Tensor> {
        let what = self.what(Operation::AllReduce, purpose);
        let dtype = check::dtype(&what, mine)?;
        check::placed(&what, mine, self.core.carrier.device())?;
        let shape = mine.size();
        let length = bytes_of(&shape, dtype)?;
        let call = self.call(Operation::AllReduce, dtype, purpose);
        if length <= self.layout.carries() || self.core.limits.check_purposes {
            let frames = call.frames(length, Vec::new(), || raw(mine))?;
            call.announced(&frames, &vec![length; self.members.len()])?;
            if let Some(parts) = carried(&frames) {
                return sum(parts, &shape, dtype, mine.device());
            }
        }
        let sum = mine.f_detach()?.f_contiguous()?.f_detach_copy()?;
        call.run(|lane, limit| lane.all_reduce(sum.shallow_clone(), limit))?;
        Ok(sum)
    }

    fn bytes(&self, purpose: &Purpose, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let call = self.call(Operation::AllGatherBytes, Dtype::Uint8, purpose);
        let frames = call.frames(mine.len(), Vec::new(), || Ok(mine.to_vec()))?;
        if let Some(parts) = carried(&frames) {
            return Ok(parts.map(<[u8]>::to_vec).collect());
        }
        let largest = frames.iter().map(|frame| frame.length).max().unwrap_or_default();
        let parts = call.padded_bytes(&Tensor::f_from_slice(mine)?, largest)?;
        parts.iter().zip(&frames).map(|(part, frame)| part_bytes(part, frame.length)).collect()
    }

    pub(super) fn what(&self, operation: Operation, purpose: &Purpose) -> String {
        format!("{} ({purpose}) of group {}", operation.name(), self.name)
    }
}

impl Group for Member {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.core.guarded(|| self.gathered(purpose, mine, shapes))
    }

    fn begin_all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Gathering> {
        self.core.guarded(|| self.gathering(purpose, mine, shapes))
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.core.guarded(|| self.exchanged(purpose, &parts, shapes))
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        self.core.guarded(|| self.reduced(purpose, &mine))
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.core.guarded(|| self.bytes(purpose, mine))
    }
}
