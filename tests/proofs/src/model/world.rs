//! One state of the model: the log, the folders, and where every actor is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::SystemTime;

use dcp::commit::{
    Action, Condemn, DirName, FORMAT, Label, ManifestRef, Record, Retire, RootId, Seq, State, Verified,
};
use dcp::digest::Sha256Digest;
use dcp::retention::{Decision, Policy, Stay, Times, plan};
use dcp::store::Nonce;

use super::Mutation;

/// Tries at a checkpoint that each writer has, and with that its folders.
pub(super) const TRIES: u8 = 2;

/// Ticks between the condemnation of a folder and its deletion.
pub(super) const GRACE: u8 = 2;

/// What a record does. Folders and records are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// A checkpoint in a folder, which may refer to another one.
    Commit {
        dir: u8,
        also: Option<u8>,
    },
    Retire {
        seq: u8,
    },
    Condemn {
        dir: u8,
    },
    Verified {
        seq: u8,
    },
}

/// What is there of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Folder {
    pub(super) data: bool,
    pub(super) manifest: bool,
}

/// A writer: at which try, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    pub(super) attempt: u8,
    pub(super) also: Option<u8>,
    pub(super) at: At,
}

/// How far a writer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum At {
    Data,
    Manifest,
    Append,
    /// It put its record as this number, and does not know what became of it.
    Doubt {
        slot: u8,
    },
    Done,
}

/// The reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reader {
    Idle,
    /// It chose a checkpoint, and has read so many of its parts.
    Reading {
        seq: u8,
        dir: u8,
        also: Option<u8>,
        parts: u8,
        since: u8,
    },
    /// It read a checkpoint in full, and may say so in the log.
    Whole {
        seq: u8,
    },
    /// Something of the checkpoint was missing.
    Broken,
}

/// All there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// The log: what its records do, and when the store took them.
    pub(super) acts: Vec<Act>,
    pub(super) times: Vec<u8>,
    pub(super) folders: Vec<Folder>,
    pub(super) writers: Vec<Writer>,
    /// How much of the log the collector has seen; nothing, before it looks.
    pub(super) view: Option<u8>,
    pub(super) reader: Reader,
    pub(super) reads: u8,
    /// Puts that failed and may land yet: number, and record.
    pub(super) late: Vec<(u8, Act)>,
    pub(super) now: u8,
    /// Crashes and lost answers that are still to be had.
    pub(super) crashes: u8,
    pub(super) losses: u8,
    /// Folders whose commit was acknowledged, as bits.
    pub(super) acknowledged: u8,
    /// Folders whose writer was told that they are condemned, as bits.
    pub(super) refused: u8,
}

fn seq(number: u8) -> Seq {
    Seq::new(u64::from(number)).unwrap_or(Seq::FIRST)
}

/// The name of a folder.
pub(super) fn name(dir: u8) -> Option<DirName> {
    format!("step-{dir}").parse().ok()
}

pub(super) fn run() -> Option<Label> {
    "main".parse().ok()
}

/// The record of an entry, as number `number`.
pub(super) fn record(number: u8, act: Act) -> Option<Record> {
    let action = match act {
        Act::Commit { dir, also } => {
            let manifest = ManifestRef { sha256: Sha256Digest::from_bytes([dir; 32]), size: 1 };
            let attempt = name(dir)?;
            let directories = also.and_then(name).into_iter().chain([attempt.clone()]);
            Action::Commit(crate::values::commit(u64::from(dir), &attempt, manifest, directories))
        }
        Act::Retire { seq: of } => Action::Retire(Retire { checkpoint: seq(of) }),
        Act::Condemn { dir } => Action::Condemn(Condemn { directories: [name(dir)?].into() }),
        Act::Verified { seq: of } => Action::Verified(Verified { checkpoint: seq(of), whole: true }),
    };
    Some(Record {
        format: FORMAT,
        must_understand: Vec::new(),
        root: RootId::new(Nonce::from_bits(1)),
        seq: seq(number),
        prev: None,
        nonce: Nonce::from_bits(u128::from(number)),
        writer: String::new(),
        time_ms: 0,
        run: run()?,
        epoch: 0,
        parent: None,
        action,
        state: None,
    })
}

/// Takes a record in by the real rules, or without the one that the mutation leaves out. Whether it had an effect.
pub(super) fn apply(state: &mut State, record: &Record, mutation: Mutation) -> bool {
    match (&record.action, mutation) {
        (Action::Commit(_), Mutation::CondemnedNotChecked) => {
            let condemned = std::mem::take(&mut state.condemned);
            let applied = state.apply(record).is_ok();
            state.condemned = condemned;
            applied
        }
        (Action::Retire(retire), Mutation::NewestVerifiedNotKept) => {
            let mut unverified = state.clone();
            if let Some(checkpoint) = unverified.checkpoints.get_mut(&retire.checkpoint) {
                checkpoint.verified = None;
            }
            let applied = unverified.apply(record).is_ok();
            if applied {
                *state = unverified;
            }
            applied
        }
        _ => state.apply(record).is_ok(),
    }
}

/// What a log amounts to, and what the steps and the properties ask of it. Folders are bits.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    state: State,
    /// Whether the last record had an effect.
    pub(super) applied: bool,
    /// The newest checkpoint: its record, its folder, and the other folder that it needs.
    pub(super) newest: Option<(u8, u8, Option<u8>)>,
    /// The records of those that the policy lets go.
    pub(super) going: Vec<u8>,
    /// Folders of which a checkpoint that exists needs the bytes, and the manifest.
    pub(super) data: u8,
    pub(super) manifests: u8,
    /// The record that condemned each folder.
    pub(super) condemned: [Option<u8>; 8],
    /// Folders that were ever committed with effect, and those that were so twice.
    pub(super) committed: u8,
    pub(super) twice: u8,
    /// Folders that the log still knows, as those of checkpoints that exist, that were retired, or that are condemned.
    pub(super) known: u8,
    newest_verified: Option<Seq>,
    /// Whether the newest verified checkpoint never went before a newer one was verified.
    pub(super) verified_stayed: bool,
}

impl Facts {
    fn empty() -> Self {
        Self { verified_stayed: true, ..Self::default() }
    }

    /// The facts after one more record.
    fn and(&self, number: u8, act: Act, mutation: Mutation) -> Self {
        let mut next = self.clone();
        next.applied = record(number, act).is_some_and(|record| apply(&mut next.state, &record, mutation));
        if let Act::Commit { dir, .. } = act {
            next.twice |= self.committed & (1 << dir);
            next.committed |= u8::from(next.applied) << dir;
        }
        next.look(mutation);
        next.verified_stayed &= next.newest_verified >= self.newest_verified;
        next
    }

    fn look(&mut self, mutation: Mutation) {
        let state = &self.state;
        let small = |seq: &Seq| u8::try_from(seq.get()).unwrap_or(u8::MAX);
        let run = run();
        let times = Times::new([], SystemTime::UNIX_EPOCH);
        let decisions = run.as_ref().map(|run| plan(state, run, &times, &Policy::last(NonZeroUsize::MIN)));
        let decisions = decisions.unwrap_or_default();
        let kept = |it: &Decision| match mutation {
            Mutation::NewestVerifiedNotKept => it.stays.iter().any(|why| *why != Stay::NewestVerified),
            _ => it.is_kept(),
        };
        self.going = decisions.iter().filter(|it| !kept(it)).map(|it| small(&it.seq)).collect();
        self.newest_verified =
            state.checkpoints.iter().rev().find(|(_, it)| it.verified.is_some()).map(|(seq, _)| *seq);
        let named: Vec<(u8, DirName)> = (0..8).filter_map(|dir| Some((dir, name(dir)?))).collect();
        let bits = |of: &dyn Fn(&DirName) -> bool| {
            named.iter().filter(|(_, it)| of(it)).fold(0, |bits, (dir, _)| bits | 1 << dir)
        };
        self.data = bits(&|it| state.user_of(it).is_some());
        self.manifests = bits(&|it| state.checkpoints.values().any(|checkpoint| checkpoint.attempt == *it));
        self.known = bits(&|it| state.committed(it).is_some() || state.condemned.contains_key(it));
        for (slot, (_, it)) in self.condemned.iter_mut().zip(&named) {
            *slot = state.condemned.get(it).map(small);
        }
        self.newest = run.as_ref().and_then(|run| {
            let (seq, checkpoint) = state.newest(run)?;
            let (dir, _) = named.iter().find(|(_, it)| *it == checkpoint.attempt)?;
            let also = named.iter().find(|(other, it)| other != dir && checkpoint.directories.contains(it));
            Some((small(&seq), *dir, also.map(|(other, _)| *other)))
        });
    }
}

type Known = HashMap<Vec<Act>, Rc<Facts>>;

thread_local! {
    /// There are far fewer logs than worlds. One map for each mutation.
    static KNOWN: RefCell<HashMap<Mutation, Known>> = RefCell::default();
}

fn facts(known: &mut Known, acts: &[Act], mutation: Mutation) -> Rc<Facts> {
    if let Some(facts) = known.get(acts) {
        return Rc::clone(facts);
    }
    let made = match acts.split_last() {
        None => Rc::new(Facts::empty()),
        Some((last, before)) => {
            let number = u8::try_from(acts.len()).unwrap_or(u8::MAX);
            Rc::new(facts(known, before, mutation).and(number, *last, mutation))
        }
    };
    known.insert(acts.to_vec(), Rc::clone(&made));
    made
}

impl World {
    /// What the first `length` records amount to.
    pub(super) fn facts(&self, length: u8, mutation: Mutation) -> Rc<Facts> {
        let acts = self.acts.get(..usize::from(length)).unwrap_or(&self.acts);
        KNOWN.with_borrow_mut(|known| facts(known.entry(mutation).or_default(), acts, mutation))
    }

    /// What all records amount to.
    pub(super) fn head(&self, mutation: Mutation) -> Rc<Facts> {
        self.facts(self.length(), mutation)
    }

    pub(super) fn length(&self) -> u8 {
        u8::try_from(self.acts.len()).unwrap_or(u8::MAX)
    }

    /// Whether the record would have an effect now.
    pub(super) fn judged(&self, act: Act, mutation: Mutation) -> bool {
        let mut acts = self.acts.clone();
        acts.push(act);
        KNOWN.with_borrow_mut(|known| facts(known.entry(mutation).or_default(), &acts, mutation).applied)
    }

    pub(super) fn folder(&self, dir: u8) -> Folder {
        self.folders.get(usize::from(dir)).copied().unwrap_or_default()
    }

    /// The folders that have something, as bits.
    pub(super) fn bits(&self, of: impl Fn(&Folder) -> bool) -> u8 {
        (0_u8..).zip(&self.folders).filter(|(_, it)| of(it)).fold(0, |bits, (dir, _)| bits | 1 << dir)
    }

    pub(super) fn land(&mut self, act: Act) {
        self.acts.push(act);
        self.times.push(self.now);
        // A put at a number that is taken lands no more.
        let length = self.length();
        self.late.retain(|(slot, _)| *slot > length);
    }
}
