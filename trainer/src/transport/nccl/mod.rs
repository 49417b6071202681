//! Processes as ranks whose tensors are on GPUs: data over NCCL, control as everywhere (see `processes`).
//!
//! | trap of NCCL | what is done here |
//! |---|---|
//! | two ranks that make communicators at first use wait for each other | all are made before the first step: those of groups when the group is, those of pairs of ranks in [`Transport::link`](super::Transport::link), in one order on all ranks |
//! | a send that nobody takes yet holds up all that is computed after it | each direction of a pair has a communicator and a stream of its own, so that sends, receives and computation do not wait for each other |
//! | a receive of more than was sent waits for ever, one of less gets wrong elements silently | labels and frames go first, over the control connections, and are compared; no buffer is posted before |
//! | a dead or diverged peer never answers | whoever waits looks: for the library's own errors, for the marks of peers that failed or left, and for the time limit; then all communicators are aborted |
//! | several communicators at once need room on the device for all their kernels | few are in use at once: one collective, and one message each way for each neighbour |
//!
//! Collectives run on the legacy default stream, torch's own: they come after what computes their input and before what uses their
//! result without a word to anyone, and are short, as all members have said that they are there. That is also why no gather is faster than what
//! is computed beside it: it waits its turn.
//!
//! The library is loaded at run time; without it, [`rendezvous`] says what was looked for. Nothing here has been run on a GPU by
//! the tests: they run all of it over an emulation that waits for ever wherever NCCL would.

mod cuda;
mod library;
mod wait;

#[cfg(test)]
mod emulation;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use tch::{Device, Kind as Dtype, Tensor};

use self::{
    library::{Call, Communicator, Half, Library, Stream},
    wait::{Running, until},
};
use super::{
    Limits,
    failure::{Failure, Outcome},
    processes::{
        self, Alarm, Carried, Carrier, Core, Lane, Meeting, Pending, Post, ProcessTransport, Ranks, Slot,
    },
};
use crate::{
    Result,
    torch::c10d::{C10dError, Status},
};

/// Joins all ranks of a run, data over NCCL between GPUs: this rank's is number `gpu` of its machine.
///
/// # Errors
/// `Config` where NCCL, CUDA's driver or the GPU is not there: says what was looked for; else as
/// [`gloo::rendezvous`](super::gloo::rendezvous).
pub fn rendezvous(ranks: &Ranks, limits: &Limits, gpu: usize) -> Result<ProcessTransport> {
    let library = cuda::Loaded::new(gpu)?;
    processes::rendezvous(ranks, limits, Box::new(Nccl::over(Box::new(library))))
}

/// Carries data over the communicators of a library.
struct Nccl {
    library: Box<dyn Library>,
    pairs: Rc<Pairs>,
    /// Communicators of groups.
    groups: RefCell<Vec<Rc<dyn Communicator>>>,
}

/// Both directions between this rank and each of its peers.
#[derive(Default)]
struct Pairs(RefCell<BTreeMap<usize, Pair>>);

#[derive(Clone)]
struct Pair {
    out: Rc<dyn Communicator>,
    into: Rc<dyn Communicator>,
    /// The peer's rank in both.
    peer: usize,
    alarm: Rc<Alarm>,
}

struct Group {
    communicator: Rc<dyn Communicator>,
    index: usize,
    alarm: Rc<Alarm>,
}

/// A communicator that comes to be.
struct Making<'a> {
    key: &'a str,
    members: &'a [usize],
    index: usize,
    deadline: Instant,
    stream: Stream,
}

impl Nccl {
    fn over(library: Box<dyn Library>) -> Self {
        Self { library, pairs: Rc::default(), groups: RefCell::default() }
    }

    /// Joins a communicator: its first member names it, in the store.
    fn made(&self, core: &Core, making: &Making<'_>) -> Outcome<Rc<dyn Communicator>> {
        let Making { key, members, .. } = making;
        let peers: Vec<_> = members.iter().copied().filter(|member| *member != core.rank).collect();
        let what = format!("the members {members:?} of NCCL communicator {key} to come");
        let explained = |error| core.explained(&what, &peers, error);
        self.join(core, making, &core.alarm(&peers)).map_err(explained)
    }

    fn join(&self, core: &Core, making: &Making<'_>, alarm: &Alarm) -> Carried<Rc<dyn Communicator>> {
        let Making { key, members, index, deadline, stream } = making;
        let place = format!("nccl/{}/{key}", core.restart);
        if *index == 0 {
            core.store.set(&place, &self.library.unique()?)?;
        }
        core.store.wait(std::slice::from_ref(&place), left(*deadline))?;
        let name = core.store.get(&place)?.and_then(|bytes| bytes.try_into().ok());
        let name = name.ok_or_else(|| refused(format!("{place} of the store names no communicator")))?;
        let communicator = self.library.join(&name, *index, members.len(), *stream)?;
        until("joining a communicator", alarm, *deadline, || communicator.settled())?;
        Ok(communicator)
    }

    /// Connects one pair: a communicator for each direction, through which something has gone each way, since NCCL connects two
    /// ranks when they first exchange something.
    fn pair(&self, core: &Core, (low, high): (usize, usize), deadline: Instant) -> Outcome<()> {
        let members = [low, high];
        let index = usize::from(core.rank == high);
        let make = |from: usize, to: usize| {
            let key = format!("messages/{from}-{to}");
            let making = Making { key: &key, members: &members, index, deadline, stream: Stream::Own };
            self.made(core, &making)
        };
        let (up, down) = (make(low, high)?, make(high, low)?);
        let (peer, rank) = (1 - index, if index == 0 { high } else { low });
        let (out, into) = if index == 0 { (up, down) } else { (down, up) };
        let pair = Pair { out, into, peer, alarm: Rc::new(core.alarm(&[rank])) };
        let what = format!("rank {rank} to exchange its first message");
        pair.greet(self.library.device(), deadline).map_err(|error| core.explained(&what, &[rank], error))?;
        self.pairs.0.borrow_mut().insert(rank, pair);
        Ok(())
    }
}

impl Pair {
    fn greet(&self, device: Device, deadline: Instant) -> Carried<()> {
        let word =
            || Tensor::f_zeros([1], (Dtype::Int64, device)).map_err(|error| refused(error.to_string()));
        let (sent, received) = (self.begin(true, word()?)?, self.begin(false, word()?)?);
        sent.wait(left(deadline)).and_then(|()| received.wait(left(deadline)))
    }

    fn begin(&self, is_send: bool, tensor: Tensor) -> Carried<Box<dyn Pending>> {
        let (communicator, half) = match is_send {
            true => (&self.out, Half::Send(tensor, self.peer)),
            false => (&self.into, Half::Receive(tensor, self.peer)),
        };
        begun(communicator, &self.alarm, Call::Exchange(vec![half]))
    }
}

impl Pairs {
    fn begin(&self, is_send: bool, tensor: Tensor, rank: usize) -> Carried<Box<dyn Pending>> {
        let pair = self.0.borrow().get(&rank).cloned();
        let pair = pair.ok_or_else(|| {
            refused(format!("no messages were announced with rank {rank}, so there is no connection to it"))
        })?;
        pair.begin(is_send, tensor)
    }
}

/// How long a communicator may take to take in a call: it does not wait for peers for that.
const TAKEN_IN: Duration = Duration::from_secs(30);

fn begun(communicator: &Rc<dyn Communicator>, alarm: &Rc<Alarm>, call: Call) -> Carried<Box<dyn Pending>> {
    until("calling NCCL", alarm, Instant::now() + TAKEN_IN, || communicator.settled())?;
    let ticket = communicator.call(call)?;
    Ok(Box::new(Running { ticket, alarm: Rc::clone(alarm) }))
}

impl Carrier for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn device(&self) -> Device {
        self.library.device()
    }

    fn lane(&self, core: &Core, meeting: &Meeting<'_>) -> Outcome<Rc<dyn Lane>> {
        let Meeting { key, members, index, deadline, .. } = *meeting;
        let communicator =
            self.made(core, &Making { key, members, index, deadline, stream: Stream::Compute })?;
        self.groups.borrow_mut().push(Rc::clone(&communicator));
        let peers: Vec<_> = members.iter().copied().filter(|member| *member != core.rank).collect();
        Ok(Rc::new(Group { communicator, index, alarm: Rc::new(core.alarm(&peers)) }))
    }

    fn post(&self, _: &Slot) -> Rc<dyn Post> {
        Rc::clone(&self.pairs) as Rc<dyn Post>
    }

    fn link(&self, core: &Core, pairs: &[(usize, usize)]) -> Outcome<()> {
        let ordered = pairs.is_sorted_by(|a, b| a < b) && pairs.iter().all(|(a, b)| a < b && *b < core.world);
        if !ordered {
            return Err(Failure::Misuse(format!("pairs {pairs:?} of {} ranks are not in order", core.world)));
        }
        let deadline = Instant::now() + core.start_limit();
        let mine = pairs.iter().filter(|(a, b)| *a == core.rank || *b == core.rank);
        mine.copied().try_for_each(|pair| self.pair(core, pair, deadline))
    }

    fn close(&self, broken: bool) {
        self.groups.borrow_mut().drain(..).for_each(|it| it.leave(broken));
        let pairs = std::mem::take(&mut *self.pairs.0.borrow_mut());
        pairs.values().flat_map(|pair| [&pair.out, &pair.into]).for_each(|it| it.leave(broken));
    }
}

impl Group {
    fn begin(&self, call: Call) -> Carried<Box<dyn Pending>> {
        begun(&self.communicator, &self.alarm, call)
    }
}

impl Lane for Group {
    fn all_gather(&self, into: Tensor, from: Tensor, _: Duration) -> Carried<Box<dyn Pending>> {
        self.begin(Call::AllGather { into, from })
    }

    /// One exchange of sends and receives; a member's piece for itself is copied.
    fn all_to_all(
        &self,
        (into, incoming): (Tensor, &[i64]),
        (from, outgoing): (Tensor, &[i64]),
        _: Duration,
    ) -> Carried<Box<dyn Pending>> {
        let _untracked = tch::no_grad_guard();
        let cut = |error: tch::TchError| refused(error.to_string());
        let (mut halves, mut taken, mut given) = (Vec::new(), 0, 0);
        for (peer, (income, outgo)) in incoming.iter().zip(outgoing).enumerate() {
            let mut into = into.f_narrow(0, taken, *income).map_err(cut)?;
            let from = from.f_narrow(0, given, *outgo).map_err(cut)?;
            (taken, given) = (taken + income, given + outgo);
            if peer == self.index {
                into.f_copy_(&from).map_err(cut)?;
                continue;
            }
            halves.extend((*outgo > 0).then_some(Half::Send(from, peer)));
            halves.extend((*income > 0).then_some(Half::Receive(into, peer)));
        }
        self.begin(Call::Exchange(halves))
    }

    fn all_reduce(&self, tensor: Tensor, _: Duration) -> Carried<Box<dyn Pending>> {
        self.begin(Call::AllReduce(tensor))
    }
}

impl Post for Pairs {
    fn send(&self, tensor: Tensor, to: usize) -> Carried<Box<dyn Pending>> {
        self.begin(true, tensor, to)
    }

    fn recv(&self, into: Tensor, from: usize) -> Carried<Box<dyn Pending>> {
        self.begin(false, into, from)
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn refused(why: String) -> C10dError {
    C10dError { what: "NCCL", status: Status::Failed, why }
}

#[cfg(test)]
mod tests;
