//! One collective on its way: the round of frames, and the round of data after it.
//!
//! Invariant: the second round is sized by what the frames say, or by shapes that all members share.

use std::{
    fmt,
    time::{Duration, Instant},
};

use tch::{Device, Kind as Dtype, Tensor};

use super::{
    carrier::{Carried, Lane, Pending},
    frame::{Frame, Operation},
    group::Member,
    marks::Wait,
};
use crate::{
    torch::c10d::C10dError,
    transport::{
        Purpose, check,
        failure::{Failure, Outcome},
    },
};

/// Bytes of all members together that are gathered in one hop, for which each member's part is repeated for each: more go around a ring.
const DIRECT: usize = 4 << 20;

/// One collective: what it is for, and until when.
pub(super) struct Call<'a> {
    pub(super) operation: Operation,
    pub(super) dtype: Dtype,
    pub(super) purpose: &'a Purpose,
    pub(super) group: &'a Member,
    pub(super) deadline: Instant,
    pub(super) sequence: u64,
}

impl Call<'_> {
    pub(super) fn what(&self) -> String {
        self.group.what(self.operation, self.purpose)
    }

    /// Gathers the frames of all members, in order of position, and errs unless they are all at this collective.
    pub(super) fn frames(
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
        let all = self.told(&Tensor::f_from_slice(&layout.write(&mine))?)?;
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

    pub(super) fn announced(&self, frames: &[Frame], expected: &[usize]) -> Outcome<()> {
        self.alike(&frames.iter().map(|frame| frame.length).collect::<Vec<_>>(), expected)
    }

    /// Whether the members give as many bytes as this one expects of them.
    pub(super) fn alike(&self, found: &[usize], expected: &[usize]) -> Outcome<()> {
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

    /// Gathers bytes, over the control connections; each result is as long as the longest.
    pub(super) fn padded_bytes(&self, mine: &Tensor, largest: usize) -> Outcome<Vec<Tensor>> {
        self.apart(&self.told(&self.padded(mine, largest)?)?)
    }

    /// Begins to gather flat parts of at most `largest` bytes: where they come to, each as long as the longest, and what to
    /// wait for.
    pub(super) fn begin_padded(
        &self,
        mine: &Tensor,
        largest: usize,
    ) -> Outcome<(Tensor, Option<Box<dyn Pending>>)> {
        let padded = self.padded(mine, largest)?;
        let all = self.room(&padded)?;
        if self.group.slot.is_none() {
            return Ok((all, None));
        }
        let (into, direct) = (all.shallow_clone(), self.repeated(&padded)?);
        let work = self.start(|lane, limit| match direct {
            Some((from, counts)) => lane.all_to_all((into, &counts), (from, &counts), limit),
            None => lane.all_gather(into, padded, limit),
        })?;
        Ok((all, work))
    }

    fn padded(&self, mine: &Tensor, largest: usize) -> Outcome<Tensor> {
        let longest = integer(largest / self.dtype.elt_size_in_bytes())?;
        let own = integer(mine.numel())?;
        if own == longest {
            return Ok(mine.shallow_clone());
        }
        let padded = Tensor::f_zeros([longest], (self.dtype, mine.device()))?;
        padded.f_narrow(0, 0, own)?.f_copy_(mine)?;
        Ok(padded)
    }

    /// Where parts of all members like `mine` go; for a group of one, with its part in it.
    fn room(&self, mine: &Tensor) -> Outcome<Tensor> {
        let count = integer(mine.numel() * self.group.members.len())?;
        let all = Tensor::f_empty([count], (mine.kind(), mine.device()))?;
        if self.group.slot.is_none() {
            all.shallow_clone().f_copy_(mine)?;
        }
        Ok(all)
    }

    /// What came of all members, in parts as long as the longest.
    pub(super) fn apart(&self, all: &Tensor) -> Outcome<Vec<Tensor>> {
        let longest = integer(all.numel() / self.group.members.len().max(1))?;
        (0..self.group.members.len())
            .map(|at| Ok(all.f_narrow(0, integer(at)? * longest, longest)?))
            .collect()
    }

    /// Gathers flat parts of one size into one flat tensor, over the control connections.
    fn told(&self, mine: &Tensor) -> Outcome<Tensor> {
        let all = self.room(mine)?;
        let Some((control, _)) = &self.group.slot else { return Ok(all) };
        let (into, left, direct) = (all.shallow_clone(), self.left(), self.repeated(mine)?);
        let begun = self.group.core.with(control, |group| match direct {
            Some((from, counts)) => group.all_to_all((into, &counts), (from, &counts), left),
            None => group.all_gather(into, mine.shallow_clone(), left),
        })?;
        let work = begun.map_err(|error| self.explained(error))?;
        self.wait(Some(&work)).map(|()| all)
    }

    /// A small part once for each member, and how much each gets, so that it goes from member to member in one hop and not around a
    /// ring: fewer messages, and none waits for another.
    fn repeated(&self, mine: &Tensor) -> Outcome<Option<(Tensor, Vec<i64>)>> {
        let members = self.group.members.len();
        let bytes = mine.numel() * mine.kind().elt_size_in_bytes();
        if mine.device() != Device::Cpu || bytes.saturating_mul(members) > DIRECT {
            return Ok(None);
        }
        let counts = vec![integer(mine.numel())?; members];
        Ok(Some((mine.f_repeat([integer(members)?])?, counts)))
    }

    /// This member's parts out of frames that carry everyone's.
    pub(super) fn pick<'p>(
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
            tensor(piece, shape, self.dtype, self.group.core.carrier.device())
        })
        .collect()
    }

    pub(super) fn all_to_all(
        &self,
        flat: &Tensor,
        parts: &[Tensor],
        shapes: &[Vec<i64>],
    ) -> Outcome<Vec<Tensor>> {
        let outgoing = parts.iter().map(|part| integer(part.numel())).collect::<Outcome<Vec<_>>>()?;
        let incoming = shapes.iter().map(|shape| check::elements(shape)).collect::<Outcome<Vec<_>>>()?;
        let into = Tensor::f_empty([incoming.iter().sum::<i64>()], (self.dtype, flat.device()))?;
        if self.group.slot.is_none() {
            into.shallow_clone().f_copy_(flat)?;
        } else {
            self.run(|lane, limit| {
                lane.all_to_all((into.shallow_clone(), &incoming), (flat.shallow_clone(), &outgoing), limit)
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

    /// Runs one operation on data to its end.
    pub(super) fn run(
        &self,
        start: impl FnOnce(&dyn Lane, Duration) -> Carried<Box<dyn Pending>>,
    ) -> Outcome<()> {
        let work = self.start(start)?;
        self.wait(work.as_deref())
    }

    /// Begins one; nothing for a group of one.
    fn start(
        &self,
        start: impl FnOnce(&dyn Lane, Duration) -> Carried<Box<dyn Pending>>,
    ) -> Outcome<Option<Box<dyn Pending>>> {
        let Some((_, lane)) = &self.group.slot else { return Ok(None) };
        start(&**lane, self.left()).map(Some).map_err(|error| self.explained(error))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Waits for what was begun.
    pub(super) fn wait(&self, work: Option<&dyn Pending>) -> Outcome<()> {
        let Some(work) = work else { return Ok(()) };
        let core = &self.group.core;
        let _waiting = core.scene.wait(self);
        core.finish(work, self.deadline).map_err(|error| self.explained(error))
    }

    fn explained(&self, error: C10dError) -> Failure {
        let core = &self.group.core;
        let suspects = core.others(&self.group.members);
        let entered = Some((self.group.key.as_str(), self.sequence));
        core.marks.explain(&Wait { what: self, limit: core.limit(), suspects, entered }, error)
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, group) = (self.operation.name(), &self.group.name);
        write!(f, "{name} ({}), number {} of group {group}", self.purpose, self.sequence)
    }
}

/// The parts of all members, when every frame carries its own.
pub(super) fn carried(frames: &[Frame]) -> Option<impl Iterator<Item = &[u8]>> {
    let all = frames.iter().all(|frame| frame.part.is_some());
    all.then(|| frames.iter().filter_map(|frame| frame.part.as_deref()))
}

pub(super) fn sum<'p>(
    parts: impl Iterator<Item = &'p [u8]>,
    shape: &[i64],
    dtype: Dtype,
    device: Device,
) -> Outcome<Tensor> {
    let mut sum = None;
    for part in parts {
        let part = tensor(part, shape, dtype, device)?;
        match &mut sum {
            None => sum = Some(part),
            Some(sum) => drop(sum.f_add_(&part)?),
        }
    }
    sum.ok_or_else(|| Failure::Misuse("a sum of nothing".to_owned()))
}

pub(super) fn raw(tensor: &Tensor) -> Outcome<Vec<u8>> {
    let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    Ok(bytes)
}

pub(super) fn part_bytes(part: &Tensor, length: usize) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; length];
    part.f_narrow(0, 0, integer(length)?)?.f_copy_data_u8(&mut bytes, length)?;
    Ok(bytes)
}

pub(super) fn tensor(bytes: &[u8], shape: &[i64], dtype: Dtype, device: Device) -> Outcome<Tensor> {
    let expected = bytes_of(shape, dtype)?;
    if bytes.len() != expected {
        return Err(Failure::Misuse(format!("{} bytes for a tensor of {expected}", bytes.len())));
    }
    Ok(Tensor::f_from_data_size(bytes, shape, dtype)?.f_to_device(device)?)
}

pub(super) fn bytes_of(shape: &[i64], dtype: Dtype) -> Outcome<usize> {
    let elements = usize::try_from(check::elements(shape)?).ok();
    let bytes = elements.and_then(|elements| elements.checked_mul(dtype.elt_size_in_bytes()));
    bytes.ok_or_else(|| Failure::Misuse(format!("shape {shape:?} has more bytes than can be counted")))
}

pub(super) fn integer(value: usize) -> Outcome<i64> {
    i64::try_from(value).map_err(|_| Failure::Misuse(format!("{value} is too large a count")))
}
