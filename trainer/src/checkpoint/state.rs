//! [`RunState`]: everything of a run that is not a tensor, as one JSON object of the checkpoint.
//!
//! Invariants: it is the same on every rank and says nothing about ranks, so it resumes on any mesh; what it says of the
//! data is *consumed* samples, never prefetched ones; a field that changes the numbers of a run is compared on resume.

use bytes::Bytes;
use dcp::{Encoding, ObjectEntry, PathPart, ReshardRule};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result, exact::Sums};

/// Key of the object in a checkpoint.
pub(crate) const KEY: &str = "trainer.state";

/// Version of the object.
const VERSION: u32 = 1;

/// What exact mode fixes: numbers are a function of these, whatever the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// G, virtual tensor-parallel ranks.
    pub virtual_tp: usize,
    /// Whether tokens are cut over them between linears: then sums over tokens are made by virtual rank. Left out where not, as in
    /// checkpoints that knew nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence_parallel: bool,
    /// Sequences of a microbatch.
    pub micro_batch: usize,
    /// Microbatches of a step, over all data-parallel ranks.
    pub microbatches: usize,
    /// Tokens of a sequence.
    pub seq_len: usize,
}

/// State of a run after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Version of this object.
    version: u32,
    /// Steps done.
    pub step: u64,
    /// Samples consumed since the beginning of the run: the cursor of the data order.
    pub cursor: u64,
    /// Tokens consumed.
    pub tokens: u64,
    /// Seed of initialisation and data order.
    pub seed: u64,
    /// Digest of the training data.
    pub data: String,
    /// How sums were made.
    pub exact: bool,
    /// What the numbers depend on.
    pub geometry: Geometry,
    /// The last losses, newest last: step and value. What goes on from here is compared with them.
    pub losses: Vec<(u64, f32)>,
}

/// So many losses are kept.
const WINDOW: usize = 16;

impl RunState {
    /// A run that has not begun.
    #[must_use]
    pub fn fresh(seed: u64, data: String, sums: Sums, geometry: Geometry) -> Self {
        let exact = sums == Sums::Exact;
        Self {
            version: VERSION,
            step: 0,
            cursor: 0,
            tokens: 0,
            seed,
            data,
            exact,
            geometry,
            losses: Vec::new(),
        }
    }

    /// One step was done.
    pub fn advance(&mut self, loss: f32) {
        let samples = (self.geometry.micro_batch * self.geometry.microbatches) as u64;
        self.step += 1;
        self.cursor += samples;
        self.tokens += samples * self.geometry.seq_len as u64;
        self.losses.push((self.step, loss));
        let surplus = self.losses.len().saturating_sub(WINDOW);
        self.losses.drain(..surplus);
    }

    /// As an object of a checkpoint.
    ///
    /// # Errors
    /// Never for finite losses.
    pub fn object(&self) -> Result<ObjectEntry> {
        let text =
            serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
        let preview = serde_json::from_slice(&text).ok();
        Ok(ObjectEntry {
            key: KEY.to_owned(),
            path: vec![PathPart::Key(KEY.to_owned())],
            encoding: Encoding::Json,
            bytes: Bytes::from(text),
            preview,
            reshard: ReshardRule::Global,
        })
    }

    /// From an object of a checkpoint.
    ///
    /// # Errors
    /// `Incompatible` for another version or what is no such object.
    pub fn from_object(object: &ObjectEntry) -> Result<Self> {
        let refuse = |why: String| Error::new(ErrorKind::Incompatible, format!("{KEY}: {why}"));
        let value: serde_json::Value =
            serde_json::from_slice(&object.bytes).map_err(|error| refuse(error.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            version => return Err(refuse(format!("is of version {version:?}, this build reads {VERSION}"))),
        }
        serde_json::from_value(value).map_err(|error| refuse(error.to_string()))
    }

    /// Whether a run that is configured like `now` may go on from here; what it should know is returned.
    ///
    /// # Errors
    /// `Data` for other data, `Incompatible` where exact mode would give other numbers.
    pub fn check(&self, now: &Self) -> Result<Vec<String>> {
        if self.data != now.data {
            return Err(Error::new(
                ErrorKind::Data,
                format!(
                    "the checkpoint was trained on data {}, this is {}",
                    short(&self.data),
                    short(&now.data)
                ),
            )
            .hint(
                "give the same folder by --data.folder; other data begins another run (--checkpoint.run)",
            ));
        }
        if self.seed != now.seed {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the checkpoint's seed is {}, this run's {}: the data order would jump",
                    self.seed, now.seed
                ),
            )
            .hint("set training.seed to the checkpoint's"));
        }
        if now.exact && (!self.exact || self.geometry != now.geometry) {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!("exact mode: the checkpoint has {}, this run {}", self.numbers(), now.numbers()),
            )
            .hint("keep virtual_tp, sequence_parallel, micro_batch, global_batch and seq_len, or train on in mode = \"fast\""));
        }
        Ok(self.notes(now))
    }

    /// Goes on with the batch sizes of `now`.
    #[must_use]
    pub fn going_on_as(self, now: &Self) -> Self {
        Self { exact: now.exact, geometry: now.geometry.clone(), ..self }
    }

    fn notes(&self, now: &Self) -> Vec<String> {
        let mut notes = Vec::new();
        let batch = |state: &Self| state.geometry.micro_batch * state.geometry.microbatches;
        if batch(self) != batch(now) {
            notes.push(format!(
                "the global batch changes from {} to {} sequences: learning rate and warm-up were chosen for the former",
                batch(self),
                batch(now)
            ));
        }
        if self.exact != now.exact {
            notes.push(format!("the checkpoint was trained in {} mode", mode(self.exact)));
        }
        notes
    }

    fn numbers(&self) -> String {
        let Geometry { virtual_tp, sequence_parallel, micro_batch, microbatches, seq_len } = self.geometry;
        let tokens = if sequence_parallel { " that tokens are cut over (sequence parallelism)" } else { "" };
        format!(
            "mode {}, {virtual_tp} virtual tp ranks{tokens}, {microbatches} microbatches of {micro_batch} × {seq_len} tokens",
            mode(self.exact)
        )
    }
}

const fn mode(exact: bool) -> &'static str {
    if exact { "exact" } else { "fast" }
}

fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> RunState {
        let geometry = Geometry {
            virtual_tp: 2,
            sequence_parallel: false,
            micro_batch: 1,
            microbatches: 8,
            seq_len: 64,
        };
        RunState::fresh(7, "d".repeat(64), Sums::Exact, geometry)
    }

    #[test]
    fn a_state_survives_its_object_bit_for_bit() {
        let mut state = state();
        (0..20).for_each(|at| state.advance(1.0 / (at as f32 + 3.0)));
        let back = RunState::from_object(&state.object().unwrap()).unwrap();
        assert_eq!(back, state);
        assert_eq!((back.step, back.cursor, back.tokens, back.losses.len()), (20, 160, 160 * 64, WINDOW));
    }

    #[test]
    fn other_data_another_seed_and_another_geometry_are_refused() {
        let (before, mut now) = (state(), state());
        now.data = "e".repeat(64);
        assert_eq!(before.check(&now).unwrap_err().kind(), ErrorKind::Data);
        let mut now = state();
        now.seed = 8;
        assert!(before.check(&now).unwrap_err().to_string().contains("seed is 7"));
        let mut now = state();
        now.geometry.virtual_tp = 4;
        assert!(before.check(&now).unwrap_err().to_string().contains("4 virtual tp ranks"));
        let mut now = state();
        now.geometry.sequence_parallel = true;
        let error = before.check(&now).unwrap_err();
        assert!(
            error.to_string().contains("this run mode exact, 2 virtual tp ranks that tokens are cut over"),
            "{error}"
        );
        now.exact = false;
        assert_eq!(before.check(&now).unwrap().len(), 1);
    }

    #[test]
    fn states_that_knew_nothing_of_cut_tokens_are_those_of_whole_ones() {
        let text = String::from_utf8(state().object().unwrap().bytes.to_vec()).unwrap();
        assert!(!text.contains("sequence_parallel"), "readable by what was before: {text}");
        let mut cut = state();
        cut.geometry.sequence_parallel = true;
        let back = RunState::from_object(&cut.object().unwrap()).unwrap();
        assert!(back.geometry.sequence_parallel);
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut object = state().object().unwrap();
        object.bytes = Bytes::from_static(b"{\"version\": 2}");
        assert!(RunState::from_object(&object).unwrap_err().to_string().contains("this build reads 1"));
    }
}
