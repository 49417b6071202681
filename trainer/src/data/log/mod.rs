//! The log of consumed samples: which samples each step took, over all incarnations of a run.
//!
//! One JSON record a line, appended by one rank after each step that is done: `start` when an incarnation begins (at the
//! step and cursor that it resumes from), `step` for each step. A crash may cut the last line; the next incarnation ends
//! it and begins a new one.
//!
//! [`fold()`] yields the effective sequence: what an incarnation did past the point where the next one resumed is void, as
//! the model never knew it. What remains must run from sample 0 without a gap and without a repeat.

mod fold;
mod write;

pub use fold::{Folded, LogError, fold, read};
pub use write::Writer;

use serde::{Deserialize, Serialize};

use super::Sample;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// An incarnation begins.
    Start {
        /// Which, from 0.
        incarnation: u64,
        /// The last step that is done.
        step: u64,
        /// Samples consumed by then.
        cursor: u64,
    },
    /// A step was done.
    Step {
        /// Which incarnation did it.
        incarnation: u64,
        /// From 1.
        step: u64,
        /// Samples consumed before it.
        cursor: u64,
        /// What it took, as [epoch, index].
        #[serde(with = "pairs")]
        samples: Vec<Sample>,
    },
}

mod pairs {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Sample;

    pub(super) fn serialize<S: Serializer>(samples: &[Sample], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(samples.iter().map(|sample| (sample.epoch, sample.index)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Sample>, D::Error> {
        let pairs = Vec::<(u64, u64)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(epoch, index)| Sample { epoch, index }).collect())
    }
}
