//! The rounds: what is running when it is killed, and what must be there afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{
    child::Found,
    running::{Ended, Phase, Running, Starter},
};
use crate::chance::mixed;
use crate::weights::Outcome;

/// What is killed in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A process that saves alone.
    Save,
    /// Some of three processes that save one checkpoint together.
    Writers,
    /// A process that reshards by the library, within the root.
    Reshard,
    /// `ckpt reshard`, into a root of its own.
    Ckpt,
    /// A process that retires, condemns and deletes.
    Forget,
    /// The same, while another process saves.
    ForgetBesideSave,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Save, Self::Writers, Self::Reshard, Self::Ckpt, Self::Forget, Self::ForgetBesideSave];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Writers => "writers",
            Self::Reshard => "reshard",
            Self::Ckpt => "ckpt reshard",
            Self::Forget => "forget",
            Self::ForgetBesideSave => "forget beside save",
        }
    }
}

/// A root, and what is known about it.
#[derive(Debug)]
pub(crate) struct Field {
    starter: Starter,
    ckpt: Option<PathBuf>,
    chance: u64,
    step: u64,
    /// Steps of the run `main` that were committed, and that nobody has begun to forget.
    promised: BTreeSet<u64>,
    /// Steps that may be there as well.
    possible: BTreeSet<u64>,
    /// How long each kind takes when nobody kills it.
    pub(crate) times: BTreeMap<Kind, Duration>,
    /// Kills that found a process running, by kind and phase.
    pub(crate) kills: BTreeMap<(Kind, Phase), u64>,
    pub(crate) late: u64,
    /// Files of killed processes that those who went on have kept.
    pub(crate) kept: u64,
    pub(crate) orphans: u64,
    pub(crate) looks: u64,
}

impl Field {
    pub(crate) fn new(starter: Starter, ckpt: Option<PathBuf>, seed: u64) -> Self {
        let (promised, possible, times, kills) = Default::default();
        let (step, late, kept, orphans, looks) = Default::default();
        Self {
            starter,
            ckpt,
            chance: mixed(seed),
            step,
            promised,
            possible,
            times,
            kills,
            late,
            kept,
            orphans,
            looks,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.chance = mixed(self.chance);
        (self.chance >> 16).checked_rem(below).unwrap_or(0)
    }

    /// How many kills found a process running.
    pub(crate) fn killed(&self) -> u64 {
        self.kills.values().sum()
    }

    /// When to kill a process of that kind.
    fn age(&mut self, kind: Kind) -> Duration {
        let whole = self.times.get(&kind).copied().unwrap_or(Duration::from_millis(50));
        let micros = u64::try_from(whole.as_micros()).unwrap_or(50_000);
        Duration::from_micros(self.draw(micros))
    }

    fn count(&mut self, kind: Kind, ended: &Ended) {
        if ended.killed {
            *self.kills.entry((kind, ended.phase)).or_default() += 1;
        } else {
            self.late += 1;
        }
    }

    /// Does one of each kind that nobody kills, and takes the time.
    pub(crate) fn measure(&mut self) -> Outcome<()> {
        for _ in 0..2 {
            self.step += 1;
            let time = self.save(self.step, "0,1,2,3")?.ends()?.well("a save")?.time;
            self.committed(self.step);
            self.times.extend([(Kind::Save, time), (Kind::Writers, time)]);
        }
        let time = self.reshard("1x1x3")?.ends()?.well("a reshard")?.time;
        self.times.insert(Kind::Reshard, time);
        if let Some(running) = self.ckpt("1x1x3")? {
            let time = running.ends()?.well("ckpt reshard")?.time;
            self.times.insert(Kind::Ckpt, time);
        }
        let time = self.forget()?.ends()?.well("a collection")?.time;
        self.times.extend([(Kind::Forget, time), (Kind::ForgetBesideSave, time)]);
        self.only_newest();
        self.look("after one of each kind", false).map(drop)
    }

    fn committed(&mut self, step: u64) {
        self.promised.insert(step);
    }

    fn only_newest(&mut self) {
        let newest = self.promised.last().copied();
        self.promised.retain(|step| Some(*step) == newest);
        self.possible.clear();
    }

    fn save(&mut self, step: u64, ranks: &str) -> Outcome<Running> {
        let (chance, step) = (self.draw(1 << 40), step.to_string());
        self.starter.task("save", chance, &["--mesh", "2x1x2", "--step", &step, "--ranks", ranks])
    }

    fn reshard(&mut self, mesh: &str) -> Outcome<Running> {
        let chance = self.draw(1 << 40);
        self.starter.task("reshard", chance, &["--mesh", mesh])
    }

    fn forget(&mut self) -> Outcome<Running> {
        let chance = self.draw(1 << 40);
        self.starter.task("forget", chance, &[])
    }

    /// The root that `ckpt` writes into.
    fn target(&self) -> PathBuf {
        self.starter.root.with_file_name("target")
    }

    fn ckpt(&self, mesh: &str) -> Outcome<Option<Running>> {
        let Some(ckpt) = &self.ckpt else { return Ok(None) };
        let mut command = Command::new(ckpt);
        command.arg("reshard").arg(format!("{}@latest", self.starter.root.display())).arg(self.target());
        command.args(["--to", mesh]);
        Running::start(&mut command).map(Some)
    }

    /// One round.
    pub(crate) fn round(&mut self, kind: Kind) -> Outcome<()> {
        match kind {
            Kind::Save => self.round_save(),
            Kind::Writers => self.round_writers(),
            Kind::Reshard => self.round_reshard(),
            Kind::Ckpt => self.round_ckpt(),
            Kind::Forget => self.round_forget(),
            Kind::ForgetBesideSave => self.round_forget_beside_save(),
        }
    }

    fn round_save(&mut self) -> Outcome<()> {
        self.step += 1;
        let (step, age) = (self.step, self.age(Kind::Save));
        let ended = self.save(step, "0,1,2,3")?.killed_at(age)?;
        self.after_save(Kind::Save, step, &[&ended])?;
        self.go_on(step)
    }

    fn round_writers(&mut self) -> Outcome<()> {
        self.step += 1;
        let step = self.step;
        let running = ["0,1", "2", "3"].map(|ranks| self.save(step, ranks));
        // Two of the three are killed, or all of them.
        let spared = self.draw(4);
        let mut ages: Vec<(Duration, u64, Running)> = Vec::new();
        for (number, running) in (0..).zip(running) {
            ages.push((self.age(Kind::Writers), number, running?));
        }
        ages.sort_by_key(|(age, _, _)| *age);
        let (mut killed, mut left) = (Vec::new(), None);
        for (age, number, running) in ages {
            if number == spared { left = Some(running) } else { killed.push(running.killed_at(age)?) }
        }
        self.after_save(Kind::Writers, step, &killed.iter().collect::<Vec<_>>())?;
        // Another process goes on with the ranks that were killed; the one that was left waits, and commits as well.
        self.go_on(step)?;
        if let Some(left) = left {
            left.ends()?.well("a writer beside those that were killed")?;
        }
        Ok(())
    }

    fn after_save(&mut self, kind: Kind, step: u64, ended: &[&Ended]) -> Outcome<()> {
        self.possible.insert(step);
        for it in ended {
            self.count(kind, it);
            if !it.killed && !it.done {
                return Err(format!("a process failed by itself: {}", it.said));
            }
            if it.phase == Phase::After || it.done {
                self.committed(step);
            }
        }
        self.look("after the kill of a save", false).map(drop)
    }

    /// Another process goes on with a save that was killed, and commits it.
    fn go_on(&mut self, step: u64) -> Outcome<()> {
        let ended = self.save(step, "0,1,2,3")?.ends()?.well("going on with a save that was killed")?;
        self.kept += ended.kept();
        self.committed(step);
        let found = self.look("after going on with a save that was killed", false)?;
        match found.steps.get("main").and_then(|steps| steps.last()) {
            Some(newest) if *newest == step => Ok(()),
            newest => Err(format!("step {step} was committed, and {newest:?} is the newest")),
        }
    }

    fn round_reshard(&mut self) -> Outcome<()> {
        let mesh =
            ["1x1x3", "3x1x1", "1x1x4", "2x1x3"].into_iter().nth(usize::from(self.draw(4).to_le_bytes()[0]));
        let (mesh, age) = (mesh.unwrap_or("1x1x3"), self.age(Kind::Reshard));
        let ended = self.reshard(mesh)?.killed_at(age)?;
        self.count(Kind::Reshard, &ended);
        self.look("after the kill of a reshard", false)?;
        self.reshard(mesh)?.ends()?.well("going on with a reshard that was killed")?;
        let found = self.look("after going on with a reshard", false)?;
        let newest = |run: &str| found.steps.get(run).and_then(|steps| steps.last()).copied();
        if newest("other") == newest("main") { Ok(()) } else { Err("the reshard is not there".to_owned()) }
    }

    fn round_ckpt(&mut self) -> Outcome<()> {
        let (mesh, age) = (format!("1x1x{}", 2 + self.draw(5)), self.age(Kind::Ckpt));
        let before = self.target_found()?;
        let Some(running) = self.ckpt(&mesh)? else { return Ok(()) };
        let mut ended = running.killed_at(age)?;
        // It says nothing of where it is; what it left does.
        ended.phase = left(&self.target());
        self.count(Kind::Ckpt, &ended);
        let after = self.target_found()?;
        if after.records < before.records {
            return Err(format!(
                "{} records were there before a kill, {} after it",
                before.records, after.records
            ));
        }
        let Some(again) = self.ckpt(&mesh)? else { return Ok(()) };
        again.ends()?.well("ckpt reshard, again")?;
        let found = self.target_found()?;
        if found.records == 0 { Err("ckpt reshard has committed nothing".to_owned()) } else { Ok(()) }
    }

    fn target_found(&mut self) -> Outcome<Found> {
        self.looks += 1;
        if self.target().is_dir() { self.starter.look(&self.target(), false) } else { Ok(Found::default()) }
    }

    fn round_forget(&mut self) -> Outcome<()> {
        self.step += 1;
        self.save(self.step, "0,1,2,3")?.ends()?.well("a save")?;
        self.committed(self.step);
        self.begin_to_forget();
        let age = self.age(Kind::Forget);
        let ended = self.forget()?.killed_at(age)?;
        self.count(Kind::Forget, &ended);
        self.look("after the kill of a collection", false)?;
        self.forget()?.ends()?.well("going on with a collection that was killed")?;
        self.only_newest();
        self.look("after going on with a collection", false).map(drop)
    }

    fn round_forget_beside_save(&mut self) -> Outcome<()> {
        self.step += 1;
        let step = self.step;
        self.begin_to_forget();
        self.possible.insert(step);
        let (saving, age) = (self.save(step, "0,1,2,3")?, self.age(Kind::ForgetBesideSave));
        let ended = self.forget()?.killed_at(age)?;
        self.count(Kind::ForgetBesideSave, &ended);
        saving.ends()?.well("a save beside a collection that was killed")?;
        self.committed(step);
        self.look("after the kill of a collection beside a save", false)?;
        self.forget()?.ends()?.well("going on with a collection that was killed")?;
        self.only_newest();
        self.look("after a collection beside a save", false).map(drop)
    }

    /// From now on all but the newest may be gone at any time.
    fn begin_to_forget(&mut self) {
        let newest = self.promised.last().copied();
        self.possible.extend(self.promised.iter().copied());
        self.promised.retain(|step| Some(*step) == newest);
    }

    /// Another process reads everything.
    pub(crate) fn look(&mut self, when: &str, clean: bool) -> Outcome<Found> {
        self.looks += 1;
        let root = self.starter.root.clone();
        let found = self.starter.look(&root, clean).map_err(|error| format!("{when}: {error}"))?;
        let there: BTreeSet<u64> = found.steps.get("main").into_iter().flatten().copied().collect();
        if let Some(step) = self.promised.difference(&there).next() {
            return Err(format!("{when}: step {step} was committed and is gone"));
        }
        if let Some(step) =
            there.iter().find(|step| !self.promised.contains(step) && !self.possible.contains(step))
        {
            return Err(format!("{when}: step {step} is there, and should not be"));
        }
        self.orphans = self.orphans.max(found.orphans);
        Ok(found)
    }

    /// Nobody runs: after a collection and a sweep nothing is left but the checkpoints.
    pub(crate) fn is_clean(&mut self) -> Outcome<()> {
        self.forget()?.ends()?.well("a collection")?;
        self.only_newest();
        let found = self.look("after a collection and a sweep", true)?;
        if found.unfinished > 0 || found.attempts > 0 {
            return Err(format!(
                "{} unfinished files and {} attempts are left",
                found.unfinished, found.attempts
            ));
        }
        let target = self.target();
        if target.is_dir() {
            let left = self.starter.look(&target, true)?;
            if left.unfinished > 0 {
                return Err(format!("{} unfinished files are left in the target of ckpt", left.unfinished));
            }
        }
        Ok(())
    }

    /// The reader that knows nothing but the format.
    pub(crate) fn python(&self, python: &str) -> Outcome<()> {
        let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/native_reader.py");
        let mut command = Command::new(python);
        command.arg(reader).arg(&self.starter.root);
        Running::start(&mut command)?.ends()?.well("the Python reader").map(drop)
    }
}

/// How far the newest attempt in a root is, by what lies there.
fn left(root: &Path) -> Phase {
    let names = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_done =
        |path: &PathBuf| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let attempts = names(root).into_iter().filter(|path| path.join("data").is_dir());
    let changed = |path: &PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    let Some(newest) = attempts.max_by_key(changed) else { return Phase::Before };
    let manifest = names(&newest).iter().any(|path| path.extension().is_some_and(|it| it == "sqlite"));
    let parts = names(&newest.join("parts")).iter().filter(|path| is_done(path)).count();
    match (manifest, parts) {
        (true, _) => Phase::Record,
        (false, 0) => Phase::Blobs,
        (false, _) => Phase::Parts,
    }
}
