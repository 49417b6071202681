//! One rank without the others: what it receives and gathers is of the due shape and means nothing, and all that it does with
//! others is recorded. So one process can run any rank of a run of any size, at its real sizes; and what all ranks were
//! recorded to do can be held against each other, without running them together (see [`prove()`]).
//!
//! What others answer: a message, and a part of an exchange, is zeros; a part of a gather is a copy of this rank's where it has the same
//! shape, so that what is made of weights and widths stays finite and adds up, else zeros; a sum is this rank's part; bytes are
//! this rank's.
//!
//! Invariants: calls are checked as by any transport; nothing waits; nothing leaves the process; every call is recorded before it
//! is answered.

mod count;
mod group;
mod prove;
mod record;
mod words;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use tch::{Device, Tensor};

pub use self::{
    count::{Flow, Flows},
    prove::prove,
    record::Record,
    words::Words,
};
use self::{
    group::FakeGroup,
    record::{Event, Message},
};
use super::{
    Group, Header, Limits, Traffic, Transport, check,
    failure::Outcome,
    scene::Scene,
    tamper::{Numbers, Outbox, Parcel},
    traffic::Ledger,
};
use crate::Result;

/// One rank whose peers are imagined.
pub struct FakeTransport {
    size: usize,
    limits: Limits,
    outbox: Outbox,
    received: Numbers,
    ledger: Ledger,
    scene: Scene,
    log: Rc<Log>,
    /// How often each group has been asked for, so that asking again makes another one.
    asked: RefCell<BTreeMap<String, usize>>,
}

/// What a rank and its groups write to.
struct Log {
    words: Arc<Words>,
    record: RefCell<Record>,
    /// What the rank said last that it does.
    doing: Cell<u32>,
}

impl FakeTransport {
    /// Rank `rank` of `size`. Ranks whose records are to be compared have the same `words`.
    #[must_use]
    pub fn new(rank: usize, size: usize, limits: Limits, words: Arc<Words>) -> Self {
        let (outbox, ledger) = (Outbox::new(rank, limits.tamper), Ledger::new(limits.room()));
        let scene = Scene::new(rank, Instant::now(), limits.scene_actions, None);
        let doing = Cell::new(words.note("its start"));
        let log = Rc::new(Log { words, record: RefCell::new(Record::new(rank)), doing });
        let (received, asked) = (Numbers::default(), RefCell::default());
        Self { size, limits, outbox, received, ledger, scene, log, asked }
    }

    /// What it did so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.log.record.borrow().clone()
    }

    fn me(&self) -> usize {
        self.log.record.borrow().rank
    }

    fn deliver(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Outcome<()> {
        check::peer(self.me(), self.size, to)?;
        check::message(header, tensors, Device::Cpu)?;
        let tensors = tensors.iter().map(Tensor::shallow_clone).collect();
        self.outbox.pass(to, header, tensors)?.into_iter().for_each(|parcel| self.hand_over(to, parcel));
        Ok(())
    }

    fn hand_over(&self, to: usize, parcel: Parcel) {
        let Parcel { number, header, tensors } = parcel;
        let whole = check::whole(self.me(), to, &header, &tensors).is_ok();
        self.ledger.sent(&tensors, 1);
        self.log.put(|words| Event::Send(Message { peer: to, number, whole, header: words.header(&header) }));
    }

    fn take(&self, from: usize, expect: &Header) -> Outcome<Vec<Tensor>> {
        check::peer(self.me(), self.size, from)?;
        let number = self.received.next(from);
        let header = self.log.words.header(expect);
        self.log.put(|_| Event::Receive(Message { peer: from, number, whole: true, header }));
        let zeros = expect.shapes.iter().map(|shape| Tensor::f_zeros(shape, (expect.dtype, Device::Cpu)));
        let tensors = zeros.collect::<std::result::Result<Vec<_>, _>>()?;
        self.ledger.received(&tensors);
        Ok(tensors)
    }

    fn drain(&self) {
        if let Some((to, parcel)) = self.outbox.rest() {
            self.hand_over(to, parcel);
        }
        self.log.put(|_| Event::Flush);
    }

    fn found(&self, name: &str, members: &[usize]) -> Outcome<FakeGroup> {
        let index = check::members(name, self.me(), self.size, members)?;
        let place = format!("{name} {members:?}");
        let mut asked = self.asked.borrow_mut();
        let count = asked.entry(place).or_default();
        *count += 1;
        let key = self.log.words.group(name, members, *count);
        self.log.put(|_| Event::Open(key));
        Ok(FakeGroup::new(Rc::clone(&self.log), key, name, members.len(), index))
    }
}

impl Log {
    fn put(&self, event: impl FnOnce(&Words) -> Event) {
        let event = event(&self.words);
        self.record.borrow_mut().events.push((self.doing.get(), event));
    }
}

impl Transport for FakeTransport {
    fn rank(&self) -> usize {
        self.me()
    }

    fn size(&self) -> usize {
        self.size
    }

    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>> {
        Ok(Rc::new(self.found(name, members)?))
    }

    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        Ok(self.deliver(to, header, tensors)?)
    }

    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        Ok(self.take(from, expect)?)
    }

    fn flush(&self) -> Result<()> {
        self.drain();
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        Traffic { room: self.limits.room(), ..self.ledger.read(0) }
    }

    fn note(&self, action: &dyn fmt::Display) {
        self.log.doing.set(self.log.words.note(&action.to_string()));
        self.scene.note(action);
    }

    fn scene(&self) -> String {
        self.scene.to_string()
    }
}

impl fmt::Debug for FakeTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeTransport(rank {} of {})", self.me(), self.size)
    }
}

#[cfg(test)]
mod tests;
