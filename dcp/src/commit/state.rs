//! What the records so far amount to, and what a further one would do to it.
//!
//! Only counts and names are in here, nothing that depends on when or where it is computed, so all readers have the same state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::metrics::Metrics;
use super::names::{DirName, Label};
use super::record::{Action, Commit, ManifestRef, Record};
use super::seq::Seq;

/// What the records up to some point amount to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The checkpoints that exist, by the record that committed them.
    pub checkpoints: BTreeMap<Seq, Checkpoint>,
    /// Attempts that were committed and retired, and are not condemned yet, with the record that committed them.
    pub retired: BTreeMap<DirName, Seq>,
    /// Names of checkpoints.
    pub tags: BTreeMap<Label, Seq>,
    /// Directories that are or will be deleted, with the record that condemned them. They stay for good, some 75 bytes each:
    ///
    /// * a writer may sleep for any time, and its commit is void only because its directory is in here; without it, a record that names deleted
    ///   files would stand;
    /// * the name of an attempt follows from its plan, and this tells which names were used and are gone for good;
    /// * every 64th record carries the state, and readers compare it with what they fold themselves: one that forgot a name by a rule that older
    ///   readers do not know would be a mixture of two roots to them. So a bound is a matter of a later format, not of this one.
    pub condemned: BTreeMap<DirName, Seq>,
    /// Where the runs are.
    pub runs: BTreeMap<Label, RunLine>,
    /// `checkpoints` by their attempts.
    #[serde(skip)]
    attempts: Attempts,
}

/// Which record committed each attempt that exists: made of the checkpoints when first asked for (readers never ask), and kept up from then
/// on. It says nothing of its own, so all of them are equal.
#[derive(Debug, Clone, Default)]
struct Attempts(OnceLock<HashMap<DirName, Seq>>);

impl PartialEq for Attempts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Attempts {}

/// A checkpoint that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The run that it belongs to.
    pub run: Label,
    /// The incarnation that wrote it.
    pub epoch: u64,
    /// The checkpoint that it goes on from.
    pub parent: Option<Seq>,
    /// The nearest of its ancestors that still exists.
    pub ancestor: Option<Seq>,
    /// The training step.
    pub step: u64,
    /// The directory of the attempt.
    pub attempt: DirName,
    /// The catalog.
    pub manifest: ManifestRef,
    /// All directories that it needs.
    pub directories: BTreeSet<DirName>,
    /// What its saver measured.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
    /// Whether it is protected from being retired.
    pub pinned: bool,
    /// The record that last said it was whole, unless a later one said it was not.
    pub verified: Option<Seq>,
}

/// Where a run is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLine {
    /// Its present incarnation.
    pub epoch: u64,
    /// What that incarnation committed last.
    pub tip: Option<Seq>,
}

/// Why a record has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Void {
    /// Its writer's incarnation of the run has ended.
    #[error(
        "run {run} is in epoch {current} by now, and this is of epoch {epoch}: another incarnation has taken over, stop this one"
    )]
    Fenced {
        /// The run.
        run: Label,
        /// The epoch of the record.
        epoch: u64,
        /// The epoch of the run.
        current: u64,
    },
    /// The attempt was committed before.
    #[error("attempt {attempt} was committed already, by record {seq}")]
    Repeated {
        /// The attempt.
        attempt: DirName,
        /// The record that committed it.
        seq: Seq,
    },
    /// It needs a directory that is or will be deleted.
    #[error(
        "directory {directory} was condemned by record {seq}, and may be deleted by now: write the checkpoint again"
    )]
    Condemned {
        /// The directory.
        directory: DirName,
        /// The record that condemned it.
        seq: Seq,
    },
    /// The run has gone on without its writer, in the same incarnation.
    #[error(
        "run {run} went on to record {tip}, and this goes on from {parent}: two writers act as one run; start the second with its own epoch"
    )]
    Forked {
        /// The run.
        run: Label,
        /// What it goes on from.
        parent: Seq,
        /// Where the run is.
        tip: Seq,
    },
    /// It is about a checkpoint that does not exist (any more).
    #[error("there is no checkpoint {0} (any more)")]
    NoCheckpoint(Seq),
    /// It is about a tag that does not exist.
    #[error("there is no tag {0}")]
    NoTag(Label),
    /// It retires a checkpoint that is tagged or pinned.
    #[error("checkpoint {0} is tagged or pinned; take that away first")]
    Held(Seq),
    /// It retires what the run would fall back to.
    #[error(
        "checkpoint {0} is the newest of its run that was verified, which always stays; verify a newer one first"
    )]
    NewestVerified(Seq),
    /// It condemns what a checkpoint needs.
    #[error("directory {directory} is needed by checkpoint {checkpoint}")]
    InUse {
        /// The directory.
        directory: DirName,
        /// The checkpoint.
        checkpoint: Seq,
    },
}

impl Void {
    /// Whether no record that comes in between could lift it.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::Fenced { .. } | Self::Repeated { .. } | Self::Condemned { .. })
    }
}

impl State {
    /// The newest checkpoint of a run: the one committed last, whatever its step.
    #[must_use]
    pub fn newest(&self, run: &Label) -> Option<(Seq, &Checkpoint)> {
        self.checkpoints.iter().rev().find(|(_, c)| c.run == *run).map(|(seq, c)| (*seq, c))
    }

    /// A run's checkpoints from the newest backwards, each followed by the nearest ancestor of it that exists: what to fall back to.
    pub fn line<'s>(&'s self, run: &Label) -> impl Iterator<Item = (Seq, &'s Checkpoint)> + use<'s> {
        // An ancestor has a smaller number, so this ends.
        std::iter::successors(self.newest(run), |(seq, c)| {
            let ancestor = c.ancestor.filter(|ancestor| ancestor < seq)?;
            self.checkpoints.get(&ancestor).map(|c| (ancestor, c))
        })
    }

    /// All the rest of it.
    pub(super) fn without_checkpoints(&self) -> Self {
        Self {
            checkpoints: BTreeMap::new(),
            retired: self.retired.clone(),
            tags: self.tags.clone(),
            condemned: self.condemned.clone(),
            runs: self.runs.clone(),
            attempts: Attempts::default(),
        }
    }

    /// The epoch of a run: 0 for one that is not known.
    #[must_use]
    pub fn epoch(&self, run: &Label) -> u64 {
        self.runs.get(run).map_or(0, |line| line.epoch)
    }

    /// The record that committed an attempt, unless its directory is condemned.
    #[must_use]
    pub fn committed(&self, attempt: &DirName) -> Option<Seq> {
        let live = || {
            // Backwards, so that the first of two that claim one attempt counts.
            let all = || self.checkpoints.iter().rev().map(|(seq, c)| (c.attempt.clone(), *seq)).collect();
            self.attempts.0.get_or_init(all).get(attempt).copied()
        };
        self.retired.get(attempt).copied().or_else(live)
    }

    /// The checkpoint that needs a directory.
    #[must_use]
    pub fn user_of(&self, directory: &DirName) -> Option<Seq> {
        self.checkpoints.iter().find(|(_, c)| c.needs(directory)).map(|(seq, _)| *seq)
    }

    /// Whether a record would have an effect here.
    ///
    /// # Errors
    /// Why it would have none.
    pub fn judge(&self, record: &Record) -> Result<(), Void> {
        self.check_epoch(record)?;
        match &record.action {
            Action::Commit(commit) => self.judge_commit(record, commit),
            Action::Retire(retire) => self.judge_retire(retire.checkpoint),
            Action::Condemn(condemn) => {
                condemn.directories.iter().try_for_each(|dir| match self.user_of(dir) {
                    Some(checkpoint) => Err(Void::InUse { directory: dir.clone(), checkpoint }),
                    None => Ok(()),
                })
            }
            Action::Tag(tag) => self.known(tag.checkpoint).map(drop),
            Action::Untag(untag) if self.tags.contains_key(&untag.name) => Ok(()),
            Action::Untag(untag) => Err(Void::NoTag(untag.name.clone())),
            Action::Pin(pin) => self.known(pin.checkpoint).map(drop),
            Action::Verified(verified) => self.known(verified.checkpoint).map(drop),
            Action::Epoch(_) => Ok(()),
        }
    }

    /// An incarnation must be newer than the one before; anything else must not be of an older one.
    fn check_epoch(&self, record: &Record) -> Result<(), Void> {
        let (epoch, current) = (record.epoch, self.epoch(&record.run));
        let begins = matches!(record.action, Action::Epoch(_));
        if epoch < current || (begins && epoch == current) {
            return Err(Void::Fenced { run: record.run.clone(), epoch, current });
        }
        Ok(())
    }

    fn judge_commit(&self, record: &Record, commit: &Commit) -> Result<(), Void> {
        if let Some(seq) = self.committed(&commit.attempt) {
            return Err(Void::Repeated { attempt: commit.attempt.clone(), seq });
        }
        for directory in commit.directories.iter().chain([&commit.attempt]) {
            if let Some(&seq) = self.condemned.get(directory) {
                return Err(Void::Condemned { directory: directory.clone(), seq });
            }
        }
        let line = self.runs.get(&record.run).filter(|line| line.epoch == record.epoch);
        match (record.parent, line.and_then(|line| line.tip)) {
            (Some(parent), Some(tip)) if parent != tip => {
                Err(Void::Forked { run: record.run.clone(), parent, tip })
            }
            (Some(parent), _) if parent >= record.seq => Err(Void::NoCheckpoint(parent)),
            _ => Ok(()),
        }
    }

    fn judge_retire(&self, seq: Seq) -> Result<(), Void> {
        let checkpoint = self.known(seq)?;
        if checkpoint.pinned || self.tags.values().any(|tagged| *tagged == seq) {
            return Err(Void::Held(seq));
        }
        let mut of_run = self.checkpoints.iter().rev().filter(|(_, c)| c.run == checkpoint.run);
        match of_run.find(|(_, c)| c.verified.is_some()) {
            Some((&newest, _)) if newest == seq => Err(Void::NewestVerified(seq)),
            _ => Ok(()),
        }
    }

    fn known(&self, seq: Seq) -> Result<&Checkpoint, Void> {
        self.checkpoints.get(&seq).ok_or(Void::NoCheckpoint(seq))
    }

    /// Takes a record in, or says why it has no effect.
    ///
    /// # Errors
    /// Why it has none; the state is as it was.
    pub fn apply(&mut self, record: &Record) -> Result<(), Void> {
        self.judge(record)?;
        self.reach_epoch(&record.run, record.epoch);
        match &record.action {
            Action::Commit(commit) => self.commit(record, commit),
            Action::Retire(retire) => self.retire(retire.checkpoint),
            Action::Condemn(condemn) => {
                for dir in &condemn.directories {
                    self.retired.remove(dir);
                    self.condemned.entry(dir.clone()).or_insert(record.seq);
                }
            }
            Action::Tag(tag) => drop(self.tags.insert(tag.name.clone(), tag.checkpoint)),
            Action::Untag(untag) => drop(self.tags.remove(&untag.name)),
            Action::Pin(pin) => self.change(pin.checkpoint, |c| c.pinned = pin.held),
            Action::Verified(v) => self.change(v.checkpoint, |c| c.verified = v.whole.then_some(record.seq)),
            Action::Epoch(_) => {}
        }
        Ok(())
    }

    /// A later epoch than the run's begins with whatever record names it first.
    fn reach_epoch(&mut self, run: &Label, epoch: u64) {
        if epoch > self.epoch(run) {
            self.runs.insert(run.clone(), RunLine { epoch, tip: None });
        }
    }

    fn commit(&mut self, record: &Record, commit: &Commit) {
        let checkpoint = Checkpoint {
            run: record.run.clone(),
            epoch: record.epoch,
            parent: record.parent,
            ancestor: record.parent.filter(|parent| self.checkpoints.contains_key(parent)),
            step: commit.step,
            attempt: commit.attempt.clone(),
            manifest: commit.manifest,
            directories: commit.directories.clone(),
            metrics: commit.metrics.clone(),
            pinned: false,
            verified: None,
        };
        if let Some(attempts) = self.attempts.0.get_mut() {
            attempts.insert(checkpoint.attempt.clone(), record.seq);
        }
        self.checkpoints.insert(record.seq, checkpoint);
        self.runs.entry(record.run.clone()).or_default().tip = Some(record.seq);
    }

    fn retire(&mut self, seq: Seq) {
        let Some(gone) = self.checkpoints.remove(&seq) else { return };
        if let Some(attempts) = self.attempts.0.get_mut() {
            attempts.remove(&gone.attempt);
        }
        self.checkpoints
            .values_mut()
            .filter(|c| c.ancestor == Some(seq))
            .for_each(|c| c.ancestor = gone.ancestor);
        self.retired.insert(gone.attempt, seq);
    }

    fn change(&mut self, seq: Seq, change: impl FnOnce(&mut Checkpoint)) {
        if let Some(checkpoint) = self.checkpoints.get_mut(&seq) {
            change(checkpoint);
        }
    }
}

impl Checkpoint {
    /// Whether it needs a directory.
    #[must_use]
    pub fn needs(&self, directory: &DirName) -> bool {
        self.attempt == *directory || self.directories.contains(directory)
    }
}
