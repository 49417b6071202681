//! What a root should be after each step: plain maps of numbers and names, written down from the rules of `dcp/FORMAT.md` and sharing no
//! code with the log.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

/// Handles on the log that go on for long; each sees what others add when it next writes.
pub(super) const HANDLES: usize = 2;

/// Something that is done to a root.
#[derive(Debug, Clone)]
pub(super) enum Move {
    /// The bytes of an attempt are written, and nothing else: its writer has died, or sleeps.
    Write {
        dir: u8,
    },
    /// A writer writes the bytes and commits; `handle` is a live one, or a fresh one.
    Commit {
        handle: usize,
        run: u8,
        dir: u8,
        also: Option<u8>,
        epoch: Option<u64>,
        parent: Option<u64>,
        step: u64,
    },
    /// A writer appends a record and dies before it is answered; another worker commits the same attempt.
    CommitTwice {
        run: u8,
        dir: u8,
    },
    Epoch {
        handle: usize,
        run: u8,
    },
    Tag {
        handle: usize,
        name: u8,
        checkpoint: u64,
    },
    Untag {
        handle: usize,
        name: u8,
    },
    Pin {
        handle: usize,
        checkpoint: u64,
        held: bool,
    },
    Verified {
        handle: usize,
        checkpoint: u64,
        whole: bool,
    },
    Retire {
        handle: usize,
        checkpoint: u64,
    },
    Condemn {
        handle: usize,
        dir: u8,
    },
    /// A collector deletes a folder, if the log says that it may.
    Delete {
        dir: u8,
    },
    /// A process is restarted.
    Reopen {
        handle: usize,
    },
    /// The head hint is lost, damaged, or one from long ago.
    HintLost,
    HintDamaged,
    HintKept,
    HintOld,
}

/// What the log should answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing is asked of the log.
    Nothing,
    Landed(u64),
    /// It was there before.
    Before(u64),
    /// It would be void.
    Refused(&'static str),
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) run: u8,
    pub(super) dir: u8,
    pub(super) step: u64,
    pub(super) needs: BTreeSet<u8>,
    pub(super) pinned: bool,
    pub(super) verified: bool,
    /// What it goes on from, if that existed when it was committed.
    from: Option<u64>,
}

/// The root.
#[derive(Debug, Clone, Default)]
pub(super) struct Reference {
    pub(super) head: u64,
    pub(super) live: BTreeMap<u64, Kept>,
    /// All that ever were.
    all: BTreeMap<u64, Kept>,
    pub(super) retired: BTreeSet<u8>,
    pub(super) condemned: BTreeSet<u8>,
    pub(super) tags: BTreeMap<u8, u64>,
    /// Epoch and tip of each run.
    pub(super) runs: BTreeMap<u8, (u64, Option<u64>)>,
    /// Folders whose bytes are there.
    pub(super) there: BTreeSet<u8>,
    /// What the last step should have been answered, and the one after it where there were two.
    pub(super) answers: Vec<Answer>,
}

impl Reference {
    pub(super) fn epoch(&self, run: u8) -> u64 {
        self.runs.get(&run).map_or(0, |(epoch, _)| *epoch)
    }

    /// From the newest checkpoint of a run back over what it goes on from.
    pub(super) fn line(&self, run: u8) -> Vec<u64> {
        let mut line = Vec::new();
        let mut next = self.live.iter().rev().find(|(_, it)| it.run == run).map(|(seq, _)| *seq);
        while let Some(seq) = next {
            if self.live.contains_key(&seq) {
                line.push(seq);
            }
            next = self.all.get(&seq).and_then(|it| it.from);
        }
        line
    }

    pub(super) fn newest_verified(&self, run: u8) -> Option<u64> {
        self.live.iter().rev().find(|(_, it)| it.run == run && it.verified).map(|(seq, _)| *seq)
    }

    fn user_of(&self, dir: u8) -> bool {
        self.live.values().any(|it| it.dir == dir || it.needs.contains(&dir))
    }

    fn landed(&mut self) -> Answer {
        self.head += 1;
        Answer::Landed(self.head)
    }

    fn commit(
        &mut self,
        run: u8,
        dir: u8,
        also: Option<u8>,
        epoch: Option<u64>,
        parent: Option<u64>,
        step: u64,
    ) -> Answer {
        let before = self.all.iter().find(|(_, it)| it.dir == dir).map(|(seq, _)| *seq);
        if let Some(seq) = before.filter(|seq| self.live.contains_key(seq) || self.retired.contains(&dir)) {
            return Answer::Before(seq);
        }
        let current = self.epoch(run);
        let epoch = epoch.unwrap_or(current);
        if epoch < current {
            return Answer::Refused("fenced");
        }
        if self.condemned.contains(&dir) || also.is_some_and(|also| self.condemned.contains(&also)) {
            return Answer::Refused("condemned");
        }
        let tip = self.runs.get(&run).filter(|(at, _)| *at == epoch).and_then(|(_, tip)| *tip);
        if tip.is_some() && parent.is_some() && parent != tip {
            return Answer::Refused("forked");
        }
        if parent.is_some_and(|parent| parent > self.head) {
            return Answer::Refused("no checkpoint");
        }
        let landed = self.landed();
        let from = parent.filter(|parent| self.live.contains_key(parent));
        let needs = also.into_iter().chain([dir]).collect();
        let kept = Kept { run, dir, step, needs, pinned: false, verified: false, from };
        self.live.insert(self.head, kept.clone());
        self.all.insert(self.head, kept);
        self.runs.insert(run, (epoch, Some(self.head)));
        landed
    }

    fn on(&mut self, checkpoint: u64, change: impl FnOnce(&mut Kept)) -> Answer {
        match self.live.get_mut(&checkpoint) {
            None => Answer::Refused("no checkpoint"),
            Some(kept) => {
                change(kept);
                self.landed()
            }
        }
    }

    fn retire(&mut self, checkpoint: u64) -> Answer {
        let Some(kept) = self.live.get(&checkpoint).cloned() else { return Answer::Refused("no checkpoint") };
        if kept.pinned || self.tags.values().any(|tagged| *tagged == checkpoint) {
            return Answer::Refused("held");
        }
        if self.newest_verified(kept.run) == Some(checkpoint) {
            return Answer::Refused("newest verified");
        }
        self.live.remove(&checkpoint);
        self.retired.insert(kept.dir);
        self.landed()
    }

    fn condemn(&mut self, dir: u8) -> Answer {
        if self.user_of(dir) {
            return Answer::Refused("in use");
        }
        self.retired.remove(&dir);
        self.condemned.insert(dir);
        self.landed()
    }

    fn step(&mut self, step: &Move) -> Vec<Answer> {
        let one = match *step {
            Move::Write { dir } => {
                self.there.insert(dir);
                Answer::Nothing
            }
            Move::Commit { run, dir, also, epoch, parent, step, .. } => {
                self.there.insert(dir);
                self.commit(run, dir, also, epoch, parent, step)
            }
            Move::CommitTwice { run, dir } => {
                self.there.insert(dir);
                let first = self.commit(run, dir, None, None, None, 0);
                let second = match first {
                    Answer::Landed(seq) => Answer::Before(seq),
                    ref same => same.clone(),
                };
                return vec![first, second];
            }
            Move::Epoch { run, .. } => {
                let next = self.epoch(run) + 1;
                self.runs.insert(run, (next, None));
                self.landed()
            }
            Move::Tag { name, checkpoint, .. } => {
                let answer = self.on(checkpoint, |_| {});
                if answer != Answer::Refused("no checkpoint") {
                    self.tags.insert(name, checkpoint);
                }
                answer
            }
            Move::Untag { name, .. } => match self.tags.remove(&name) {
                None => Answer::Refused("no tag"),
                Some(_) => self.landed(),
            },
            Move::Pin { checkpoint, held, .. } => self.on(checkpoint, |kept| kept.pinned = held),
            Move::Verified { checkpoint, whole, .. } => self.on(checkpoint, |kept| kept.verified = whole),
            Move::Retire { checkpoint, .. } => self.retire(checkpoint),
            Move::Condemn { dir, .. } => self.condemn(dir),
            Move::Delete { dir } => {
                if self.condemned.contains(&dir) {
                    self.there.remove(&dir);
                }
                Answer::Nothing
            }
            Move::Reopen { .. } | Move::HintLost | Move::HintDamaged | Move::HintKept | Move::HintOld => {
                Answer::Nothing
            }
        };
        vec![one]
    }
}

impl ReferenceStateMachine for Reference {
    type State = Self;
    type Transition = Move;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Move> {
        // Few runs, folders and names, so that steps meet; numbers a little beyond what there is.
        let (handle, run, dir, name) = (0..=HANDLES, 0..2_u8, 0..10_u8, 0..3_u8);
        let checkpoint = 1..state.head + 3;
        let epoch =
            prop_oneof![3 => Just(None), 2 => (0..state.epoch(0).max(state.epoch(1)) + 2).prop_map(Some)];
        let tips: Vec<Option<u64>> = state.runs.values().map(|(_, tip)| *tip).chain([None]).collect();
        let parent = prop_oneof![4 => proptest::sample::select(tips), 1 => checkpoint.clone().prop_map(Some)];
        let also = prop_oneof![3 => Just(None), 1 => dir.clone().prop_map(Some)];
        let commit = (handle.clone(), run.clone(), dir.clone(), also, epoch, parent, 0..100_u64);
        prop_oneof![
            1 => dir.clone().prop_map(|dir| Move::Write { dir }),
            10 => commit.prop_map(|(handle, run, dir, also, epoch, parent, step)| {
                Move::Commit { handle, run, dir, also, epoch, parent, step }
            }),
            2 => (run.clone(), dir.clone()).prop_map(|(run, dir)| Move::CommitTwice { run, dir }),
            1 => (handle.clone(), run).prop_map(|(handle, run)| Move::Epoch { handle, run }),
            2 => (handle.clone(), name.clone(), checkpoint.clone())
                .prop_map(|(handle, name, checkpoint)| Move::Tag { handle, name, checkpoint }),
            1 => (handle.clone(), name).prop_map(|(handle, name)| Move::Untag { handle, name }),
            2 => (handle.clone(), checkpoint.clone(), any::<bool>())
                .prop_map(|(handle, checkpoint, held)| Move::Pin { handle, checkpoint, held }),
            3 => (handle.clone(), checkpoint.clone(), any::<bool>())
                .prop_map(|(handle, checkpoint, whole)| Move::Verified { handle, checkpoint, whole }),
            4 => (handle.clone(), checkpoint).prop_map(|(handle, checkpoint)| Move::Retire { handle, checkpoint }),
            2 => (handle.clone(), dir.clone()).prop_map(|(handle, dir)| Move::Condemn { handle, dir }),
            2 => dir.prop_map(|dir| Move::Delete { dir }),
            1 => (0..HANDLES).prop_map(|handle| Move::Reopen { handle }),
            1 => prop_oneof![
                Just(Move::HintLost),
                Just(Move::HintDamaged),
                Just(Move::HintKept),
                Just(Move::HintOld)
            ],
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Move) -> Self {
        state.answers = state.step(step);
        state
    }
}
