//! What a transport and its groups share: the connections, the marks, and whether this rank is broken.
//!
//! Invariant: after the first failure all connections of this rank are closed, so that no peer waits for it, and every
//! later call errs at once.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    fmt,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    carrier::{Carrier, Lane, Meeting, Pending},
    incoming::Coming,
    marks::{Alarm, Marks, Wait},
};
use crate::{
    Result,
    torch::c10d::{C10dError, Device, ProcessGroup, Store},
    transport::{
        Header, Limits,
        failure::{Failure, Outcome},
        scene::Scene,
        tamper::{Numbers, Outbox},
        traffic::Ledger,
    },
};

/// Longer than gloo's own limit for an operation, so that its error, which says more, comes first.
const SLACK: Duration = Duration::from_secs(5);

/// The connections of a group, gone after a failure.
pub(in crate::transport) type Slot = Rc<RefCell<Option<ProcessGroup>>>;

/// A message under way.
pub(super) struct Sent {
    pub(super) to: usize,
    pub(super) header: Header,
    pub(super) works: Vec<Box<dyn Pending>>,
}

/// One rank's end of everything.
pub(in crate::transport) struct Core {
    pub(in crate::transport) rank: usize,
    pub(in crate::transport) world: usize,
    pub(super) carrier: Box<dyn Carrier>,
    pub(super) limits: Limits,
    pub(super) scene: Arc<Scene>,
    pub(super) marks: Rc<Marks>,
    pub(in crate::transport) store: Arc<Store>,
    pub(super) device: Device,
    pub(in crate::transport) restart: u64,
    /// Whether this rank serves the store.
    pub(super) serves: bool,
    /// Messages under way, oldest first. They hold connections open, so they go with them.
    pub(super) sent: RefCell<VecDeque<Sent>>,
    /// Messages whose receive has begun, by peer, in order; as above.
    pub(super) coming: RefCell<BTreeMap<usize, VecDeque<Coming>>>,
    pub(super) outbox: Outbox,
    pub(super) received: Numbers,
    pub(super) ledger: Ledger,
    pub(super) starting: Cell<bool>,
    slots: RefCell<Vec<Slot>>,
    broken: RefCell<Option<String>>,
    left: Cell<bool>,
}

/// What a core is made of.
pub(super) struct Parts {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) carrier: Box<dyn Carrier>,
    pub(super) limits: Limits,
    pub(super) scene: Arc<Scene>,
    pub(super) marks: Marks,
    pub(super) store: Arc<Store>,
    pub(super) device: Device,
    pub(super) restart: u64,
    pub(super) serves: bool,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { rank, world, carrier, limits, scene, marks, store, device, restart, serves } = parts;
        let (outbox, ledger) = (Outbox::new(rank, limits.tamper), Ledger::new(limits.room()));
        Self {
            rank,
            world,
            carrier,
            limits,
            scene,
            marks: Rc::new(marks),
            store,
            device,
            restart,
            serves,
            sent: RefCell::default(),
            coming: RefCell::default(),
            outbox,
            received: Numbers::default(),
            ledger,
            starting: Cell::default(),
            slots: RefCell::default(),
            broken: RefCell::default(),
            left: Cell::default(),
        }
    }

    /// How long a wait may last now.
    pub(super) fn limit(&self) -> Duration {
        self.limits.wait(self.starting.get())
    }

    /// How long starting up may take.
    pub(in crate::transport) const fn start_limit(&self) -> Duration {
        self.limits.start
    }

    /// What says that one of `peers` has failed or left.
    pub(in crate::transport) fn alarm(&self, peers: &[usize]) -> Alarm {
        Alarm::new(Rc::clone(&self.marks), peers)
    }

    /// The cause of a wait for `peers` while starting up that failed, as far as the marks tell.
    pub(in crate::transport) fn explained(
        &self,
        what: &dyn fmt::Display,
        peers: &[usize],
        error: C10dError,
    ) -> Failure {
        let limit = self.limits.start;
        self.marks.explain(&Wait { what, limit, suspects: peers.to_vec(), entered: None }, error)
    }

    /// Keeps the connections of a group, to close them on a failure.
    pub(super) fn keep(&self, group: ProcessGroup) -> Slot {
        let slot = Rc::new(RefCell::new(Some(group)));
        self.slots.borrow_mut().push(Rc::clone(&slot));
        slot
    }

    /// Connects the members, which all call this; `key` is the same on all of them and no other group's.
    pub(super) fn connect(
        &self,
        key: &str,
        members: &[usize],
        index: usize,
        limit: Duration,
    ) -> Outcome<Slot> {
        let deadline = Instant::now() + limit;
        let what = format!("the members of {key} to come");
        let _waiting = self.scene.wait(&what);
        let place = format!("group/{}/{key}", self.restart);
        let came: Vec<_> = members.iter().map(|member| format!("{place}/came/{member}")).collect();
        let wait = || Wait { what: &what, limit, suspects: self.others(members), entered: None };
        let present = came.get(index).map_or(Ok(()), |key| self.store.set(key, &[]));
        if let Err(error) = present.and_then(|()| self.store.wait(&came, limit)) {
            let absent = |(key, _): &(&String, &usize)| !self.store.has(key).unwrap_or(false);
            let suspects = came.iter().zip(members).filter(absent).map(|(_, member)| *member).collect();
            return Err(self.marks.explain(&Wait { suspects, ..wait() }, error));
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let connected = self
            .store
            .prefixed(&place)
            .and_then(|store| ProcessGroup::gloo(&store, &self.device, index, members.len(), left));
        connected.map(|group| self.keep(group)).map_err(|error| self.marks.explain(&wait(), error))
    }

    /// Connects the members of a group, for control and for data.
    pub(super) fn connect_both(
        &self,
        key: &str,
        members: &[usize],
        index: usize,
    ) -> Outcome<(Slot, Rc<dyn Lane>)> {
        let deadline = Instant::now() + self.limits.start;
        let control = self.connect(key, members, index, self.limits.start)?;
        let lane = self.carrier.lane(self, &Meeting { key, members, index, control: &control, deadline })?;
        Ok((control, lane))
    }

    /// All of `members` but this rank.
    pub(super) fn others(&self, members: &[usize]) -> Vec<usize> {
        members.iter().copied().filter(|member| *member != self.rank).collect()
    }

    /// Waits for an operation that began, as long as is left until `deadline` and a little.
    pub(super) fn finish(&self, work: &dyn Pending, deadline: Instant) -> std::result::Result<(), C10dError> {
        work.wait(deadline.saturating_duration_since(Instant::now()) + SLACK)
    }

    /// Does something with the connections of a group.
    pub(super) fn with<T>(
        &self,
        slot: &Slot,
        act: impl FnOnce(&ProcessGroup) -> std::result::Result<T, C10dError>,
    ) -> Outcome<std::result::Result<T, C10dError>> {
        let group = slot.borrow();
        let open = group.as_ref().ok_or_else(|| self.shut())?;
        Ok(act(open))
    }

    fn shut(&self) -> Failure {
        let why = self.broken.borrow().clone().unwrap_or_else(|| "its transport is closed".to_owned());
        Failure::Broken { rank: self.rank, by: self.rank, why }
    }

    /// Errs when this rank has failed before.
    pub(super) fn whole(&self) -> Outcome<()> {
        if self.broken.borrow().is_some() || self.left.get() { Err(self.shut()) } else { Ok(()) }
    }

    /// Runs a call of the public interface: errs if broken, breaks if it fails.
    pub(super) fn guarded<T>(&self, act: impl FnOnce() -> Outcome<T>) -> Result<T> {
        self.whole()?;
        act().map_err(|failure| {
            self.fail(&failure);
            failure.into()
        })
    }

    /// Records a failure, tells it, writes the scene and closes the connections.
    pub(super) fn fail(&self, why: &dyn fmt::Display) {
        let why = why.to_string();
        self.scene.fail(&why);
        if self.broken.borrow().is_none() {
            *self.broken.borrow_mut() = Some(why.clone());
            self.marks.fail(&why);
            self.close();
        }
    }

    fn close(&self) {
        // First, so that nothing reads or writes tensors which are freed.
        self.carrier.close(self.broken.borrow().is_some());
        self.sent.borrow_mut().clear();
        self.coming.borrow_mut().clear();
        self.slots.borrow_mut().drain(..).for_each(|slot| drop(slot.borrow_mut().take()));
    }

    /// Says goodbye and closes; the one that serves the store stays until the others have gone, for a bounded time.
    pub(super) fn leave(&self) {
        if self.left.replace(true) {
            return;
        }
        self.marks.leave();
        self.close();
        if self.serves {
            let broken = self.broken.borrow().is_some();
            self.marks.outlast(if broken { Duration::from_secs(2) } else { Duration::from_secs(10) });
        }
    }
}
