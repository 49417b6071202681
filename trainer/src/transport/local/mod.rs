//! Threads as ranks of one process: the embedded default and the test double.
//!
//! One lock guards all that ranks share; no tensor is read under it, and each rank is woken by a bell of its own.
//!
//! Invariants:
//! - of a rank's messages, as many are under way when `send` returns as [`Limits`] allow;
//! - a message is a handle until it is received; [`recv`](crate::transport::Transport::recv) copies, then the message
//!   counts as taken. So after `flush` both sides may do with their tensors whatever they like, as with any transport;
//! - collectives pass handles: what `all_gather` and `exchange` return *is* the giver's tensor. Receivers only read it
//!   and givers leave it unchanged until the receivers have dropped theirs. That holds by itself where a later collective
//!   of the group comes before the next change, as the reduction of gradients comes before the optimizer's step.
//!   `all_reduce` sums in rank order into a tensor of each receiver's own;
//! - the first failure of any rank, or its panic, ends every wait of all others at once; a rank that is dropped without
//!   failure has left, and only those who need it err;
//! - graphs do not cross ranks: what is passed is detached.

mod group;
mod world;

use std::{fmt, rc::Rc, sync::Arc};

use tch::{Device, Tensor};

use self::{
    group::LocalGroup,
    world::{Shared, State, Wait},
};
use super::{
    Group, Header, Limits, Traffic, Transport, check,
    failure::{Failure, Order, Outcome, Peer},
    tamper::{Numbers, Outbox, Parcel},
    traffic::Ledger,
};
use crate::Result;

/// The ranks of a process.
#[derive(Debug)]
pub struct World;

impl World {
    /// `ranks` transports that reach each other; each is moved into the thread of its rank.
    #[expect(clippy::new_ret_no_self, reason = "a world is its ranks; nothing is left to hold")]
    #[must_use]
    pub fn new(ranks: usize, limits: Limits) -> Vec<LocalTransport> {
        let shared = Arc::new(Shared::new(ranks, limits));
        (0..ranks).map(|rank| LocalTransport::new(rank, &shared)).collect()
    }
}

/// One rank of a [`World`].
pub struct LocalTransport {
    rank: usize,
    shared: Arc<Shared>,
    outbox: Outbox,
    received: Numbers,
    ledger: Ledger,
}

impl LocalTransport {
    fn new(rank: usize, shared: &Arc<Shared>) -> Self {
        let (shared, limits) = (Arc::clone(shared), &shared.limits);
        let (outbox, ledger) = (Outbox::new(rank, limits.tamper), Ledger::new(limits.room()));
        Self { rank, outbox, ledger, received: Numbers::default(), shared }
    }

    fn deliver(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Outcome<()> {
        check::peer(self.rank, self.size(), to)?;
        check::message(header, tensors, Device::Cpu)?;
        let tensors = tensors.iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let parcels = self.outbox.pass(to, header, tensors)?;
        parcels.into_iter().try_for_each(|parcel| self.hand_over(to, parcel))
    }

    /// Puts a parcel into the receiver's mail, where there is room; in [`super::Mode::Sync`] also waits until it is taken.
    fn hand_over(&self, to: usize, parcel: Parcel) -> Outcome<()> {
        let room = self.shared.limits.room();
        let what = format!("rank {to} to take {}", parcel.header);
        self.shrink(&what, room.saturating_sub(1))?;
        let mut state = self.shared.lock();
        state.whole(self.rank)?;
        if let Some(why) = state.left(to) {
            return Err(Failure::Gone { rank: self.rank, what, peer: Peer::Rank(to), why });
        }
        self.ledger.sent(&parcel.tensors, state.under_way(self.rank) + 1);
        state.post(self.rank, to, parcel);
        drop(state);
        self.shared.ring(to);
        self.shrink(&what, room)
    }

    /// Waits until no more than `most` messages of this rank are under way.
    fn shrink(&self, what: &dyn fmt::Display, most: usize) -> Outcome<()> {
        if self.shared.lock().under_way(self.rank) <= most {
            return Ok(());
        }
        self.ledger.held_back();
        self.until(what, most)
    }

    fn until(&self, what: &dyn fmt::Display, most: usize) -> Outcome<()> {
        let wait = Wait { rank: self.rank, what, limit: self.shared.limit(self.rank) };
        let holders = |state: &State| state.holders(self.rank);
        self.shared.wait(&wait, |state| Ok((state.under_way(self.rank) <= most).then_some(())), holders)
    }

    fn take(&self, from: usize, expect: &Header) -> Outcome<Vec<Tensor>> {
        check::peer(self.rank, self.size(), from)?;
        let what = format_args!("{expect} from rank {from}");
        let wait = Wait { rank: self.rank, what: &what, limit: self.shared.limit(self.rank) };
        let Parcel { number, header, tensors } =
            self.shared.wait(&wait, |state| Ok(state.next(from, self.rank)), |_| vec![from])?;
        let order = Order { due: self.received.next(from), found: number };
        check::header(from, self.rank, expect, &header, order)?;
        check::whole(from, self.rank, &header, &tensors)?;
        let tensors = tensors.iter().map(Tensor::f_detach_copy).collect::<Result<Vec<_>, _>>()?;
        self.ledger.received(&tensors);
        self.shared.lock().taken(from, self.rank);
        self.shared.ring(from);
        Ok(tensors)
    }

    fn drain(&self) -> Outcome<()> {
        if let Some((to, parcel)) = self.outbox.rest() {
            self.hand_over(to, parcel)?;
        }
        self.until(&"what it sent to be taken", 0)
    }

    fn found(&self, name: &str, members: &[usize]) -> Outcome<LocalGroup> {
        let index = check::members(name, self.rank, self.size(), members)?;
        let room = self.shared.lock().room(self.rank, name, members);
        let group = LocalGroup::new(Arc::clone(&self.shared), room, name, members, index);
        group.open().map(|()| group)
    }
}

impl Transport for LocalTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size()
    }

    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>> {
        let group = self.shared.guarded(self.rank, self.found(name, members))?;
        Ok(Rc::new(group))
    }

    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        self.shared.guarded(self.rank, self.deliver(to, header, tensors))
    }

    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        self.shared.guarded(self.rank, self.take(from, expect))
    }

    fn flush(&self) -> Result<()> {
        self.shared.guarded(self.rank, self.drain())
    }

    fn starting(&self, starting: bool) {
        self.shared.starting(self.rank, starting);
    }

    fn traffic(&self) -> Traffic {
        self.ledger.read(self.shared.lock().under_way(self.rank))
    }

    fn note(&self, action: &dyn fmt::Display) {
        self.shared.scene(self.rank).note(action);
    }

    fn scene(&self) -> String {
        let scene = self.shared.scene(self.rank);
        scene.dump();
        scene.to_string()
    }

    fn abort(&self, why: &dyn fmt::Display) {
        self.shared.fail(self.rank, why);
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(self.rank, &"its thread panicked");
        }
        self.shared.leave(self.rank);
    }
}

impl fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalTransport(rank {} of {})", self.rank, self.size())
    }
}

#[cfg(test)]
mod tests;
