//! The actors: trainers that save, commit, tag, pin and retire; and a collector that takes whatever is not committed for garbage.

use std::collections::BTreeSet;

use bytes::Bytes;
use dcp::commit::{
    Action, Condemn, DirName, Epoch, Label, ManifestRef, Pin, Retire, Seq, Tag, Verified, Void,
};
use dcp::digest::Sha256Digest;
use dcp::store::ObjectPath;

use super::actor::{Actor, Outcome, Settled};

/// How many checkpoints of a run stay.
const KEPT: usize = 6;

/// A trainer: which one, of which run, how many checkpoints it commits, and whether it is one of two incarnations that take over from each
/// other.
#[derive(Debug, Clone)]
pub(super) struct Trainer {
    pub(super) name: String,
    pub(super) run: Label,
    pub(super) commits: u64,
    pub(super) rivals: bool,
}

/// The bytes of a checkpoint: a function of its folder, so that anyone can check them.
pub(super) fn data_of(dir: &str) -> Bytes {
    Bytes::from(format!("the weights of {dir}").repeat(3))
}

/// The name of a try at a checkpoint.
fn attempt(trainer: &Trainer, n: u64, again: u64) -> Outcome<DirName> {
    Ok(format!("step-{n:08}-{}-{again}", trainer.name).parse()?)
}

fn commit(dir: &DirName, step: u64) -> Action {
    let bytes = data_of(dir.as_str());
    let manifest = ManifestRef { sha256: Sha256Digest::of(&bytes), size: bytes.len() as u64 };
    Action::Commit(super::commit_of(step, dir, manifest))
}

/// Runs a trainer to its end; how many checkpoints it committed.
pub(super) fn train(actor: &mut Actor, trainer: &Trainer) -> Outcome<u64> {
    let (mut epoch, mut parent, mut committed) = (None, None, 0);
    for n in 0..trainer.commits {
        if trainer.rivals && epoch.is_none() {
            epoch = Some(begin(actor, &trainer.run)?);
        }
        let mut again = 0;
        loop {
            let dir = attempt(trainer, n, again)?;
            actor.put_data(dir.as_str(), &data_of(dir.as_str()))?;
            // Now and then it is stopped here for so long that the collector takes its folder for garbage.
            if actor.one_in(12) {
                let turn = actor.turn.clone();
                turn.wait(500 + actor.chance.below(2_500));
            }
            // What it goes on from: only its own incarnation commits to the run, so a fork would be a false alarm.
            match actor.settle(&trainer.run, epoch, parent, commit(&dir, n))? {
                Settled::Landed(seq) => {
                    (parent, committed) = (Some(seq), committed + 1);
                    break;
                }
                Settled::GivenUp => {}
                Settled::Refused(Void::Condemned { .. }) => actor.said.condemned += 1,
                Settled::Refused(Void::Fenced { .. }) => {
                    actor.said.fenced += 1;
                    (epoch, parent) = (Some(begin(actor, &trainer.run)?), None);
                }
                Settled::Refused(void) => return Err(format!("{}: refused: {void}", trainer.name).into()),
            }
            again += 1;
        }
        if let Some(seq) = parent {
            let mut fenced = false;
            for action in chores(actor, trainer, n, seq) {
                let settled = actor.settle(&trainer.run, epoch, None, action)?;
                fenced |= matches!(settled, Settled::Refused(Void::Fenced { .. }));
            }
            if fenced {
                actor.said.fenced += 1;
                (epoch, parent) = (None, None);
            }
        }
        if trainer.rivals && actor.one_in(20) {
            (epoch, parent) = (None, None);
        }
        if actor.one_in(30) {
            actor.reopen()?;
        }
    }
    Ok(committed)
}

/// Begins an incarnation.
fn begin(actor: &mut Actor, run: &Label) -> Outcome<u64> {
    loop {
        if let Settled::Landed(seq) = actor.settle(run, None, None, Action::Epoch(Epoch {}))? {
            let record = actor.sure(|actor| actor.log.read(seq))?;
            if let Some(entry) = record {
                return Ok(entry.record.epoch);
            }
            // Not shown yet; the next incarnation will do as well.
        }
    }
}

/// What else is done after commit number `n`.
fn chores(actor: &mut Actor, trainer: &Trainer, n: u64, seq: Seq) -> Vec<Action> {
    let mut chores = Vec::new();
    let name: Option<Label> = format!("{}-best", trainer.name).parse().ok();
    if n % 9 == 4 {
        chores.extend(name.map(|name| Action::Tag(Tag { name, checkpoint: seq })));
    }
    if n % 8 == 3 {
        chores.push(Action::Verified(Verified { checkpoint: seq, whole: true }));
    }
    if n % 16 == 5 {
        chores.push(Action::Pin(Pin { checkpoint: seq, held: true }));
    }
    let state = actor.log.state();
    let of_run: Vec<_> = state.checkpoints.iter().filter(|(_, c)| c.run == trainer.run).collect();
    let old = of_run.iter().rev().skip(KEPT);
    if n.is_multiple_of(16) {
        let pinned = old.clone().filter(|(_, c)| c.pinned);
        chores.extend(pinned.map(|(seq, _)| Action::Pin(Pin { checkpoint: **seq, held: false })));
    }
    let held = |seq: &Seq| state.tags.values().any(|tagged| tagged == seq);
    let newest_verified = of_run.iter().rev().find(|(_, c)| c.verified.is_some()).map(|(seq, _)| **seq);
    let free = old.filter(|(seq, c)| !c.pinned && !held(seq) && newest_verified != Some(**seq));
    chores.extend(free.map(|(seq, _)| Action::Retire(Retire { checkpoint: **seq })));
    chores
}

/// Condemns every folder that no checkpoint has, and deletes what is condemned, again and again, until all others have ended.
pub(super) fn collect(actor: &mut Actor, run: &Label, done: impl Fn() -> bool) -> Outcome<()> {
    while !done() {
        actor.turn.wait(150);
        let listed = actor.sure(|actor| Ok(actor.root.list_dir(None)?))?;
        let dirs: Vec<DirName> = listed.dirs.iter().filter_map(|dir| dir.as_ref().parse().ok()).collect();
        while actor.log.refresh().is_err() {}
        let state = actor.log.state();
        let condemned: BTreeSet<DirName> = dirs
            .iter()
            .filter(|dir| state.user_of(dir).is_none() && !state.condemned.contains_key(*dir))
            .cloned()
            .collect();
        for dir in condemned {
            // One by one: a folder that was committed meanwhile must not save the others.
            let action = Action::Condemn(Condemn { directories: [dir].into() });
            actor.settle(run, None, None, action)?;
        }
        actor.sure_proven()?;
        for dir in dirs.iter().filter(|dir| actor.log.state().condemned.contains_key(*dir)) {
            let path = ObjectPath::from(dir.as_str());
            if actor.root.delete_all(&path).is_ok() {
                actor.said.deleted += 1;
            }
        }
        if actor.one_in(4) {
            actor.reopen()?;
        }
    }
    Ok(())
}

impl Actor {
    /// Proves the state, however often a read fails.
    fn sure_proven(&mut self) -> Outcome<()> {
        for _ in 0..1_000 {
            if self.log.prove().is_ok() {
                return Ok(());
            }
        }
        Err("the log could not be proven".into())
    }
}
