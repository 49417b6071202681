//! Names of model state: the bottom of the suite.
//!
//! A checkpoint is a catalog plus blobs, and a catalog is a list of *named* tensors. This crate says what a
//! name is and everything that is known of a tensor without looking at its bytes:
//!
//! ```text
//!  keys of a state dict ──► classify ──► TensorId (fqn, role) ──► Registry ◄── Baseline JSON + check
//!                                             ▲                      │
//!                            Dialect (rename + region maps)          └─► placement rules (symbolic) ─► reshard
//! ```
//!
//! - [`state_dict`] says what each key of a foreign state dict is, [`wrapper`] what wrappers left in names;
//! - [`fold`] and [`pattern`] read, fold and match names; [`tie`] notes names that are one tensor;
//! - [`baseline`] is the registry as JSON, and the check of a checkpoint against it;
//! - [`preset`] gives names their placement and says what a mesh must divide;
//! - [`dialect`] translates names, and [`region`] the element order that goes with them;
//! - [`stacking`] pairs experts and layers of their own with tensors that hold all of them.
//!
//! Invariants:
//! - an [`Fqn`] is the state-dict key of the *unsplit* model; nothing here knows a rank;
//! - optimizer state is keyed by its parameter's FQN and a [`Role`], never by an index or a group;
//! - no I/O, no clock, no randomness: text and values in, values out.
//!
//! From the keys of a saved state dict to a placed registry, and to another library's names:
//! ```
//! use fqn::{Dtype, Shape, dialect, preset::{self, ModelFacts}, state_dict::{Leaf, classify}};
//!
//! let tensor = |key: &str, shape: &[u64]| Leaf::tensor(key, Dtype::BF16, Shape::new(shape));
//! let leaves = [
//!     tensor("model.tok_embeddings.weight", &[64, 16]),
//!     tensor("model.layers.0.attention.wq.weight", &[16, 16]),
//!     tensor("model.layers.0.feed_forward.w1.weight", &[32, 16]),
//!     tensor("model.output.weight", &[64, 16]),
//!     tensor("optimizer.state.layers.0.attention.wq.weight.exp_avg", &[16, 16]),
//! ];
//! let mut registry = classify(&leaves, &[])?.registry(&leaves, "pt")?;
//!
//! let (rules, _why) = preset::detect(&registry);
//! rules.ok_or("no preset fits")?.apply(&mut registry)?;
//! let moment = &registry.entries()[4];
//! assert_eq!(moment.id().to_string(), "layers.0.attention.wq.weight@exp_avg");
//! assert_eq!(moment.placement.as_ref().map(ToString::to_string).as_deref(), Some("tp:0,dp:0,pp:layer"));
//!
//! let facts = ModelFacts { heads: Some(4), ..ModelFacts::default() };
//! let hf = dialect::llama().translate(&registry, "torchtitan", "hf", &facts)?;
//! assert_eq!(hf.translations[4].to.fqn.as_str(), "model.layers.0.self_attn.q_proj.weight");
//! assert_eq!(hf.translations[4].map.map_row(1), Some(2)); // rotary pairs become halves
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod baseline;
pub mod dialect;
mod dtype;
pub mod fold;
mod id;
mod name;
pub mod pattern;
mod placement;
pub mod preset;
pub mod rank_state;
pub mod region;
mod registry;
mod shape;
pub mod stacking;
pub mod state_dict;
pub mod tie;
pub mod wrapper;

pub use dtype::{Dtype, UnknownDtype};
pub use id::{Role, TensorId, UnknownRole};
pub use name::{Fqn, MAX_NAME_BYTES, NameError, check as check_name};
pub use placement::{AxisCut, AxisName, AxisPlacement, PlacementError, PlacementRule, StageRule};
pub use region::{RegionError, RegionMap, RowPermute, RowRun};
pub use registry::{Alias, Entry, FusionPart, Registry, RegistryError};
pub use shape::{Dims, Shape};
