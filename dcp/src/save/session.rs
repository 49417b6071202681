//! [`Session`]: one process's part in one save. The log is read once, however many writers the process has.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    SavePlan, Writer, replicas,
    watch::{Moment, Unwatched, Watch},
};
use crate::{
    Committed, Error, Place, Result,
    commit::{CommitError, DirName, Label, Log, LogOptions, Seq, State, Void},
    formats::native::{Blob, Part, Planned, Terms},
    manifest::Manifest,
    store::Root,
};

/// What a save needs from outside.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Clock, nonces, patience and name of the writer.
    pub log: LogOptions,
    /// Who watches.
    pub watch: Arc<dyn Watch>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { log: LogOptions::default(), watch: Arc::new(Unwatched) }
    }
}

/// One process's part in one save. Clones share it.
#[derive(Debug, Clone)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: Root,
    plan: SavePlan,
    planned: Planned,
    log: Mutex<Log>,
    options: SaveOptions,
}

/// Begins an incarnation of a run: whatever an earlier one has not committed by now, it can't commit any more. One process does it,
/// and tells the others the epoch.
///
/// # Errors
/// The store's and the log's.
pub fn begin_epoch(root: &Root, run: &Label, options: &SaveOptions) -> Result<u64> {
    let mut log = Log::open_with(root, options.log.clone()).place(root.display_name())?;
    log.begin_epoch(run).place(root.display_name())
}

impl Session {
    /// Reads the log and finds the folder of the plan. The root is there and was probed (see [`Root::create`]).
    ///
    /// # Errors
    /// `Conflict` when another incarnation has taken over; the store's and the log's.
    pub fn open(root: &Root, plan: &SavePlan, options: SaveOptions) -> Result<Self> {
        let log = Log::open_with(root, options.log.clone()).place(root.display_name())?;
        refuse_if_fenced(log.state(), plan).place(root.display_name())?;
        let planned = Planned::new(log.state(), plan.run(), plan.spec())?;
        let inner = Inner { root: root.clone(), plan: plan.clone(), planned, log: Mutex::new(log), options };
        Ok(Self(Arc::new(inner)))
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &SavePlan {
        &self.0.plan
    }

    /// The folder, below the root.
    #[must_use]
    pub fn attempt(&self) -> &DirName {
        &self.0.planned.dir
    }

    /// Begins to write what one rank has to write.
    ///
    /// # Errors
    /// `Incompatible` for a rank outside the mesh; `Conflict` when the plan was committed and its parts are gone; the store's.
    pub fn writer(&self, rank: u32) -> Result<Writer> {
        let writer = Writer::begin(self, rank)?;
        let (plan, dir) = (self.plan(), self.attempt());
        if let Some(epoch) = plan.epoch().filter(|_| rank == 0) {
            // A collection of garbage shall know a save that may still be committed.
            crate::formats::native::Whose::new(plan.run(), epoch, plan.step()).put(self.root(), dir)?;
        }
        Ok(writer)
    }

    /// The ranks that have not finished, ascending; as the store has it now.
    ///
    /// # Errors
    /// The store's.
    pub fn missing(&self) -> Result<BTreeSet<u32>> {
        let (planned, root) = (&self.0.planned, &self.0.root);
        let mut missing = planned.missing(root)?;
        missing.extend(replicas::missing(&self.0.plan, &planned.parts(root))?);
        Ok(missing)
    }

    /// Checks all parts as the store has them, and makes the checkpoint visible. Any session of the plan may do it, and several
    /// at once: there is one record, and each call succeeds.
    ///
    /// # Errors
    /// `Conflict` when writers are missing (named), or another incarnation has taken over; `Corrupt` where parts, files and plan
    /// contradict each other, or replicas each other; the store's and the log's. Nothing is visible then, unless the log says that it can't tell.
    pub fn commit(&self) -> Result<Committed> {
        let mut log = self.log();
        log.refresh().place(self.0.root.display_name())?;
        let plan = &self.0.plan;
        // After its first commit an incarnation goes on from its own.
        let line = log.state().runs.get(plan.run());
        let tip: Option<Seq> = line
            .filter(|line| plan.epoch().is_none_or(|epoch| line.epoch == epoch))
            .and_then(|line| line.tip);
        let parent = plan.parent().filter(|_| tip.is_none());
        let metrics = plan.metrics().clone();
        let terms = Terms { epoch: plan.epoch(), parent, origin: None, metrics };
        let watch = &self.0.options.watch;
        let parts = self.0.planned.parts(&self.0.root);
        let checked = |_: &Manifest, files: &[(&Blob, Part)]| {
            replicas::agree(plan, &parts, files)?;
            watch.at(Moment::Checked)
        };
        let landed = || watch.at(Moment::Landed);
        self.0.planned.commit(&mut log, &terms, checked, landed)
    }

    pub(super) fn root(&self) -> &Root {
        &self.0.root
    }

    pub(super) fn planned(&self) -> &Planned {
        &self.0.planned
    }

    pub(super) fn options(&self) -> &SaveOptions {
        &self.0.options
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails early what the log would refuse at the end.
fn refuse_if_fenced(state: &State, plan: &SavePlan) -> Result<()> {
    let (current, run) = (state.epoch(plan.run()), plan.run().clone());
    match plan.epoch().filter(|epoch| *epoch < current) {
        None => Ok(()),
        Some(epoch) => Err(Error::from(CommitError::Rejected { void: Void::Fenced { run, epoch, current } })),
    }
}
