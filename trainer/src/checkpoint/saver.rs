//! [`Saver`]: one rank's saves, behind the training.
//!
//! Invariants: one save is in flight at most; the lease on the shards is given back as soon as they are copied, whatever
//! happens after; a failure is kept until it is asked for, and [`Saver::close`] asks; what is known of one save says nothing of
//! the next; the thread that trains only takes the lease: the save is laid out, copied and written on the save's own.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dcp::{
    commit::{Label, LogOptions},
    retention::{self, GcOptions},
    save::{SaveOptions, SavePlan, Session},
    store::Root,
};

use super::{
    spec::counts,
    staging::{Part, Staged},
    watch::{FirstBlob, SlowSave},
};
use crate::{Error, ErrorKind, Place, Result, fsdp::Lease};

/// How long parts are waited for when peers are gone.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// What a saver is told once.
#[derive(Clone)]
pub struct SaverOptions {
    /// The store.
    pub root: Root,
    /// The run.
    pub run: Label,
    /// This rank.
    pub rank: u32,
    /// The incarnation.
    pub epoch: u64,
    /// How many checkpoints stay; none for all.
    pub keep_last: Option<NonZeroUsize>,
    /// How long readers of a retired checkpoint have to finish, before its data goes.
    pub grace: Duration,
    /// How long the committing rank waits for the others' parts.
    pub patience: Duration,
    /// Fault switch.
    pub slow: Option<SlowSave>,
    /// Fault switch: the step whose save fails on this rank.
    pub fails: Option<u64>,
    /// Where lines for people go.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl std::fmt::Debug for SaverOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaverOptions")
            .field("rank", &self.rank)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// A save that is done, as far as this rank is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// Its step.
    pub step: u64,
    /// Its number, on the rank that committed it.
    pub sequence: Option<u64>,
    /// Bytes that this rank wrote.
    pub bytes: u64,
    /// Bytes that it did not write, as the checkpoint before has them.
    pub shared: u64,
    /// Laying out the save and copying the shards: as long as the lease was held.
    pub staging: Duration,
    /// Writing and hashing, up to this rank's part.
    pub writing: Duration,
    /// Waiting for the others, and the commit; on the committing rank.
    pub committing: Duration,
}

/// How a save ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its step.
    pub step: u64,
    /// What became of it.
    pub result: Result<Saved>,
}

/// A save that was begun and not taken yet.
struct Flight {
    step: u64,
    /// Set when a part of it is known not to come.
    hurry: Arc<AtomicBool>,
    thread: JoinHandle<Result<Saved>>,
}

/// One rank's saves.
pub struct Saver {
    options: SaverOptions,
    staged: Arc<Mutex<Staged>>,
    flight: Option<Flight>,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver")
            .field("rank", &self.options.rank)
            .field("busy", &self.flight.is_some())
            .finish()
    }
}

impl Saver {
    /// A saver that has nothing to do.
    #[must_use]
    pub fn new(options: SaverOptions) -> Self {
        Self { options, staged: Arc::default(), flight: None }
    }

    /// Whether a save is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| !flight.thread.is_finished())
    }

    /// Begins a save of what `lease` holds, by what `plan` says: it is asked for on the save's thread, and its failure is the
    /// save's. The lease is given back as soon as everything is copied. The save before must have been taken by
    /// [`Saver::finished`] or [`Saver::wait`].
    ///
    /// # Errors
    /// `Internal` when the one before was not taken; the system's, when no thread can be had.
    pub fn begin(
        &mut self,
        lease: Lease,
        plan: impl FnOnce() -> Result<SavePlan> + Send + 'static,
    ) -> Result<()> {
        if self.flight.is_some() {
            return Err(Error::internal("a save was begun before the outcome of the last was taken"));
        }
        let (options, step, staged) = (self.options.clone(), lease.step(), Arc::clone(&self.staged));
        let hurry = Arc::<AtomicBool>::default();
        let hurried = Arc::clone(&hurry);
        let work = move || {
            let mut staged = staged.lock().map_err(|_| Error::internal("an earlier save panicked"))?;
            let began = Instant::now();
            let copied = plan().and_then(|plan| {
                let extra = counts(lease.tensors(), plan.step())?;
                staged.fill(&plan, options.rank, lease.tensors(), &extra)?;
                Ok(plan)
            });
            drop(lease);
            copied.and_then(|plan| write(&options, &hurried, &plan, &staged, began.elapsed()))
        };
        let thread = thread::Builder::new().name(format!("save-{step}")).spawn(work)?;
        self.flight = Some(Flight { step, hurry, thread });
        Ok(())
    }

    /// The outcome of the save in flight, if it has ended.
    pub fn finished(&mut self) -> Option<Outcome> {
        self.flight.take_if(|flight| flight.thread.is_finished()).map(Flight::join)
    }

    /// Waits for the save in flight, if there is one.
    pub fn wait(&mut self) -> Option<Outcome> {
        self.flight.take().map(Flight::join)
    }

    /// The save of `step` can't be completed: a part of it has failed. If it is the one in flight, it is not waited for long.
    pub fn hurry(&self, step: u64) {
        if let Some(flight) = self.flight.as_ref().filter(|flight| flight.step == step) {
            flight.hurry.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for the save in flight after the run has failed: an orderly end loses no checkpoint that is nearly there. Where
    /// `peers_are_gone`, parts are not waited for long.
    pub fn settle(&mut self, peers_are_gone: bool) -> Option<Outcome> {
        if let Some(flight) = self.flight.as_ref().filter(|_| peers_are_gone) {
            flight.hurry.store(true, Ordering::Relaxed);
        }
        self.wait()
    }

    /// Waits for the save in flight; what it says is the last word.
    ///
    /// # Errors
    /// What that save failed of.
    pub fn close(mut self) -> Result<Option<Saved>> {
        self.wait().map(|outcome| outcome.result).transpose()
    }
}

impl Flight {
    fn join(self) -> Outcome {
        let result = self.thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(Error::internal(format!("the save panicked: {text}")))
        });
        Outcome { step: self.step, result }
    }
}

/// Writes this rank's boxes; the first rank then waits for all parts and commits.
fn write(
    options: &SaverOptions,
    hurry: &AtomicBool,
    plan: &SavePlan,
    staged: &Staged,
    staging: Duration,
) -> Result<Saved> {
    let step = plan.step();
    let place = || format!("save of step {step}, rank {}", options.rank);
    let began = Instant::now();
    let watch = FirstBlob {
        step,
        slow: options.slow.filter(|slow| slow.step == step),
        fails: options.fails == Some(step),
        say: Arc::clone(&options.say),
        told: Mutex::default(),
    };
    let save = SaveOptions { watch: Arc::new(watch), ..SaveOptions::default() };
    let session = Session::open(&options.root, plan, save).place(place())?;
    let writer = session.writer(options.rank).place(place())?;
    for (part, tensor, region, bytes) in staged.iter() {
        match part {
            Part::Writes => writer.put(tensor, region, bytes),
            Part::Holds => writer.hold(tensor, region, bytes),
        }
        .place(place())?;
    }
    let done = writer.finish().place(place())?;
    let writing = began.elapsed();
    let began = Instant::now();
    let sequence = if options.rank == 0 { commit(options, hurry, &session).place(place())? } else { None };
    let (bytes, shared) = (done.bytes, done.shared_bytes);
    Ok(Saved { step, sequence, bytes, shared, staging, writing, committing: began.elapsed() })
}

fn commit(options: &SaverOptions, hurry: &AtomicBool, session: &Session) -> Result<Option<u64>> {
    wait_for_parts(options, hurry, session)?;
    let committed = session.commit()?;
    if let Some(keep) = options.keep_last {
        // The checkpoint is safe by now: what can't be tidied up is said, and tried again after the next one.
        if let Err(error) = tidy(options, keep) {
            (options.say)(&format!("warn  old checkpoints stay: {error}"));
        }
    }
    Ok(committed.sequence)
}

fn tidy(options: &SaverOptions, keep: NonZeroUsize) -> Result<()> {
    let SaverOptions { root, run, epoch, grace, .. } = options;
    retention::retire(root, run, Some(*epoch), keep, LogOptions::default())?;
    let options = GcOptions::after(*grace).without_sweep();
    retention::collect(root, run, Some(*epoch), &options, LogOptions::default())?;
    Ok(())
}

/// The store is asked, never the ranks: no training group takes part in a save.
fn wait_for_parts(options: &SaverOptions, hurry: &AtomicBool, session: &Session) -> Result<()> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let missing = session.missing()?;
        if missing.is_empty() {
            return Ok(());
        }
        let hurried = hurry.load(Ordering::Relaxed) && began.elapsed() > LAST_WAIT;
        if hurried || began.elapsed() > options.patience {
            let ranks: Vec<String> = missing.iter().take(8).map(u32::to_string).collect();
            return Err(Error::new(
                ErrorKind::Peer,
                format!(
                    "{} ranks have not finished their part after {:.1?}: {}",
                    missing.len(),
                    began.elapsed(),
                    ranks.join(", ")
                ),
            )
            .hint("their own logs say why; nothing of this checkpoint is visible, the one before stays"));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
