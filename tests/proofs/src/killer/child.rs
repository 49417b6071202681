//! What the processes do that are killed, and the one that looks at what they left.
//!
//! Each says on its standard output, a line each, where it is: the last line is the phase that it was killed in. It sleeps a little at
//! each of them, so that short phases are hit as well.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use clap::{Args, Subcommand};
use dcp::{
    Cancel, Committed, FileDone, FindingCode, Format, Location, Needs, Progress, Silent, Sink, TargetLayout,
    TargetSpec, Written,
    commit::{Label, Log, LogOptions},
    engine::{RunOptions, run},
    formats::native::{NativeSink, SinkOptions},
    load::Loader,
    ops::prepare::{Request, prepare},
    retention::{self, GcOptions},
    save::{Moment, SaveOptions, Session, Watch},
    store::{BlobWriter, ObjectPath, Root, Stores},
};
use serde::{Deserialize, Serialize};

use crate::chance::mixed;
use crate::weights::{Outcome, Weights, text};

/// How large the tensors are.
const ROWS: u64 = 2000;

/// What the weights of all steps are made from.
const SEED: u64 = 11;

/// What a process does.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Task {
    /// Writes what some ranks have to write; then commits, once all are done.
    Save(Save),
    /// Cuts the newest checkpoint of the run `main` for another mesh, as one of the run `other`.
    Reshard {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        mesh: String,
    },
    /// Retires all but the newest of each run, condemns, deletes.
    Forget {
        #[command(flatten)]
        place: Place,
    },
    /// Looks at everything, and says what there is.
    Check {
        #[command(flatten)]
        place: Place,
        /// Collects and sweeps first.
        #[arg(long)]
        clean: bool,
    },
}

/// A save.
#[derive(Debug, Clone, Args)]
pub(crate) struct Save {
    #[command(flatten)]
    place: Place,
    #[arg(long)]
    mesh: String,
    #[arg(long)]
    step: u64,
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<u32>,
}

/// Where, and with which chance.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    #[arg(long)]
    root: PathBuf,
    #[arg(long, default_value_t = 0)]
    chance: u64,
    /// Longest sleep at a phase, in microseconds.
    #[arg(long, default_value_t = 0)]
    sleep: u64,
}

/// What there is.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Records of the log.
    pub(crate) records: u64,
    /// Steps of checkpoints that are there, whole and right, by run, in the order of their commits.
    pub(crate) steps: BTreeMap<String, Vec<u64>>,
    /// Files in folders of checkpoints that no manifest names; each was told as an orphan.
    pub(crate) orphans: u64,
    /// Unfinished files.
    pub(crate) unfinished: u64,
    /// Folders of attempts that were never committed.
    pub(crate) attempts: u64,
}

/// Does it.
pub(crate) fn run_task(task: &Task) -> Outcome<()> {
    match task {
        Task::Save(save) => self::save(save),
        Task::Reshard { place, mesh } => reshard(place, mesh),
        Task::Forget { place } => forget(place),
        Task::Check { place, clean } => {
            let found = check(place, *clean)?;
            say(&serde_json::to_string(&found).map_err(text)?);
            Ok(())
        }
    }
}

/// The state of a step, as all processes know it.
fn weights(step: u64) -> Outcome<Weights> {
    Weights::new(SEED, step, ROWS)
}

/// How a process tells where it is.
fn say(line: &str) {
    println!("{line}");
}

fn main_run() -> Outcome<Label> {
    "main".parse().map_err(|error| format!("{error}"))
}

impl Place {
    fn open(&self) -> Outcome<Root> {
        Root::create(self.root.to_str().ok_or("a folder whose name is not UTF-8")?, &Stores::new())
            .map_err(text)
    }

    fn tale(&self) -> Arc<Tale> {
        Arc::new(Tale { chance: AtomicU64::new(self.chance), sleep: self.sleep })
    }
}

/// Says where a process is.
#[derive(Debug)]
struct Tale {
    chance: AtomicU64,
    sleep: u64,
}

impl Tale {
    fn at(&self, phase: &str) {
        say(phase);
        let drawn = mixed(self.chance.fetch_add(1, Ordering::Relaxed));
        if let Some(micros) = (drawn >> 16).checked_rem(self.sleep) {
            thread::sleep(Duration::from_micros(micros));
        }
    }
}

impl Watch for Tale {
    fn at(&self, moment: Moment<'_>) -> dcp::Result<()> {
        Self::at(
            self,
            match moment {
                Moment::Wrote { .. } => "wrote",
                Moment::FileDone { .. } => "file",
                Moment::Checked => "checked",
                Moment::Landed => "landed",
                _ => "more",
            },
        );
        Ok(())
    }
}

impl Progress for Tale {
    fn begin(&self, _: &str, _: u64) {
        self.at("begin");
    }

    fn advance(&self, _: u64) {
        self.at("wrote");
    }

    fn end(&self) {}
}

fn save(save: &Save) -> Outcome<()> {
    let (root, tale, weights) = (save.place.open()?, save.place.tale(), weights(save.step)?);
    let plan = weights.plan(&main_run()?, &save.mesh, None)?;
    let options = SaveOptions { watch: tale.clone(), ..SaveOptions::default() };
    let session = Session::open(&root, &plan, options).map_err(text)?;
    tale.at("begin");
    let mut kept = 0;
    for rank in &save.ranks {
        kept += weights.write(&session, *rank)?.kept;
    }
    say(&format!("kept {kept}"));
    // The others may be killed: whoever started this process knows, and ends it.
    while !session.missing().map_err(text)?.is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    session.commit().map_err(text)?;
    tale.at("committed");
    Ok(())
}

/// A sink that says where it is.
#[derive(Debug)]
struct Telling {
    sink: NativeSink,
    tale: Arc<Tale>,
}

impl Sink for Telling {
    fn needs(&self) -> Needs {
        self.sink.needs()
    }

    fn layout(&mut self, spec: &TargetSpec) -> dcp::Result<TargetLayout> {
        self.sink.layout(spec)
    }

    fn finished(&self) -> dcp::Result<Vec<FileDone>> {
        self.sink.finished()
    }

    fn blob(&self, file: usize) -> dcp::Result<Box<dyn BlobWriter>> {
        self.sink.blob(file)
    }

    fn file_done(&self, done: &FileDone) -> dcp::Result<()> {
        self.sink.file_done(done)?;
        self.tale.at("file");
        Ok(())
    }

    fn commit(&mut self, written: &Written) -> dcp::Result<Committed> {
        self.tale.at("checked");
        self.sink.commit(written)
    }
}

fn reshard(place: &Place, mesh: &str) -> Outcome<()> {
    let (root, tale) = (place.open()?, place.tale());
    let loader = Loader::newest(&root, &main_run()?).map_err(text)?;
    let mesh = mesh.parse().map_err(|error| format!("{mesh}: {error}"))?;
    let request = Request { to: Some(mesh), ..Request::new(Format::Native) };
    let prepared = prepare(loader.catalog(), &request).map_err(text)?;
    let other = "other".parse().map_err(|error| format!("{error}"))?;
    let mut sink =
        Telling { sink: NativeSink::new(root.clone(), SinkOptions::new(other)), tale: Arc::clone(&tale) };
    let options = RunOptions::default();
    run(loader.source(), &mut sink, &prepared.copy, &options, tale.as_ref(), &Cancel::new()).map_err(text)?;
    tale.at("committed");
    Ok(())
}

fn forget(place: &Place) -> Outcome<()> {
    let (root, tale) = (place.open()?, place.tale());
    tale.at("begin");
    let log = Log::open(&root).map_err(text)?;
    let runs: Vec<Label> = log.state().runs.keys().cloned().collect();
    for run in &runs {
        tale.at("retire");
        retention::retire(&root, run, None, NonZeroUsize::MIN, LogOptions::default()).map_err(text)?;
    }
    tale.at("condemn");
    let run = main_run()?;
    // What is condemned waits, the first time.
    let later = GcOptions::after(Duration::from_secs(86_400));
    retention::collect(&root, &run, None, &later, LogOptions::default()).map_err(text)?;
    tale.at("delete");
    let now = GcOptions::after(Duration::ZERO);
    retention::collect(&root, &run, None, &now, LogOptions::default()).map_err(text)?;
    tale.at("deleted");
    Ok(())
}

/// Everything that is there, each checkpoint read to the last byte and compared.
fn check(place: &Place, clean: bool) -> Outcome<Found> {
    let root = Root::open(place.root.to_str().ok_or("a folder whose name is not UTF-8")?, &Stores::new())
        .map_err(text)?;
    if clean {
        let run = main_run()?;
        let all = GcOptions { orphans_after: Duration::ZERO, ..GcOptions::after(Duration::ZERO) };
        retention::collect(&root, &run, None, &all, LogOptions::default()).map_err(text)?;
    }
    let log = Log::open(&root).map_err(text)?;
    let audit = log.audit().map_err(text)?;
    if let Some(finding) = audit.findings.first() {
        return Err(format!("the log: {}", finding.error));
    }
    let mut found = Found { records: log.head().map_or(0, dcp::commit::Seq::get), ..Found::default() };
    for (seq, checkpoint) in &log.state().checkpoints {
        let loader = Loader::open_record(&root, root.get(&seq.path()).map_err(text)?).map_err(text)?;
        let step = checkpoint.step;
        weights(step)?.check(&loader).map_err(|error| format!("checkpoint {seq} of step {step}: {error}"))?;
        found.orphans += orphans(&root, &loader, checkpoint.attempt.as_str())?;
        found.steps.entry(checkpoint.run.to_string()).or_default().push(step);
    }
    let known = |dir: &str| {
        let dir = dir.parse().ok();
        dir.is_some_and(|dir| {
            log.state().committed(&dir).is_some() || log.state().condemned.contains_key(&dir)
        })
    };
    let dirs = root.list_dir(None).map_err(text)?.dirs;
    let strangers = dirs.iter().map(ObjectPath::as_ref).filter(|dir| dir.starts_with("step-") && !known(dir));
    found.attempts = strangers.count() as u64;
    found.unfinished = unfinished(&place.root).map_err(text)?;
    Ok(found)
}

/// Files in a checkpoint's folder that its manifest does not name: each must be told, by name.
fn orphans(root: &Root, loader: &Loader, attempt: &str) -> Outcome<u64> {
    let mut named: Vec<&str> = Vec::new();
    for file in loader.catalog().files.iter().filter(|file| file.location == Location::InStep) {
        named.push(&file.path);
        named.extend(file.blocks.as_ref().map(|blocks| blocks.path.as_str()));
    }
    let listed = root.list(Some(&ObjectPath::from(attempt))).map_err(text)?;
    let inside =
        listed.iter().filter_map(|object| object.path.as_ref().strip_prefix(attempt)?.strip_prefix('/'));
    let strange =
        |path: &&str| (path.starts_with("data/") || path.starts_with("blocks/")) && !named.contains(path);
    let strange: Vec<&str> = inside.filter(strange).collect();
    let findings = dcp::ops::verify::verify(loader.source(), &Default::default(), &Silent, &Cancel::new());
    let findings = findings.map_err(text)?.findings;
    let told: Vec<&str> = findings
        .iter()
        .filter(|it| it.code == FindingCode::OrphanFile)
        .filter_map(|it| it.file.as_deref())
        .collect();
    match strange.iter().find(|path| !told.contains(path)) {
        Some(path) => Err(format!("{attempt}/{path} is named by no manifest, and nobody tells")),
        None => Ok(strange.len() as u64),
    }
}

/// Files that somebody began to write.
fn unfinished(root: &Path) -> std::io::Result<u64> {
    let (mut count, mut ahead) = (0, vec![root.to_owned()]);
    while let Some(dir) = ahead.pop() {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                ahead.push(entry.path());
            } else {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                count += u64::from(name.starts_with(".staging-") || name.starts_with(".probe-"));
            }
        }
    }
    Ok(count)
}
