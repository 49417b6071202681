//! An NCCL for tests, in the memory of one process, that is as unhelpful as the real one: members whose calls differ wait
//! for ever, a receive of less than was sent takes it for all, one of more never ends, and who has left never answers.
//!
//! Invariants: calls on a communicator run in order, each when all that it needs is there; who aborts takes its calls back, so
//! that nothing is written to its tensors afterwards.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard},
};

use tch::{Device, Tensor};

use super::{
    library::{Call, Communicator, Half, Library, Stream, Ticket, Unique},
    refused,
};
use crate::transport::processes::Carried;

/// All communicators of the process. A clone is another rank's.
#[derive(Clone, Default)]
pub(super) struct Emulation(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    named: u64,
    rooms: BTreeMap<Unique, Room>,
}

/// A communicator.
struct Room {
    joined: Vec<bool>,
    /// By member, what was called and has not run.
    calls: Vec<VecDeque<Posted>>,
    /// By member, how many calls have run.
    run: Vec<u64>,
}

struct Posted {
    call: Call,
    /// Of an exchange, which halves have passed.
    passed: Vec<bool>,
}

struct Member {
    shared: Arc<Mutex<Shared>>,
    name: Unique,
    rank: usize,
    called: Cell<u64>,
}

struct Number {
    shared: Arc<Mutex<Shared>>,
    name: Unique,
    rank: usize,
    number: u64,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap()
}

impl Library for Emulation {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn unique(&self) -> Carried<Unique> {
        let mut shared = locked(&self.0);
        shared.named += 1;
        let mut name = [0; 128];
        name[..8].copy_from_slice(&shared.named.to_le_bytes());
        Ok(name)
    }

    fn join(&self, name: &Unique, rank: usize, size: usize, _: Stream) -> Carried<Rc<dyn Communicator>> {
        let mut shared = locked(&self.0);
        let room = shared.rooms.entry(*name).or_insert_with(|| Room {
            joined: vec![false; size],
            calls: (0..size).map(|_| VecDeque::new()).collect(),
            run: vec![0; size],
        });
        if room.joined.len() != size || std::mem::replace(&mut room.joined[rank], true) {
            return Err(refused(format!(
                "member {rank} of {size} joins twice, or another number of members"
            )));
        }
        let shared = Arc::clone(&self.0);
        Ok(Rc::new(Member { shared, name: *name, rank, called: Cell::new(0) }))
    }
}

impl Communicator for Member {
    fn settled(&self) -> Carried<bool> {
        Ok(locked(&self.shared).rooms[&self.name].joined.iter().all(|joined| *joined))
    }

    fn call(&self, call: Call) -> Carried<Rc<dyn Ticket>> {
        let mut shared = locked(&self.shared);
        let room = shared.rooms.get_mut(&self.name).unwrap();
        let halves = if let Call::Exchange(halves) = &call { halves.len() } else { 0 };
        room.calls[self.rank].push_back(Posted { call, passed: vec![false; halves] });
        room.go();
        let number = self.called.replace(self.called.get() + 1);
        let shared = Arc::clone(&self.shared);
        Ok(Rc::new(Number { shared, name: self.name, rank: self.rank, number }))
    }

    fn leave(&self, _: bool) {
        if let Some(room) = locked(&self.shared).rooms.get_mut(&self.name) {
            room.calls[self.rank].clear();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave(true);
    }
}

impl Ticket for Number {
    fn done(&self) -> Carried<bool> {
        let mut shared = locked(&self.shared);
        let room = shared.rooms.get_mut(&self.name).unwrap();
        room.go();
        Ok(room.run[self.rank] > self.number)
    }
}

impl Room {
    /// Runs what can run.
    fn go(&mut self) {
        while self.together() || self.halves() {}
    }

    /// Runs a collective that all members are at, with equal sizes.
    fn together(&mut self) -> bool {
        let heads: Vec<&Call> = self.calls.iter().filter_map(|calls| Some(&calls.front()?.call)).collect();
        let size = |call: &Call| match call {
            Call::AllGather { from, .. } => Some((0, from.numel(), from.kind())),
            Call::AllReduce(sum) => Some((1, sum.numel(), sum.kind())),
            Call::Exchange(_) => None,
        };
        let first = heads.first().and_then(|call| size(call));
        if heads.len() < self.calls.len() || first.is_none() || heads.iter().any(|call| size(call) != first) {
            return false;
        }
        perform(&heads);
        (0..self.calls.len()).for_each(|member| self.pop(member));
        true
    }

    /// Passes what has its other half at the head of the peer's calls; whether anything moved.
    fn halves(&mut self) -> bool {
        let mut moved = false;
        for from in 0..self.calls.len() {
            for to in (0..self.calls.len()).filter(|to| *to != from) {
                moved |= self.pass(from, to);
            }
        }
        for member in 0..self.calls.len() {
            let over = |it: &Posted| matches!(it.call, Call::Exchange(_)) && it.passed.iter().all(|it| *it);
            if self.calls[member].front().is_some_and(over) {
                self.pop(member);
                moved = true;
            }
        }
        moved
    }

    fn pass(&mut self, from: usize, to: usize) -> bool {
        let find = |posted: Option<&Posted>, wanted: &dyn Fn(&Half) -> Option<Tensor>| {
            let posted = posted?;
            let Call::Exchange(halves) = &posted.call else { return None };
            let open = halves.iter().enumerate().filter(|(at, _)| !posted.passed[*at]);
            open.filter_map(|(at, half)| Some((at, wanted(half)?))).next()
        };
        let sent = find(self.calls[from].front(), &|half| match half {
            Half::Send(tensor, peer) if *peer == to => Some(tensor.shallow_clone()),
            _ => None,
        });
        let received = find(self.calls[to].front(), &|half| match half {
            Half::Receive(tensor, peer) if *peer == from => Some(tensor.shallow_clone()),
            _ => None,
        });
        let (Some((sends, sent)), Some((receives, received))) = (sent, received) else { return false };
        let room = i64::try_from(sent.numel().min(received.numel())).unwrap();
        let flat = |tensor: &Tensor| tensor.view([-1]).narrow(0, 0, room);
        flat(&received).copy_(&flat(&sent));
        self.calls[from].front_mut().unwrap().passed[sends] = true;
        // One that waits for more never ends.
        let ends = received.numel() <= sent.numel();
        if ends {
            self.calls[to].front_mut().unwrap().passed[receives] = true;
        }
        ends
    }

    fn pop(&mut self, member: usize) {
        self.calls[member].pop_front();
        self.run[member] += 1;
    }
}

fn perform(heads: &[&Call]) {
    let _untracked = tch::no_grad_guard();
    let inputs: Vec<Tensor> = heads
        .iter()
        .map(|call| match call {
            Call::AllGather { from, .. } => from.copy(),
            Call::AllReduce(sum) => sum.copy(),
            Call::Exchange(_) => unreachable!("no collective"),
        })
        .collect();
    for call in heads {
        match call {
            Call::AllGather { into, .. } => into.shallow_clone().copy_(&Tensor::cat(&inputs, 0)),
            Call::AllReduce(sum) => {
                let mut total = inputs[0].copy();
                inputs[1..].iter().for_each(|other| drop(total.g_add_(other)));
                sum.shallow_clone().copy_(&total);
            }
            Call::Exchange(_) => {}
        }
    }
}
