//! A pipeline, FSDP and tensor-parallel trainer that writes to the native store and resumes from it by itself.
//!
//! Four things are separate, and each can be replaced alone:
//!
//! ```text
//!  model      sequential computation, in parts; knows no rank          model::Model, written against model::Ops
//!  schedule   what each rank does, as a table                          schedule::Table, a crate of its own
//!  stage      a contiguous run of parts, with its microbatches         stage::Stage
//!  transport  order, buffers, time limits, the dump of the scene       transport::Transport, transport::Group
//!
//!  config ─► run ─► stage::interpret ─► stage ─► model ─► Ops = parallel (TP, virtual ranks, nodes)
//!             │            │ SEND/RECV                         │ weights, gradients = parallel::Params
//!             │            ▼                                   ▼
//!             │        transport ◄───────────────────────── fsdp (shards, gather, reduce) ─► optim
//!             └─► checkpoint (lease, background save, resume) ─► dcp ─► the native store
//! ```
//!
//! Invariants:
//! - weights and optimizer state are named by the FQN of the *unsplit* model and lie where `reshard` lays them, so that
//!   a checkpoint of any mesh is resumed on any other;
//! - in exact mode every number is a function of the virtual mesh, never of the real one ([`exact`]);
//! - unsafe code is in [`torch`] alone, and where the NCCL transport calls its library; nothing unwinds into C++.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod doctor;
pub mod error;
pub mod exact;
pub mod fsdp;
pub mod generate;
pub mod init;
pub mod launch;
pub mod mesh;
pub mod metrics;
pub mod model;
pub mod optim;
pub mod parallel;
pub mod parity;
pub mod placement;
pub mod plan;
pub mod rehearsal;
pub mod run;
pub mod stage;
pub mod torch;
pub mod transport;

pub use error::{Error, ErrorKind, Place, Result};
