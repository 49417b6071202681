//! What a run goes on from: decided once, by rank 0, for everybody.
//!
//! ```text
//!  rank 0: newest that is whole, as far as that shows without its tensors' bytes ─► all ranks load their boxes of it, and prove them
//!                    ▲                                                               │ damaged, as all ranks see alike
//!                    └──── the one before, if policy says so: Resume::fall_back ◄────┘
//! ```
//!
//! So no rank waits while another reads what is not its own. Invariants: all ranks load the checkpoint of the same record, by that record's
//! bytes; a damaged newest checkpoint is named, and policy says whether the one before it is taken; where there are checkpoints and none is
//! whole, the run does not begin from scratch.

use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use dcp::{
    commit::{Label, Seq},
    load::{Level, Loader, NewestGood, newest_good_before},
    save::{SaveOptions, begin_epoch},
    store::{Root, Stores},
};
use fqn::{Registry, Role, TensorId};
use reshard::Region;
use serde::{Deserialize, Serialize};

use super::{
    RunState,
    load::{self, Read},
    spec::STEP,
    state::KEY,
};
use crate::{
    Error, ErrorKind, Place, Result,
    config::{LoadProof, OnDamage, Resume as Wanted},
    transport::{Group, Purpose},
};

/// Where a run looks for what to go on from.
#[derive(Debug, Clone)]
pub struct Resume {
    /// The store; created if it is not there.
    pub root: String,
    /// The run.
    pub run: Label,
    /// What to do when the newest checkpoint is damaged.
    pub on_damage: OnDamage,
    /// How much is read before a checkpoint is believed.
    pub level: Level,
    /// Whether to resume at all.
    pub wanted: Wanted,
}

/// What rank 0 decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The incarnation that begins.
    pub epoch: u64,
    /// Number of the checkpoint, if there is one.
    pub sequence: Option<u64>,
    /// Its training step.
    step: u64,
    /// Its record's bytes.
    record: Vec<u8>,
    /// What is wrong with newer ones.
    pub warnings: Vec<String>,
}

/// A checkpoint that fits, opened.
#[derive(Debug)]
pub struct Resumed {
    /// The checkpoint.
    pub loader: Loader,
    /// The run's state then.
    pub state: RunState,
}

impl Resume {
    /// Decides on rank 0 and tells all; every rank of `world` calls it.
    ///
    /// # Errors
    /// Rank 0's failure, on every rank; the transport's.
    pub fn agree(&self, world: &dyn Group) -> Result<(Root, Choice)> {
        self.decided(world, || {
            let root = Root::create(&self.root, &Stores::new()).map_err(dcp::Error::from)?;
            let choice = self.decide(&root, None)?;
            let epoch = begin_epoch(&root, &self.run, &SaveOptions::default())?;
            Ok((root, Choice { epoch, ..choice }))
        })
    }

    /// Goes back from a checkpoint whose bytes turned out to be damaged to the newest whole one before it, where policy allows it. Rank 0
    /// decides and tells all; every rank of `world` calls it, when all have seen the damage.
    ///
    /// # Errors
    /// As [`Self::agree`]; `Corrupt` where policy says to stop, or nothing before it is whole.
    pub fn fall_back(&self, world: &dyn Group, choice: &Choice, damage: &Error) -> Result<Choice> {
        let older = || {
            let root = Root::open(&self.root, &Stores::new()).map_err(dcp::Error::from)?;
            let older = self.decide(&root, Some((choice, damage)))?;
            Ok((root, Choice { epoch: choice.epoch, ..older }))
        };
        self.decided(world, older).map(|(_, choice)| choice)
    }

    fn decided(
        &self,
        world: &dyn Group,
        decide: impl FnOnce() -> Result<(Root, Choice)>,
    ) -> Result<(Root, Choice)> {
        // Where the others are imagined, nobody else decides.
        let mine = (world.index() == 0 || world.imagined()).then(decide);
        let told = match &mine {
            Some(Ok((_, choice))) => Verdict::Chosen(choice.clone()),
            Some(Err(error)) => Verdict::Failed(Failure::of(error)),
            None => Verdict::Follows,
        };
        let bytes = serde_json::to_vec(&told).map_err(|error| Error::internal(error.to_string()))?;
        let all = world.all_gather_bytes(&Purpose("what to resume from".to_owned()), &bytes)?;
        if let Some(decided) = mine {
            return decided;
        }
        let first = all.first().ok_or_else(|| Error::internal("a group without members"))?;
        match serde_json::from_slice(first).map_err(|error| Error::internal(error.to_string()))? {
            Verdict::Chosen(choice) => {
                Ok((Root::open(&self.root, &Stores::new()).map_err(dcp::Error::from)?, choice))
            }
            Verdict::Failed(failure) => Err(failure.of_rank(0)),
            Verdict::Follows => Err(Error::internal("rank 0 did not decide")),
        }
    }

    /// The newest whole checkpoint: before one that is known to be damaged, if there is one. Its incarnation is not begun yet.
    fn decide(&self, root: &Root, damaged: Option<(&Choice, &Error)>) -> Result<Choice> {
        let before = damaged.and_then(|(choice, _)| choice.parent());
        let newest = newest_good_before(root, &self.run, self.level, before)?;
        let known = damaged.and_then(|(Choice { sequence, step, .. }, error)| {
            Some(format!("checkpoint seq:{} of step {step} is damaged: {error}", (*sequence)?))
        });
        let warnings = self.judge(root, known, &newest)?;
        self.check_wanted(root, &newest)?;
        let found = newest.found.map(|it| (it.seq.get(), it.step, it.record));
        let (sequence, step, record) =
            found.map_or((None, 0, Bytes::new()), |(seq, step, record)| (Some(seq), step, record));
        Ok(Choice { epoch: 0, sequence, step, record: record.to_vec(), warnings })
    }

    fn check_wanted(&self, root: &Root, newest: &NewestGood) -> Result<()> {
        let (place, run) = (root.display_name(), &self.run);
        match (self.wanted, &newest.found) {
            (Wanted::Require, None) => Err(Error::new(
                ErrorKind::NotFound,
                format!("{place}: run {run} has no checkpoint, and checkpoint.resume is \"require\""),
            )
            .hint("begin with checkpoint.resume = \"auto\", or name the run by checkpoint.run")),
            (Wanted::Never, Some(found)) => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{place}: run {run} has a checkpoint of step {}, and checkpoint.resume is \"never\"",
                    found.step
                ),
            )
            .hint("give the new run another name by checkpoint.run, or resume")),
            _ => Ok(()),
        }
    }

    /// What is wrong with newer ones, if policy allows to pass over them: `known`, and those that were looked at.
    fn judge(&self, root: &Root, known: Option<String>, newest: &NewestGood) -> Result<Vec<String>> {
        let skipped = newest.skipped.iter().map(|skipped| {
            let first =
                skipped.findings.first().map_or_else(String::new, |finding| finding.message.to_string());
            let more = skipped.findings.len().saturating_sub(1);
            let mut text =
                format!("checkpoint seq:{} of step {} is damaged: {first}", skipped.seq, skipped.step);
            if more > 0 {
                let _ = write!(text, " (and {more} more findings)");
            }
            text
        });
        let told: Vec<String> = known.into_iter().chain(skipped).collect();
        let damaged = |why: &str, hint: String| {
            Err(Error::new(
                ErrorKind::Corrupt,
                format!("{}: {}; {why}", root.display_name(), told.join("; ")),
            )
            .hint(hint))
        };
        if newest.found.is_none() && !told.is_empty() {
            let hint = "`ckpt verify` says what is left of them; to begin anew, give another root or run";
            return damaged("no checkpoint of this run is whole", hint.to_owned());
        }
        if self.on_damage == OnDamage::Stop && !told.is_empty() {
            let hint = "set checkpoint.on_damage = \"fallback\" to go on from the newest that is whole";
            return damaged("checkpoint.on_damage is \"stop\"", hint.to_owned());
        }
        Ok(told)
    }
}

impl Choice {
    /// Number of the checkpoint, as the log has it.
    #[must_use]
    pub fn parent(&self) -> Option<Seq> {
        self.sequence.and_then(|seq| Seq::new(seq).ok())
    }

    /// Opens the checkpoint that was chosen, and checks that it is one of this model.
    ///
    /// # Errors
    /// `Incompatible` for another model: what differs, by name.
    pub fn open(&self, root: &Root, expected: &Registry) -> Result<Option<Resumed>> {
        if self.sequence.is_none() {
            return Ok(None);
        }
        let loader = Loader::open_record(root, Bytes::from(self.record.clone()))?;
        compare(expected, &loader.catalog().registry).place(root.display_name())?;
        let object = loader.object(KEY).ok_or_else(|| {
            Error::new(ErrorKind::Incompatible, format!("{}: holds no {KEY}", root.display_name()))
                .hint("only checkpoints that this trainer wrote can be resumed; convert others to start from their weights")
        })?;
        let state = RunState::from_object(object)?;
        Ok(Some(Resumed { loader, state }))
    }
}

impl Resumed {
    /// Reads this rank's boxes, and proves them with all other ranks: every rank of `world` calls it. The counts of updates of its parameters
    /// are proven with them, though the run's state says the step: so nothing of a checkpoint is passed over.
    ///
    /// # Errors
    /// Any rank's failure but damage, on all of them: the store's, what `give` refuses; the transport's.
    pub fn read_all<'a>(
        &self,
        world: &dyn Group,
        proof: LoadProof,
        boxes: impl IntoIterator<Item = (&'a TensorId, &'a Region)>,
        mut give: impl FnMut(&TensorId, &Region, &[u8]) -> Result<()>,
    ) -> Result<Read> {
        let boxes: Vec<_> = boxes.into_iter().collect();
        let scalar = Region::new(&[], &[]).map_err(|error| Error::internal(error.to_string()))?;
        let params = boxes.iter().filter(|(id, _)| id.role == Role::Param);
        let counts: Vec<TensorId> =
            params.map(|(id, _)| TensorId { fqn: id.fqn.clone(), role: Role::of_slot(STEP) }).collect();
        let all = boxes.into_iter().chain(counts.iter().map(|id| (id, &scalar)));
        load::load(&self.loader, world, proof, all, |id, region, bytes| {
            if id.role == Role::of_slot(STEP) { Ok(()) } else { give(id, region, bytes) }
        })
    }
}

/// So many differences are shown.
const SHOWN: usize = 6;

/// Whether a checkpoint holds what this run needs, name by name.
fn compare(expected: &Registry, found: &Registry) -> Result<()> {
    let shapes = |registry: &Registry| -> BTreeMap<String, String> {
        let entry = |entry: &fqn::Entry| (entry.id().to_string(), format!("{} {}", entry.dtype, entry.shape));
        registry.entries().iter().map(entry).collect()
    };
    let (want, have) = (shapes(expected), shapes(found));
    let mut differences: Vec<String> = Vec::new();
    for (id, shape) in &want {
        match have.get(id) {
            None => differences.push(format!("{id} is missing")),
            Some(other) if other != shape => differences.push(format!("{id} is {other} there, {shape} here")),
            Some(_) => {}
        }
    }
    differences.extend(
        have.keys().filter(|id| !want.contains_key(*id)).map(|id| format!("{id} is not of this model")),
    );
    if differences.is_empty() {
        return Ok(());
    }
    let shown = differences.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    let more = differences.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    Err(Error::new(ErrorKind::Incompatible, format!("a checkpoint of another model: {shown}{more}"))
        .hint("give the model's own configuration, or another checkpoint.root or checkpoint.run"))
}

/// What rank 0 tells.
#[derive(Debug, Serialize, Deserialize)]
enum Verdict {
    Chosen(Choice),
    Failed(Failure),
    Follows,
}

/// A failure, as a rank tells it to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    kind: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        Self {
            kind: code(error.kind()),
            message: error.to_string(),
            hint: error.hint_text().map(str::to_owned),
        }
    }

    pub(super) fn kind(&self) -> ErrorKind {
        kind_of(self.kind)
    }

    /// The same, of whom it is said.
    pub(super) fn of_rank(self, rank: usize) -> Error {
        let error = Error::new(self.kind(), format!("rank {rank}: {}", self.message));
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Corrupt,
    ErrorKind::Conflict,
    ErrorKind::Io,
    ErrorKind::NotFound,
    ErrorKind::Incompatible,
    ErrorKind::Internal,
];

fn code(kind: ErrorKind) -> u8 {
    let at = KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len() - 1);
    u8::try_from(at).unwrap_or(u8::MAX)
}

fn kind_of(code: u8) -> ErrorKind {
    KINDS.get(usize::from(code)).copied().unwrap_or(ErrorKind::Internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fqn::{Dtype, Entry, Fqn, Shape};

    fn registry(tensors: &[(&str, &[u64])]) -> Registry {
        let mut registry = Registry::new();
        for (name, shape) in tensors {
            registry
                .push(Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape)))
                .unwrap();
        }
        registry
    }

    #[test]
    fn what_differs_from_another_model_is_told_by_name() {
        let mine = registry(&[("a", &[2, 2]), ("b", &[3])]);
        assert!(compare(&mine, &mine).is_ok());
        let theirs = registry(&[("a", &[2, 4]), ("c", &[3])]);
        let text = compare(&mine, &theirs).unwrap_err().to_string();
        for part in ["a", "b is missing", "c is not of this model", "2x4"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn kinds_survive_being_told() {
        for kind in KINDS {
            assert_eq!(kind_of(code(kind)), kind);
        }
    }
}
