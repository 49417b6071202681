//! [`World`]: a simulated machine on which a scenario runs, and what was promised on it and when.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use dcp::{
    Cancel, Format, Silent,
    commit::{Clock, Label, LogOptions, Retry},
    engine::{RunOptions, run},
    formats::{
        OpenOptions,
        native::{NativeSink, SinkOptions},
        open,
    },
    load::Loader,
    ops::{
        prepare::{Request, prepare},
        seal::{SealOptions, seal},
    },
    save::{SaveOptions, SavePlan, Session, WriterDone},
    store::{
        LocalStore, Nonces, Root, SeededNonces,
        sim::{Op, SimFs, Turns},
    },
};

use super::mutation::{Mutated, Mutation};
use crate::weights::{Outcome, Weights, text};

/// Something that a call has promised by returning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Promise {
    /// The log has so many records at least.
    Records(u64),
    /// A rank's files are finished, so many of them: whoever goes on with the work keeps them.
    Kept { work: usize, rank: u32, files: usize },
    /// The object is there.
    Object(String),
}

/// Work that makes a checkpoint; done again after a crash, it goes on.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    Save {
        plan: SavePlan,
        weights: Arc<Weights>,
    },
    /// The newest checkpoint of the run `main`, cut for another mesh, as a checkpoint of the run `other`.
    Reshard {
        mesh: &'static str,
    },
    /// A file of others, as a checkpoint of the run `sealed`.
    Seal {
        folder: Arc<tempfile::TempDir>,
        step: u64,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Save { weights, .. } => write!(f, "the save of step {}", weights.step),
            Self::Reshard { mesh } => write!(f, "the reshard to {mesh}"),
            Self::Seal { step, .. } => write!(f, "the seal as step {step}"),
        }
    }
}

/// A simulated machine.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) fs: SimFs,
    mutation: Option<Mutation>,
    pub(crate) works: Vec<Work>,
    /// What checkpoints hold, by run and step.
    pub(crate) known: BTreeMap<(String, u64), Arc<Weights>>,
    promises: Mutex<Vec<(usize, Promise)>>,
    seed: u64,
}

/// What one process does, beside others.
pub(crate) type Thing<'t> = &'t (dyn Fn(&Process) -> Outcome<()> + Sync);

/// One process on it.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) root: Root,
    pub(crate) options: LogOptions,
}

/// What a scenario has left: everything that happened, and everything that was promised.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) journal: Vec<Op>,
    /// Where crashes begin: what came before is the matter of other scenarios.
    pub(crate) from: usize,
    pub(crate) promises: Vec<(usize, Promise)>,
    pub(crate) works: Vec<Work>,
    pub(crate) known: BTreeMap<(String, u64), Arc<Weights>>,
    /// All objects as they were put; an object never changes.
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// Whether every object that is there must be whole, also one that nothing refers to.
    pub(crate) all_objects: bool,
}

impl Recording {
    /// Whether the last thing that was done before crashes begin was to give a file its name.
    pub(crate) fn begins_after_a_name(&self) -> bool {
        let last = self.from.checked_sub(1).and_then(|at| self.journal.get(at));
        matches!(last, Some(Op::Link { .. }))
    }
}

/// A clock that stands still, and on which nobody waits.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    fn pause(&self, _: Duration) {}
}

pub(crate) fn label(name: &str) -> Outcome<Label> {
    name.parse().map_err(|error| format!("{name}: {error}"))
}

impl Process {
    /// The same process, which leaves a head hint with its first record, and another when it is done with the log.
    pub(crate) fn hinting(&self) -> Self {
        let hint_every = Some(Duration::from_secs(1));
        Self { options: LogOptions { hint_every, ..self.options.clone() }, ..self.clone() }
    }

    /// A process whose nonces follow from a seed.
    pub(crate) fn new(fs: SimFs, mutation: Option<Mutation>, seed: u64) -> Self {
        let nonces: Arc<dyn Nonces> = Arc::new(SeededNonces::new(seed));
        let root = Root::from_local(LocalStore::over(Mutated::new(fs, mutation), "sim", Arc::clone(&nonces)));
        let retry = Retry { tries: 3, first: Duration::ZERO, longest: Duration::ZERO };
        let options = LogOptions {
            clock: Arc::new(Still),
            nonces,
            retry,
            writer: "proofs".to_owned(),
            hint_every: None,
        };
        Self { root, options }
    }

    pub(crate) fn session(&self, plan: &SavePlan) -> Outcome<Session> {
        let options = SaveOptions { log: self.options.clone(), ..SaveOptions::default() };
        Session::open(&self.root, plan, options).map_err(text)
    }

    /// Does a work alone, from where it is, to its record. `finished` is told of each rank's files.
    pub(crate) fn work(&self, work: &Work, finished: &dyn Fn(u32, &WriterDone)) -> Outcome<u64> {
        match work {
            Work::Save { plan, weights } => {
                let session = self.session(plan)?;
                for rank in 0..plan.ranks() {
                    finished(rank, &weights.write(&session, rank)?);
                }
                session.commit().map_err(text)?.sequence.ok_or_else(|| "a commit without a record".to_owned())
            }
            Work::Reshard { mesh } => self.reshard(mesh),
            Work::Seal { folder, step } => self.seal(folder.path(), *step),
        }
    }

    fn reshard(&self, mesh: &str) -> Outcome<u64> {
        let loader = Loader::newest(&self.root, &label("main")?).map_err(text)?;
        let mesh = mesh.parse().map_err(|error| format!("{mesh}: {error}"))?;
        let request = Request { to: Some(mesh), ..Request::new(Format::Native) };
        let prepared = prepare(loader.catalog(), &request).map_err(text)?;
        let options = SinkOptions { log: self.options.clone(), ..SinkOptions::new(label("other")?) };
        let mut sink = NativeSink::new(self.root.clone(), options);
        let options = RunOptions {
            threads: std::num::NonZeroUsize::MIN,
            max_memory: 16 << 20,
            ..RunOptions::default()
        };
        let done = run(loader.source(), &mut sink, &prepared.copy, &options, &Silent, &Cancel::new());
        done.map_err(text)?.0.sequence.ok_or_else(|| "a reshard without a record".to_owned())
    }

    fn seal(&self, folder: &Path, step: u64) -> Outcome<u64> {
        let source = open(&folder.join("model.safetensors"), OpenOptions::new()).map_err(text)?;
        let base = folder.to_str().ok_or("a scratch folder whose name is not UTF-8")?;
        let mut options = SealOptions::new(base, label("sealed")?);
        (options.step, options.log) = (Some(step), self.options.clone());
        let threads = RunOptions { threads: std::num::NonZeroUsize::MIN, ..RunOptions::default() };
        let sealed = seal(source.as_ref(), &self.root, &options, &threads, &Silent, &Cancel::new());
        sealed.map_err(text)?.committed.sequence.ok_or_else(|| "a seal without a record".to_owned())
    }
}

impl Work {
    /// The run and the step of the checkpoint that it makes; a reshard has the step of its source.
    pub(crate) fn makes(&self) -> (String, Option<u64>) {
        match self {
            Self::Save { plan, .. } => (plan.run().to_string(), Some(plan.step())),
            Self::Reshard { .. } => ("other".to_owned(), None),
            Self::Seal { step, .. } => ("sealed".to_owned(), Some(*step)),
        }
    }
}

impl World {
    pub(crate) fn new(mutation: Option<Mutation>, seed: u64) -> Self {
        let (works, known, promises) = (Vec::new(), BTreeMap::new(), Mutex::default());
        Self { fs: SimFs::new(), mutation, works, known, promises, seed }
    }

    /// A process that nobody else runs beside.
    pub(crate) fn alone(&self, number: u64) -> Process {
        Process::new(self.fs.clone(), self.mutation, number)
    }

    /// A process with any view of the file system.
    pub(crate) fn process(&self, fs: SimFs, number: u64) -> Process {
        Process::new(fs, self.mutation, number)
    }

    /// A save of these weights that is to be done; returns its number.
    pub(crate) fn plan(&mut self, run: &str, mesh: &str, step: u64) -> Outcome<usize> {
        let weights = Arc::new(Weights::new(7, step, 40)?);
        let plan = weights.plan(&label(run)?, mesh, None)?;
        self.known.insert((run.to_owned(), step), Arc::clone(&weights));
        self.works.push(Work::Save { plan, weights });
        Ok(self.works.len() - 1)
    }

    pub(crate) fn promise(&self, promise: Promise) {
        self.promises().push((self.fs.operations(), promise));
    }

    fn promises(&self) -> MutexGuard<'_, Vec<(usize, Promise)>> {
        self.promises.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process does a work from its beginning to its end.
    pub(crate) fn do_alone(&self, process: &Process, number: usize) -> Outcome<()> {
        let work = self.works.get(number).ok_or("no such work")?;
        let finished = |rank: u32, done: &WriterDone| {
            self.promise(Promise::Kept { work: number, rank, files: done.files });
        };
        let records = process.work(work, &finished)?;
        self.promise(Promise::Records(records));
        Ok(())
    }

    /// Does several things at once, each in a process of its own, in an order that follows from the seed.
    pub(crate) fn together(&self, things: &[Thing<'_>]) -> Outcome<()> {
        let turns = Turns::new(things.len(), self.seed);
        let processes: Vec<_> = (0..things.len())
            .map(|number| self.process(self.fs.process(&turns, number), 100 + number as u64))
            .collect();
        let done = thread::scope(|scope| {
            let running: Vec<_> = things
                .iter()
                .zip(processes)
                .map(|(thing, process)| scope.spawn(move || thing(&process)))
                .collect();
            let joined = running
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|_| Err("a process panicked".to_owned())));
            joined.collect::<Vec<_>>()
        });
        done.into_iter().collect()
    }

    /// One rank's share of a save; with `patient` ones waiting until all are done, to commit.
    pub(crate) fn share(&self, process: &Process, number: usize, rank: u32, patient: bool) -> Outcome<()> {
        let Some(Work::Save { plan, weights }) = self.works.get(number) else {
            return Err("no such save".to_owned());
        };
        let session = process.session(plan)?;
        let files = weights.write(&session, rank)?.files;
        self.promise(Promise::Kept { work: number, rank, files });
        while !session.missing().map_err(text)?.is_empty() {
            if !patient {
                return Ok(());
            }
            // Looks by threads that a process has begun take no turn: one that waits lets the others have theirs by one of its own.
            process.root.list_dir(None).map_err(text)?;
        }
        let committed = session.commit().map_err(text)?.sequence;
        self.promise(Promise::Records(committed.ok_or("a commit without a record")?));
        Ok(())
    }

    /// What happened; crashes begin at operation `from`.
    pub(crate) fn recorded(self, from: usize, all_objects: bool) -> Recording {
        let journal = self.fs.journal();
        let promises = self.promises.into_inner().unwrap_or_else(PoisonError::into_inner);
        let objects = super::objects::of(&journal);
        Recording { journal, from, promises, works: self.works, known: self.known, objects, all_objects }
    }
}
