//! Processes as ranks: what all transports between processes share.
//!
//! ```text
//!  join      the store at the master's address; who came        ─┐
//!  marks     who lives and what it does, who failed, who left    ├─ control: libtorch's store, and gloo
//!  wire      labels of messages      frame   of collectives     ─┘
//!  incoming  messages on their way here: foreseen, compared, taken
//!  carrier   what moves tensors: gloo (processors), NCCL (GPUs)   ── data
//! ```
//!
//! A message is a label of fixed size under its own tag, then its tensors, one each; how they are taken is in `incoming`.
//! [`send`](Transport::send) begins them, keeps tensors and works until they are taken, and waits for the oldest message when there
//! is no room for more, as `Mode` and `Limits::buffers` say.
//!
//! Invariants: tensors are kept until the send is over; a group is connected when it is made, never at first use; each
//! start of a run has its own keys in the store; after a failure this rank's connections are closed, so that its peers err
//! at once (see `core`), and its error tells the cause as far as the marks in the store do (see `marks`).

mod call;
mod carrier;
mod core;
mod frame;
mod group;
mod incoming;
mod join;
mod marks;
#[cfg(test)]
pub(super) mod threads;
mod wire;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    rc::Rc,
    time::{Duration, Instant},
};

use tch::{Device, Tensor};

pub use self::join::Ranks;
pub(super) use self::{
    carrier::{Carried, Carrier, Lane, Meeting, Pending, Post},
    core::{Core, Slot},
    join::rendezvous,
    marks::Alarm,
};
use self::{core::Sent, group::Member, marks::Wait};
use super::{
    Group, Header, Traffic, Transport, check,
    failure::{Failure, Outcome},
    tamper::Parcel,
};
use crate::{
    Result,
    torch::c10d::{C10dError, ProcessGroup, Status},
};

const HEADER_TAG: i32 = 1;
const SHAPES_TAG: i32 = 2;

/// One rank of a run of many processes. Made by [`gloo::rendezvous`](super::gloo::rendezvous) and its like.
pub struct ProcessTransport {
    core: Rc<Core>,
    /// Connections for messages: labels, and tensors; none in a world of one.
    peers: Option<Peers>,
    /// How often each group has been asked for, so that asking again makes another one.
    asked: RefCell<BTreeMap<String, usize>>,
}

struct Peers {
    control: Slot,
    post: Rc<dyn Post>,
}

impl ProcessTransport {
    fn connected(core: Rc<Core>, limit: Duration) -> Outcome<Self> {
        let members: Vec<_> = (0..core.world).collect();
        let peers = match core.world {
            1 => None,
            _ => {
                let control = core.connect("messages", &members, core.rank, limit);
                let control = control.inspect_err(|error| core.fail(error))?;
                Some(Peers { post: core.carrier.post(&control), control })
            }
        };
        Ok(Self { core, peers, asked: RefCell::default() })
    }

    fn deliver(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Outcome<()> {
        check::peer(self.core.rank, self.core.world, to)?;
        check::message(header, tensors, self.core.carrier.device())?;
        let parcels =
            self.core.outbox.pass(to, header, tensors.iter().map(Tensor::shallow_clone).collect())?;
        parcels.into_iter().try_for_each(|parcel| self.hand_over(to, parcel))
    }

    /// Begins to send a parcel, where there is room; in [`super::Mode::Sync`] also waits until it is taken.
    fn hand_over(&self, to: usize, parcel: Parcel) -> Outcome<()> {
        let room = self.core.limits.room();
        self.shrink(room.saturating_sub(1))?;
        let Parcel { number, header, tensors } = parcel;
        let tensors = tensors.iter().map(|it| it.f_detach()?.f_contiguous());
        let tensors = tensors.collect::<std::result::Result<Vec<_>, _>>()?;
        let counts = tensors.iter().map(elements).collect();
        let label = wire::Label { header: header.clone(), number, counts };
        let packed = wire::pack(&label).map_err(|why| Failure::Misuse(format!("{header}: {why}")))?;
        let mut labels = vec![(HEADER_TAG, Tensor::f_from_slice(&packed.fixed)?)];
        if !packed.rest.is_empty() {
            labels.push((SHAPES_TAG, Tensor::f_from_slice(&packed.rest)?));
        }
        self.core.ledger.sent(&tensors, self.core.sent.borrow().len() + 1);
        let label = |group: &ProcessGroup| {
            let send = |(tag, tensor)| Ok(Box::new(group.send(tensor, to, tag)?) as Box<dyn Pending>);
            labels.into_iter().map(send).collect::<Carried<Vec<_>>>()
        };
        let works = self.on_peers(label)?.and_then(|mut works| {
            let post = &self.peers()?.post;
            for tensor in tensors.into_iter().filter(|it| it.numel() > 0) {
                works.push(post.send(tensor, to)?);
            }
            Ok(works)
        });
        let works = works.map_err(|error| self.undelivered(to, &header, error))?;
        self.core.sent.borrow_mut().push_back(Sent { to, header, works });
        self.shrink(room)
    }

    /// Waits until no more than `most` messages are under way.
    fn shrink(&self, most: usize) -> Outcome<()> {
        if self.core.sent.borrow().len() > most {
            self.core.ledger.held_back();
        }
        while self.core.sent.borrow().len() > most {
            self.settle()?;
        }
        Ok(())
    }

    /// Waits for the oldest message.
    fn settle(&self) -> Outcome<()> {
        let oldest = self.core.sent.borrow_mut().pop_front();
        let Some(Sent { to, header, works }) = oldest else { return Ok(()) };
        let what = format!("rank {to} to take {header}");
        let _waiting = self.core.scene.wait(&what);
        let deadline = Instant::now() + self.core.limit();
        let taken = works.iter().try_for_each(|work| work.wait(left(deadline)));
        taken.map_err(|error| self.undelivered(to, &header, error))
    }

    fn undelivered(&self, to: usize, header: &Header, error: C10dError) -> Failure {
        let what = format!("rank {to} to take {header}");
        self.explained(&what, to, error)
    }

    fn explained(&self, what: &dyn fmt::Display, peer: usize, error: C10dError) -> Failure {
        let wait = Wait { what, limit: self.core.limit(), suspects: vec![peer], entered: None };
        self.core.marks.explain(&wait, error)
    }

    fn peers(&self) -> Carried<&Peers> {
        self.peers.as_ref().ok_or_else(|| C10dError {
            what: "messages",
            status: Status::Failed,
            why: "a world of one has no peers".to_owned(),
        })
    }

    fn on_peers<T>(
        &self,
        act: impl FnOnce(&ProcessGroup) -> std::result::Result<T, C10dError>,
    ) -> Outcome<std::result::Result<T, C10dError>> {
        let peers =
            self.peers.as_ref().ok_or_else(|| Failure::Misuse("a world of one has no peers".to_owned()))?;
        self.core.with(&peers.control, act)
    }

    fn drain(&self) -> Outcome<()> {
        if let Some((to, parcel)) = self.core.outbox.rest() {
            self.hand_over(to, parcel)?;
        }
        while !self.core.sent.borrow().is_empty() {
            self.settle()?;
        }
        Ok(())
    }

    fn found(&self, name: &str, members: &[usize]) -> Outcome<Rc<dyn Group>> {
        let place: Vec<_> = members.iter().map(ToString::to_string).collect();
        let place = format!("{name}[{}]", place.join(","));
        let mut asked = self.asked.borrow_mut();
        let count = asked.entry(place.clone()).or_default();
        *count += 1;
        let group = Member::new(Rc::clone(&self.core), format!("{place}#{count}"), name, members)?;
        Ok(Rc::new(group))
    }
}

impl Transport for ProcessTransport {
    fn rank(&self) -> usize {
        self.core.rank
    }

    fn size(&self) -> usize {
        self.core.world
    }

    fn device(&self) -> Device {
        self.core.carrier.device()
    }

    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>> {
        self.core.guarded(|| self.found(name, members))
    }

    fn link(&self, pairs: &[(usize, usize)]) -> Result<()> {
        self.core.guarded(|| self.core.carrier.link(&self.core, pairs))
    }

    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        self.core.guarded(|| self.deliver(to, header, tensors))
    }

    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        self.core.guarded(|| self.take(from, expect))
    }

    fn expect(&self, from: usize, header: &Header) -> Result<()> {
        self.core.guarded(|| self.foresee(from, header))
    }

    fn flush(&self) -> Result<()> {
        self.core.guarded(|| self.drain())
    }

    fn starting(&self, starting: bool) {
        self.core.starting.set(starting);
    }

    fn traffic(&self) -> Traffic {
        self.core.ledger.read(self.core.sent.borrow().len())
    }

    fn note(&self, action: &dyn fmt::Display) {
        self.core.scene.note(action);
    }

    fn scene(&self) -> String {
        self.core.scene.dump();
        self.core.scene.to_string()
    }

    fn abort(&self, why: &dyn fmt::Display) {
        self.core.fail(why);
    }
}

impl Drop for ProcessTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.fail(&"its thread panicked");
        }
        self.core.leave();
    }
}

impl fmt::Debug for ProcessTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ProcessTransport({}, rank {} of {})",
            self.core.carrier.name(),
            self.core.rank,
            self.core.world
        )
    }
}

fn elements(tensor: &Tensor) -> i64 {
    i64::try_from(tensor.numel()).unwrap_or(i64::MAX)
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
