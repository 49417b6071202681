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
//! Invariants:
//! - an [`Fqn`] is the state-dict key of the *unsplit* model; nothing here knows a rank;
//! - optimizer state is keyed by its parameter's FQN and a [`Role`], never by an index or a group;
//! - no I/O, no clock, no randomness: text and values in, values out.
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
pub mod region;
mod registry;
mod shape;
pub mod state_dict;
pub mod tie;
pub mod wrapper;

pub use dtype::{Dtype, UnknownDtype};
pub use id::{Role, TensorId, UnknownRole};
pub use name::{Fqn, MAX_NAME_BYTES, NameError, check as check_name};
pub use placement::{AxisName, AxisPlacement, PlacementError, PlacementRule, StageRule};
pub use region::{RegionError, RegionMap, RowPermute, RowRun};
pub use registry::{Alias, Entry, FusionPart, Registry, RegistryError};
pub use shape::{Dims, Shape};
