//! [`Session`]: one process's part in one save. The log is read once, however many writers the process has.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use reshard::Region;

use super::{
    SavePlan, Writer, replicas,
    watch::{Moment, Unwatched, Watch},
};
use crate::{
    Committed, Error, ErrorKind, Finding, FindingCode, Place, Result, Severity,
    commit::{CommitError, DirName, Label, Log, LogOptions, Seq, State, Void},
    formats::native::{Base, Finished, Planned, Terms},
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
    /// Threads that compress the blocks of one box, where its role is compressed: that which puts it, and others. Each holds 4 MiB.
    pub threads: NonZeroUsize,
}

impl Default for SaveOptions {
    fn default() -> Self {
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { log: LogOptions::default(), watch: Arc::new(Unwatched), threads }
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
    /// The checkpoint that may be referred to, once it was wanted; or why there is none.
    base: OnceLock<Result<Base, String>>,
    /// Whether it was told that there is none.
    told: AtomicBool,
    findings: Mutex<Vec<Finding>>,
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
        let mut planned = Planned::new(log.state(), plan.run(), plan.spec())?;
        if let Some(sharing) = plan.sharing() {
            planned = planned.sharing(|entry| sharing.takes(entry));
        }
        let (base, told, findings) = (OnceLock::new(), AtomicBool::new(false), Mutex::default());
        let (root, plan, log) = (root.clone(), plan.clone(), Mutex::new(log));
        Ok(Self(Arc::new(Inner { root, plan, planned, log, options, base, told, findings })))
    }

    /// What this process found wrong with the checkpoint that the save may refer to. Warnings: what was suspect is written anew.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.0.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let checked = |_: &Manifest, finished: &Finished<'_>| {
            replicas::agree(plan, &parts, finished)?;
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

    /// The checkpoint that may be referred to, if the plan names one that can be read; it is told once if it can't.
    pub(super) fn base(&self, rank: u32) -> Result<Option<&Base>> {
        let Some(sharing) = self.0.plan.sharing() else { return Ok(None) };
        let open = || match Base::open(&self.0.root, &self.log(), sharing.base, sharing.least) {
            Ok(Some(base)) => Ok(base),
            Ok(None) => Err(format!("checkpoint seq:{} is not there (any more)", sharing.base)),
            Err(error) => Err(format!("checkpoint seq:{} can't be read: {error}", sharing.base)),
        };
        match self.0.base.get_or_init(open) {
            Ok(base) => Ok(Some(base)),
            Err(why) => {
                if !self.0.told.swap(true, Ordering::Relaxed) {
                    let text = format!("{why}: nothing is shared with it");
                    self.suspect(rank, Finding::new(Severity::Warning, FindingCode::Other, text))?;
                }
                Ok(None)
            }
        }
    }

    /// Notes a box of the base that could not be read, and tells who watches.
    pub(super) fn suspect_box(&self, rank: u32, tensor: usize, region: &Region, error: &Error) -> Result<()> {
        let code = match error.kind() {
            ErrorKind::Corrupt => FindingCode::BlockMismatch,
            ErrorKind::NotFound => FindingCode::MissingFile,
            _ => FindingCode::Other,
        };
        let text = format!("can't be shared, and is written anew: {error}");
        let mut finding = Finding::new(Severity::Warning, code, text).range(region);
        if let Some(entry) = self.0.plan.tensor(tensor) {
            finding = finding.tensor(entry.id());
        }
        self.suspect(rank, finding.hint("verify the earlier checkpoint: others may depend on the same bytes"))
    }

    fn suspect(&self, rank: u32, finding: Finding) -> Result<()> {
        let tensor = finding.tensor.as_ref().map(ToString::to_string).unwrap_or_default();
        let place = tensor + finding.range.as_deref().unwrap_or_default();
        let why =
            if place.is_empty() { finding.message.clone() } else { format!("{place} {}", finding.message) };
        self.0.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
        self.0.options.watch.at(Moment::Suspect { rank, why: &why })
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
