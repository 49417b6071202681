//! The scenarios: what runs before the crash.

use std::{fmt, num::NonZeroUsize, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use dcp::{
    commit::{Action, CommitError, Log, Seq, Verified, Void},
    retention::{self, GcOptions},
    store::{Put, object_path},
};

use super::{
    mutation::Mutation,
    world::{Process, Promise, Recording, Thing, Work, World, label},
};
use crate::{
    chance::mixed,
    weights::{Outcome, Weights, text},
};

/// What runs before the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scenario {
    /// Objects and blobs of three processes, into new folders: the store by itself.
    Puts,
    /// Four writers save a checkpoint, then another one; two of them wait to commit.
    Save,
    /// Two runs save into one root at once.
    Runs,
    /// A checkpoint is saved while two other processes note something in the log, and all of them leave head hints.
    Hints,
    /// A file of others is sealed.
    Seal,
    /// A checkpoint is cut for another mesh.
    Reshard,
    /// All checkpoints but the newest are retired, condemned and deleted, while another is saved.
    Forget,
    /// All ranks of a run save, another run saves, and somebody collects or notes something, all at once, in two rounds. The schedule also
    /// says on which meshes, and who else is there, so that recordings differ in what happens and not only in its order.
    Busy,
    /// A save is killed somewhere; another process goes on with it.
    Continued,
    /// A seal is killed somewhere; another process goes on with it.
    SealContinued,
    /// A collection is killed somewhere; another process goes on with it.
    ForgetContinued,
}

impl Scenario {
    pub(crate) const ALL: [Self; 11] = [
        Self::Puts,
        Self::Save,
        Self::Runs,
        Self::Hints,
        Self::Seal,
        Self::Reshard,
        Self::Forget,
        Self::Busy,
        Self::Continued,
        Self::SealContinued,
        Self::ForgetContinued,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Puts => "puts",
            Self::Save => "save",
            Self::Runs => "runs",
            Self::Hints => "hints",
            Self::Seal => "seal",
            Self::Reshard => "reshard",
            Self::Forget => "forget",
            Self::Busy => "busy",
            Self::Continued => "continued",
            Self::SealContinued => "seal-continued",
            Self::ForgetContinued => "forget-continued",
        }
    }

    /// Whether another schedule makes another recording.
    pub(crate) const fn has_schedules(self) -> bool {
        !matches!(self, Self::Seal | Self::Reshard)
    }

    /// Whether it comes last.
    pub(crate) const fn is_last(self) -> bool {
        matches!(self, Self::ForgetContinued)
    }

    /// Whether a schedule is a place where a process is killed.
    pub(crate) const fn is_continued(self) -> bool {
        matches!(self, Self::Continued | Self::SealContinued | Self::ForgetContinued)
    }

    /// Runs it. The schedule says whose turn it is, or where the process is killed; nothing, where that is beyond its end.
    pub(crate) fn record(self, schedule: u64, mutation: Option<Mutation>) -> Outcome<Option<Recording>> {
        let world = World::new(mutation, schedule);
        let recorded = match self {
            Self::Puts => puts(world),
            Self::Save => save(world),
            Self::Runs => runs(world),
            Self::Hints => hints(world),
            Self::Seal => seal(world),
            Self::Reshard => reshard(world),
            Self::Forget => forget(world),
            Self::Busy => busy(world, schedule),
            Self::Continued => return continued(world, schedule, &killed_save),
            Self::SealContinued => return continued(world, schedule, &killed_seal),
            Self::ForgetContinued => return forget_continued(world, schedule),
        };
        recorded.map(Some)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Outcome<Self> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text:?} is no scenario"))
    }
}

/// Names of objects of one process, as a store has them.
fn names(process: u64) -> [String; 4] {
    let attempt = format!("step-{:08}-a", process % 2);
    [
        format!("{attempt}/data/r{process}.safetensors"),
        format!("{attempt}/blocks/r{process}.blocks"),
        format!("{attempt}/parts/r{process}.json"),
        format!("{attempt}/manifest-{process}.sqlite"),
    ]
}

fn puts(world: World) -> Outcome<Recording> {
    let bytes =
        |process: u64, at: usize| vec![b'a' + (process * 5 + at as u64).to_le_bytes()[0]; 1500 * (at + 1)];
    let put = |process: &Process, number: u64| -> Outcome<()> {
        let [blob, table, part, manifest] = names(number);
        let writer = process.root.blob(&object_path(&blob).map_err(text)?, 6000).map_err(text)?;
        let content = bytes(number, 3);
        writer.write_at(3000, content.get(3000..).unwrap_or_default()).map_err(text)?;
        writer.write_at(0, content.get(..3000).unwrap_or_default()).map_err(text)?;
        writer.finish().map_err(text)?;
        world.promise(Promise::Object(blob));
        for (at, name) in [table, part, manifest].into_iter().enumerate() {
            let path = object_path(&name).map_err(text)?;
            process.root.put_same(&path, Bytes::from(bytes(number, at))).map_err(text)?;
            world.promise(Promise::Object(name));
        }
        // All of them put these, with the same bytes: whoever finds one there makes it durable.
        for name in ["step-00000000-a/manifest-all.sqlite", "step-00000001-a/blocks/all.blocks"] {
            let path = object_path(name).map_err(text)?;
            process.root.put_same(&path, Bytes::from_static(&[b'z'; 900])).map_err(text)?;
            world.promise(Promise::Object(name.to_owned()));
        }
        // All of them want the same number, and one gets it.
        for number in 1..=2_u64 {
            let path = object_path(&format!("commits/{number:020}.json")).map_err(text)?;
            match process
                .root
                .put_create(&path, Bytes::from(vec![b'0' + number.to_le_bytes()[0]; 700]))
                .map_err(text)?
            {
                Put::Created => world.promise(Promise::Object(path.to_string())),
                Put::Exists => {
                    process.root.settle(&path).map_err(text)?;
                    world.promise(Promise::Object(path.to_string()));
                }
            }
        }
        Ok(())
    };
    let (first, second, third) = (|p: &Process| put(p, 1), |p: &Process| put(p, 2), |p: &Process| put(p, 3));
    world.together(&[&first, &second, &third])?;
    Ok(world.recorded(0, true))
}

fn save(mut world: World) -> Outcome<Recording> {
    for (mesh, step) in [("2x1x2", 10), ("1x1x4", 20)] {
        let work = world.plan("main", mesh, step)?;
        let world = &world;
        let share = |rank: u32| move |process: &Process| world.share(process, work, rank, rank < 2);
        let [a, b, c, d] = [share(0), share(1), share(2), share(3)];
        world.together(&[&a, &b, &c, &d])?;
    }
    Ok(world.recorded(0, false))
}

fn runs(mut world: World) -> Outcome<Recording> {
    let before = world.plan("main", "1x1x1", 10)?;
    world.do_alone(&world.alone(1), before)?;
    let from = world.fs.operations();
    let (mine, theirs) = (world.plan("main", "1x1x1", 20)?, world.plan("sweep", "1x1x2", 20)?);
    {
        let world = &world;
        let mine = |process: &Process| world.do_alone(process, mine);
        let theirs = |process: &Process| world.do_alone(process, theirs);
        world.together(&[&mine, &theirs])?;
    }
    Ok(world.recorded(from, false))
}

fn hints(mut world: World) -> Outcome<Recording> {
    let before = world.plan("main", "1x1x1", 10)?;
    world.do_alone(&world.alone(1).hinting(), before)?;
    let from = world.fs.operations();
    let work = world.plan("main", "1x1x1", 20)?;
    {
        let world = &world;
        let saves = |process: &Process| world.do_alone(&process.hinting(), work);
        let notes = |process: &Process| {
            let process = process.hinting();
            let mut log = Log::open_with(&process.root, process.options).map_err(text)?;
            for _ in 0..2 {
                let action = Action::Verified(Verified { checkpoint: Seq::FIRST, whole: true });
                let draft = log.draft(&label("main")?, action).map_err(text)?;
                let seq = log.append(&draft).map_err(text)?.seq;
                world.promise(Promise::Records(seq.get()));
            }
            // Of the second it tells when it is dropped, and with that of what others have added by then.
            log.refresh().map_err(text)
        };
        world.together(&[&saves, &notes, &notes])?;
    }
    Ok(world.recorded(from, false))
}

/// A file of others, to be sealed.
fn plan_seal(world: &mut World) -> Outcome<usize> {
    let weights = Weights::foreign(7, 30)?;
    let folder = tempfile::tempdir().map_err(text)?;
    std::fs::write(folder.path().join("model.safetensors"), weights.safetensors()?).map_err(text)?;
    world.known.insert(("sealed".to_owned(), 30), Arc::new(weights));
    world.works.push(Work::Seal { folder: Arc::new(folder), step: 30 });
    Ok(world.works.len() - 1)
}

fn seal(mut world: World) -> Outcome<Recording> {
    let before = world.plan("main", "1x1x1", 10)?;
    world.do_alone(&world.alone(1), before)?;
    let from = world.fs.operations();
    let work = plan_seal(&mut world)?;
    world.do_alone(&world.alone(2), work)?;
    Ok(world.recorded(from, false))
}

fn reshard(mut world: World) -> Outcome<Recording> {
    let before = world.plan("main", "2x1x1", 10)?;
    world.do_alone(&world.alone(1), before)?;
    let from = world.fs.operations();
    let weights = world.known.get(&("main".to_owned(), 10)).cloned().ok_or("no weights")?;
    world.known.insert(("other".to_owned(), 10), weights);
    world.works.push(Work::Reshard { mesh: "1x1x3" });
    world.do_alone(&world.alone(2), world.works.len() - 1)?;
    Ok(world.recorded(from, false))
}

/// Retires all but the newest of the run `main`, and collects what that leaves; with `orphans`, also what stopped saves have left, which
/// nobody may be writing then.
pub(super) fn collect(process: &Process, orphans: bool) -> Outcome<()> {
    let (root, run, options) = (&process.root, label("main")?, &process.options);
    retention::retire(root, &run, None, NonZeroUsize::MIN, options.clone()).map_err(text)?;
    let mut how = GcOptions::after(Duration::ZERO);
    if orphans {
        how.orphans_after = Duration::ZERO;
    }
    retention::collect(root, &run, None, &how, options.clone()).map_err(text)?;
    Ok(())
}

/// How many records there are, for whoever knows that all of them are durable.
fn records(process: &Process) -> Outcome<u64> {
    let log = Log::open_with(&process.root, process.options.clone()).map_err(text)?;
    Ok(log.head().map_or(0, Seq::get))
}

/// Three checkpoints, the last of them verified.
fn three(world: &mut World) -> Outcome<()> {
    for step in [10, 20, 30] {
        let work = world.plan("main", "1x1x1", step)?;
        world.do_alone(&world.alone(step), work)?;
    }
    let process = world.alone(1);
    let newest = Seq::new(3).map_err(text)?;
    retention::verified(&process.root, &label("main")?, None, newest, true, process.options).map_err(text)?;
    world.promise(Promise::Records(4));
    Ok(())
}

fn forget(mut world: World) -> Outcome<Recording> {
    three(&mut world)?;
    let (from, work) = (world.fs.operations(), world.plan("main", "1x1x1", 40)?);
    {
        let world = &world;
        let collects = |process: &Process| collect(process, false);
        let saves = |process: &Process| world.do_alone(process, work);
        world.together(&[&collects, &saves])?;
    }
    world.promise(Promise::Records(records(&world.alone(2))?));
    Ok(world.recorded(from, false))
}

/// One of these, as a schedule has it for a matter.
fn drawn<T: Copy>(schedule: u64, matter: u64, from: &[T]) -> Outcome<T> {
    let at = mixed(schedule ^ mixed(matter)) % (from.len() as u64).max(1);
    let found = usize::try_from(at).ok().and_then(|at| from.get(at)).copied();
    found.ok_or_else(|| "nothing to draw from".to_owned())
}

fn busy(mut world: World, schedule: u64) -> Outcome<Recording> {
    const MESHES: [(&str, u32); 6] =
        [("1x1x1", 1), ("2x1x1", 2), ("1x1x2", 2), ("1x1x3", 3), ("2x1x2", 4), ("1x1x4", 4)];
    let before = world.plan("main", drawn(schedule, 0, &MESHES)?.0, 10)?;
    world.do_alone(&world.alone(1), before)?;
    let from = world.fs.operations();
    for round in [1, 2] {
        let draw = |matter| drawn(schedule, 10 * round + matter, &MESHES);
        let ((mesh, ranks), (other, _)) = (draw(1)?, draw(2)?);
        let mine = world.plan("main", mesh, 10 + 10 * round)?;
        let theirs = world.plan("sweep", other, 15 + 10 * round)?;
        let patient = drawn(schedule, 10 * round + 3, &[1, 2])?;
        let (collects, notes) =
            drawn(schedule, 10 * round + 4, &[(true, false), (false, true), (true, true)])?;
        busy_round(&world, (mine, ranks, patient), theirs, (collects, notes))?;
    }
    world.promise(Promise::Records(records(&world.alone(2))?));
    Ok(world.recorded(from, false))
}

/// All ranks of `mine`, of which so many wait to commit, beside `theirs` and whoever else is there.
fn busy_round(
    world: &World,
    (mine, ranks, patient): (usize, u32, u32),
    theirs: usize,
    (collects, notes): (bool, bool),
) -> Outcome<()> {
    let share = |rank: u32| move |process: &Process| world.share(process, mine, rank, rank < patient);
    let shares: Vec<_> = (0..ranks).map(share).collect();
    let other = |process: &Process| world.do_alone(process, theirs);
    let collect = |process: &Process| collect(process, false);
    let note = |process: &Process| note(world, process);
    let mut things: Vec<Thing<'_>> = shares.iter().map(|share| share as Thing<'_>).collect();
    things.push(&other);
    if collects {
        things.push(&collect);
    }
    if notes {
        things.push(&note);
    }
    world.together(&things)
}

/// Notes in the log that the first checkpoint was verified; where somebody who collects has retired it by then, nothing is noted.
fn note(world: &World, process: &Process) -> Outcome<()> {
    let mut log = Log::open_with(&process.root, process.options.clone()).map_err(text)?;
    let action = Action::Verified(Verified { checkpoint: Seq::FIRST, whole: true });
    let draft = log.draft(&label("main")?, action).map_err(text)?;
    match log.append(&draft) {
        Ok(committed) => world.promise(Promise::Records(committed.seq.get())),
        Err(CommitError::Rejected { void: Void::NoCheckpoint(Seq::FIRST) }) => {}
        Err(error) => return Err(text(error)),
    }
    Ok(())
}

fn forget_continued(mut world: World, schedule: u64) -> Outcome<Option<Recording>> {
    three(&mut world)?;
    let killed = world.fs.killed_after(schedule);
    let ended = collect(&world.process(killed.clone(), 2), false);
    if !killed.is_killed() {
        return ended.map(|()| None);
    }
    let from = world.fs.operations();
    let process = world.alone(3);
    collect(&process, false)?;
    world.promise(Promise::Records(records(&process)?));
    let work = world.plan("main", "1x1x1", 40)?;
    world.do_alone(&process, work)?;
    Ok(Some(world.recorded(from, false)))
}

fn killed_save(world: &mut World) -> Outcome<usize> {
    world.plan("main", "1x1x2", 20)
}

fn killed_seal(world: &mut World) -> Outcome<usize> {
    plan_seal(world)
}

/// A process begins a work and is killed; another one goes on with it.
fn continued(
    mut world: World,
    schedule: u64,
    plan: &dyn Fn(&mut World) -> Outcome<usize>,
) -> Outcome<Option<Recording>> {
    let before = world.plan("main", "1x1x1", 10)?;
    world.do_alone(&world.alone(1), before)?;
    let work = plan(&mut world)?;
    let killed = world.fs.killed_after(schedule);
    let ended = world.do_alone(&world.process(killed.clone(), 2), work);
    if !killed.is_killed() {
        return ended.map(|()| None);
    }
    let from = world.fs.operations();
    world.do_alone(&world.process(world.fs.clone(), 3), work)?;
    let next = world.plan("main", "1x1x1", 40)?;
    world.do_alone(&world.alone(4), next)?;
    Ok(Some(world.recorded(from, false)))
}
