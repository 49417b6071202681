//! Collectives over gloo. Every collective begins with an all-gather of frames (see `frame`), which have one size for
//! all collectives of a group: members that are at different things, or give other shapes than announced, are named
//! instead of being cut down by gloo, which ends the process on a message that is longer than its buffer. Small parts
//! ride in the frame, so that a small collective is one round; large ones take a second round, sized by the frames.
//!
//! `all_gather` and `all_reduce` of large parts skip the frame when `Limits::check_purposes` is off. All members know
//! whether a part is large, from its shapes, so they agree on that unless they have diverged already.
//!
//! Invariants: the second round is sized by what the frames say, never by what this member believes; sums of small parts
//! are in rank order, those of large ones in gloo's order.

use std::{
    cell::Cell,
    fmt,
    rc::Rc,
    time::{Duration, Instant},
};

use tch::{Device, Kind as Dtype, Tensor};

use super::{
    core::{Core, Slot},
    frame::{Frame, Layout, Operation},
    marks::Wait,
};
use crate::{
    Result,
    torch::c10d::{C10dError, ProcessGroup, Work},
    transport::{
        Group, Purpose, check,
        failure::{Failure, Outcome},
    },
};

/// One member's end of a group.
pub(super) struct GlooGroup {
    core: Rc<Core>,
    /// None for a group of one.
    slot: Option<Slot>,
    key: String,
    name: String,
    members: Vec<usize>,
    index: usize,
    layout: Layout,
    entered: Cell<u64>,
}

/// One collective: what it is for, and until when.
struct Call<'a> {
    operation: Operation,
    dtype: Dtype,
    purpose: &'a Purpose,
    group: &'a GlooGroup,
    deadline: Instant,
    sequence: u64,
}

impl GlooGroup {
    pub(super) fn new(core: Rc<Core>, key: String, name: &str, members: &[usize]) -> Outcome<Self> {
        let index = check::members(name, core.rank, core.world, members)?;
        let slot = match members.len() {
            1 => None,
            _ => Some(core.connect(&key, members, index, core.limits.start)?),
        };
        let (name, members, layout) = (name.to_owned(), members.to_vec(), Layout::new(members.len()));
        Ok(Self { core, slot, key, name, members, index, layout, entered: Cell::new(0) })
    }

    fn call<'a>(&'a self, operation: Operation, dtype: Dtype, purpose: &'a Purpose) -> Call<'a> {
        let sequence = self.entered.get() + 1;
        self.entered.set(sequence);
        self.core.marks.enter(&self.key, sequence);
        let deadline = Instant::now() + self.core.limits.step;
        Call { operation, dtype, purpose, group: self, deadline, sequence }
    }

    fn gathered(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what(Operation::AllGather, purpose);
        let dtype = check::dtype(&what, mine)?;
        check::shapes(&what, self.members.len(), shapes)?;
        check::own(&what, mine, shapes.get(self.index))?;
        let lengths = shapes.iter().map(|shape| bytes_of(shape, dtype)).collect::<Outcome<Vec<_>>>()?;
        let call = self.call(Operation::AllGather, dtype, purpose);
        let largest = lengths.iter().copied().max().unwrap_or_default();
        if largest <= self.layout.carries() || self.core.limits.check_purposes {
            let frames = call.frames(lengths[self.index], Vec::new(), || raw(mine))?;
            call.announced(&frames, &lengths)?;
            if let Some(parts) = carried(&frames) {
                return parts.zip(shapes).map(|(part, shape)| tensor(part, shape, dtype)).collect();
            }
        }
        let parts = call.padded(&mine.f_detach()?.f_contiguous()?.f_view([-1_i64].as_slice())?, largest)?;
        parts
            .into_iter()
            .zip(shapes)
            .map(|(part, shape)| {
                Ok(part.f_narrow(0, 0, check::elements(shape)?)?.f_view(shape.as_slice())?)
            })
            .collect()
    }

    fn exchanged(&self, purpose: &Purpose, parts: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what(Operation::Exchange, purpose);
        check::shapes(&what, self.members.len(), shapes)?;
        let first = parts.first().filter(|_| parts.len() == self.members.len());
        let first = first.ok_or_else(|| {
            Failure::Misuse(format!("{what}: {} parts for {} members", parts.len(), self.members.len()))
        })?;
        let dtype = check::dtype(&what, first)?;
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
        let shape = mine.size();
        let length = bytes_of(&shape, dtype)?;
        let call = self.call(Operation::AllReduce, dtype, purpose);
        if length <= self.layout.carries() || self.core.limits.check_purposes {
            let frames = call.frames(length, Vec::new(), || raw(mine))?;
            call.announced(&frames, &vec![length; self.members.len()])?;
            if let Some(parts) = carried(&frames) {
                return sum(parts, &shape, dtype);
            }
        }
        let sum = mine.f_detach()?.f_contiguous()?.f_detach_copy()?;
        call.run(|group, limit| group.all_reduce(sum.shallow_clone(), limit))?;
        Ok(sum)
    }

    fn bytes(&self, purpose: &Purpose, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let call = self.call(Operation::AllGatherBytes, Dtype::Uint8, purpose);
        let frames = call.frames(mine.len(), Vec::new(), || Ok(mine.to_vec()))?;
        if let Some(parts) = carried(&frames) {
            return Ok(parts.map(<[u8]>::to_vec).collect());
        }
        let largest = frames.iter().map(|frame| frame.length).max().unwrap_or_default();
        let parts = call.padded(&Tensor::f_from_slice(mine)?, largest)?;
        parts.iter().zip(&frames).map(|(part, frame)| part_bytes(part, frame.length)).collect()
    }

    fn what(&self, operation: Operation, purpose: &Purpose) -> String {
        format!("{} ({purpose}) of group {}", operation.name(), self.name)
    }
}

impl Call<'_> {
    fn what(&self) -> String {
        self.group.what(self.operation, self.purpose)
    }

    /// Gathers the frames of all members, in order of position, and errs unless they are all at this collective.
    fn frames(
        &self,
        length: usize,
        lengths: Vec<usize>,
        part: impl FnOnce() -> Outcome<Vec<u8>>,
    ) -> Outcome<Vec<Frame>> {
        let layout = self.group.layout;
        let part = if length <= layout.carries() { Some(part()?) } else { None };
        let mine = Frame { part, lengths, ..Frame::new(self.operation, self.dtype, self.purpose, length) };
        if self.group.slot.is_none() {
            return Ok(vec![mine]);
        }
        let from = Tensor::f_from_slice(&layout.write(&mine))?;
        let all = self.equal(&from)?;
        let mut bytes = vec![0; layout.size() * self.group.members.len()];
        all.f_copy_data_u8(&mut bytes, layout.size() * self.group.members.len())?;
        let frames = bytes.chunks_exact(layout.size()).zip(&self.group.members);
        let frames = frames.map(|(bytes, from)| layout.read(bytes).map_err(|why| self.garbled(*from, why)));
        let frames = frames.collect::<Outcome<Vec<_>>>()?;
        self.together(&mine, &frames).map(|()| frames)
    }

    fn together(&self, mine: &Frame, frames: &[Frame]) -> Outcome<()> {
        let other = frames.iter().zip(&self.group.members).find(|(frame, _)| !frame.agrees(mine));
        other.map_or(Ok(()), |(frame, other)| {
            let (group, rank) = (self.group.name.clone(), self.group.core.rank);
            Err(Failure::Diverged { group, rank, mine: mine.act(), other: *other, theirs: frame.act() })
        })
    }

    fn garbled(&self, from: usize, why: &str) -> Failure {
        Failure::Garbled { from, to: self.group.core.rank, why: format!("{}: {why}", self.what()) }
    }

    fn announced(&self, frames: &[Frame], expected: &[usize]) -> Outcome<()> {
        self.alike(&frames.iter().map(|frame| frame.length).collect::<Vec<_>>(), expected)
    }

    /// Whether the members give as many bytes as this one expects of them.
    fn alike(&self, found: &[usize], expected: &[usize]) -> Outcome<()> {
        let mut all = found.iter().zip(expected).zip(&self.group.members);
        all.find(|((found, expected), _)| found != expected).map_or(Ok(()), |((found, expected), from)| {
            let (found, expected) = (format!("{found} bytes"), format!("{expected} bytes"));
            Err(Failure::Unlike {
                what: self.what(),
                from: *from,
                found,
                rank: self.group.core.rank,
                expected,
            })
        })
    }

    /// Gathers flat parts of at most `largest` bytes; each result is as long as the longest.
    fn padded(&self, mine: &Tensor, largest: usize) -> Outcome<Vec<Tensor>> {
        let longest = integer(largest / self.dtype.elt_size_in_bytes())?;
        let own = integer(mine.numel())?;
        let all = if own == longest {
            self.equal(mine)?
        } else {
            let padded = Tensor::f_zeros([longest], (self.dtype, Device::Cpu))?;
            padded.f_narrow(0, 0, own)?.f_copy_(mine)?;
            self.equal(&padded)?
        };
        (0..self.group.members.len())
            .map(|at| Ok(all.f_narrow(0, integer(at)? * longest, longest)?))
            .collect()
    }

    /// Gathers flat parts of one size into one flat tensor.
    fn equal(&self, mine: &Tensor) -> Outcome<Tensor> {
        let count = integer(mine.numel() * self.group.members.len())?;
        let all = Tensor::f_empty([count], (mine.kind(), Device::Cpu))?;
        if self.group.slot.is_none() {
            all.shallow_clone().f_copy_(mine)?;
        } else {
            self.run(|group, limit| group.all_gather(all.shallow_clone(), mine.shallow_clone(), limit))?;
        }
        Ok(all)
    }

    /// This member's parts out of frames that carry everyone's.
    fn pick<'p>(
        &self,
        frames: &[Frame],
        parts: impl Iterator<Item = &'p [u8]>,
        shapes: &[Vec<i64>],
    ) -> Outcome<Vec<Tensor>> {
        let mine = frames.iter().zip(parts).zip(shapes).zip(&self.group.members);
        mine.map(|(((frame, part), shape), from)| {
            let begin: usize = frame.lengths.iter().take(self.group.index).sum();
            let length = frame.lengths.get(self.group.index).copied().unwrap_or_default();
            let piece = part
                .get(begin..begin + length)
                .ok_or_else(|| self.garbled(*from, "its part is cut short"))?;
            tensor(piece, shape, self.dtype)
        })
        .collect()
    }

    fn all_to_all(&self, flat: &Tensor, parts: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let outgoing = parts.iter().map(|part| integer(part.numel())).collect::<Outcome<Vec<_>>>()?;
        let incoming = shapes.iter().map(|shape| check::elements(shape)).collect::<Outcome<Vec<_>>>()?;
        let into = Tensor::f_empty([incoming.iter().sum::<i64>()], (self.dtype, Device::Cpu))?;
        if self.group.slot.is_none() {
            into.shallow_clone().f_copy_(flat)?;
        } else {
            self.run(|group, limit| {
                group.all_to_all((into.shallow_clone(), &incoming), (flat.shallow_clone(), &outgoing), limit)
            })?;
        }
        let mut begin = 0;
        incoming
            .iter()
            .zip(shapes)
            .map(|(count, shape)| {
                let piece = into.f_narrow(0, begin, *count)?.f_view(shape.as_slice())?;
                begin += count;
                Ok(piece)
            })
            .collect()
    }

    /// Runs one operation on the group's connections to its end.
    fn run(
        &self,
        start: impl FnOnce(&ProcessGroup, Duration) -> std::result::Result<Work, C10dError>,
    ) -> Outcome<()> {
        let Some(slot) = &self.group.slot else { return Ok(()) };
        let core = &self.group.core;
        let _waiting = core.scene.wait(self);
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let outcome =
            core.with(slot, |group| start(group, left).and_then(|work| core.finish(&work, self.deadline)))?;
        outcome.map_err(|error| {
            let suspects = core.others(&self.group.members);
            let entered = Some((self.group.key.as_str(), self.sequence));
            core.marks.explain(&Wait { what: self, limit: core.limits.step, suspects, entered }, error)
        })
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, group) = (self.operation.name(), &self.group.name);
        write!(f, "{name} ({}), number {} of group {group}", self.purpose, self.sequence)
    }
}

impl Group for GlooGroup {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.core.guarded(|| self.gathered(purpose, mine, shapes))
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

/// The parts of all members, when every frame carries its own.
fn carried(frames: &[Frame]) -> Option<impl Iterator<Item = &[u8]>> {
    let all = frames.iter().all(|frame| frame.part.is_some());
    all.then(|| frames.iter().filter_map(|frame| frame.part.as_deref()))
}

fn sum<'p>(parts: impl Iterator<Item = &'p [u8]>, shape: &[i64], dtype: Dtype) -> Outcome<Tensor> {
    let mut sum = None;
    for part in parts {
        let part = tensor(part, shape, dtype)?;
        match &mut sum {
            None => sum = Some(part),
            Some(sum) => drop(sum.f_add_(&part)?),
        }
    }
    sum.ok_or_else(|| Failure::Misuse("a sum of nothing".to_owned()))
}

fn raw(tensor: &Tensor) -> Outcome<Vec<u8>> {
    let tensor = tensor.f_detach()?.f_contiguous()?;
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

fn part_bytes(part: &Tensor, length: usize) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; length];
    part.f_narrow(0, 0, integer(length)?)?.f_copy_data_u8(&mut bytes, length)?;
    Ok(bytes)
}

fn tensor(bytes: &[u8], shape: &[i64], dtype: Dtype) -> Outcome<Tensor> {
    let expected = bytes_of(shape, dtype)?;
    if bytes.len() != expected {
        return Err(Failure::Misuse(format!("{} bytes for a tensor of {expected}", bytes.len())));
    }
    Ok(Tensor::f_from_data_size(bytes, shape, dtype)?)
}

fn bytes_of(shape: &[i64], dtype: Dtype) -> Outcome<usize> {
    let elements = usize::try_from(check::elements(shape)?).ok();
    let bytes = elements.and_then(|elements| elements.checked_mul(dtype.elt_size_in_bytes()));
    bytes.ok_or_else(|| Failure::Misuse(format!("shape {shape:?} has more bytes than can be counted")))
}

fn integer(value: usize) -> Outcome<i64> {
    i64::try_from(value).map_err(|_| Failure::Misuse(format!("{value} is too large a count")))
}
