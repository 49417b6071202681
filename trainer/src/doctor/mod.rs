//! Diagnosis: from a symptom to its causes, what to check in which order, and what to do; and from what a run left behind
//! to the symptoms that it shows.
//!
//! ```text
//!  tables/*.toml ─► knowledge (typed, checked) ─► lookup: the words of a user to the symptom that is most like them
//!  metrics, scenes of ranks that gave up ─► examine ─► findings, each a symptom with its evidence
//! ```
//!
//! Invariants: knowledge is data, so that adding a symptom touches no code; every finding names the figures it comes from
//! and the symptom that says what to do; a threshold is named once, here or in `metrics`.

mod examine;
mod knowledge;
mod lookup;
mod scenes;

pub use examine::{Finding, examine};
pub use knowledge::{Knowledge, Symptom, Table};
pub use lookup::{Found, lookup};
pub use scenes::{Scene, read_scenes};
