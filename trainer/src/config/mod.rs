//! Configuration: TOML files, dotted overrides, defaults; every value with its origin.
//!
//! ```text
//!  include ─► file ─► --set / --section.key ─┐   layers, later ones win
//!                                            ▼
//!  alias (old names → canonical) ─► keys (known? right type?) ─► sections (typed) ─► check (do they fit together?)
//!                                                                     │
//!                                              print (TOML with origins, SHA-256), JSON for checkpoints
//! ```
//!
//! Invariants: a key is declared once, in `keys`, with its type and meaning, and what is not declared is refused with
//! the nearest name that is; a resolved configuration prints as TOML that resolves to itself, with the same digest; the
//! digest depends on values alone, never on where they came from.

mod alias;
mod batch;
mod check;
mod error;
mod keys;
mod lapse;
mod layer;
mod overrides;
mod print;
mod resolve;
mod sections;
mod sharding;

pub use batch::Batches;
pub use check::{ModelSizes, check_model, check_world};
pub use error::ConfigError;
pub use keys::{KEYS, Key, Kind};
pub use lapse::parse as lapse;
pub use layer::Origin;
pub use overrides::{Override, dotted};
pub use print::{Difference, differences};
pub use resolve::{Resolved, resolve};
pub use sections::{
    ActivationCheckpoint, Checkpoint, Comm, CommMode, Config, Data, Debug, Decay, Device, Exact,
    FlopsFormula, Fsdp, LoadProof, LrScheduler, MessageFault, Metrics, Mode, ModelTable, Numbers, OnDamage,
    OnSaveFailure, Optimizer, Parallelism, Recomputed, Reshard, Resume, ScheduleDialect, StageSplit,
    Strategy, Ties, Training, TransportKind,
};
pub use sharding::Sharding;

#[cfg(test)]
mod tests;
