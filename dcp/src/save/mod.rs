//! Saving from a training run: many writers, processes or threads, each write their own boxes of one checkpoint into a native
//! root; then any one of them commits.
//!
//! ```text
//!  SaveSpec ─ SavePlan ─ Session (one a process: log, folder, hooks) ─┬─ Writer (rank 0): put … put, finish ─► blobs, parts
//!   pure, the same on every rank; replicas written once               ├─ Writer (rank 1) …
//!                                                                     └─ missing? ─► commit ─► manifest ─► record
//! ```
//!
//! Nobody needs to hear from anybody: who writes which box follows from the plan, what is finished from the store. All calls
//! block; none needs a runtime.
//!
//! # Invariants
//!
//! * A checkpoint is visible once its record is there, whole; a writer that stops, fails or is killed leaves nothing visible.
//! * The plan's digest covers everything that the bytes' places depend on, and the incarnation: two incarnations never write into
//!   one folder. The same plan goes on where it was stopped; what was finished then must be the same bytes now, else it is
//!   refused.
//! * An incarnation that was replaced ([`begin_epoch`]) can't commit any more.
//! * Where [`Replicas`] says so, ranks that hold a box and do not write it hand in its fingerprint ([`Writer::hold`]), and no
//!   checkpoint is made of replicas that have drifted apart.
//! * What a checkpoint shares with an earlier one ([`Sharing`]; off by default) was read, proven, and compared byte for byte.
//! * Whoever commits believes the store: parts, sizes, block tables and cover are read and checked.
//!
//! # Example
//!
//! ```
//! use dcp::{save::{SaveOptions, SavePlan, SaveSpec, Session, begin_epoch}, load::Loader, store::{Root, Stores}};
//! use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape, TensorId};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut registry = Registry::new();
//! let mut entry = Entry::new(Fqn::new("w")?, Role::Param, Dtype::F32, Shape::new(&[4, 2]));
//! entry.placement = Some("dp:0".parse()?);
//! registry.push(entry)?;
//!
//! let stores = Stores::new();
//! let root = Root::create("memory://run", &stores)?;
//! let run = "main".parse()?;
//! let epoch = begin_epoch(&root, &run, &SaveOptions::default())?;
//! let spec = SaveSpec::new(run, registry, "dp=2".parse()?, 1000).in_epoch(epoch);
//! let plan = SavePlan::new(spec)?;
//! let session = Session::open(&root, &plan, SaveOptions::default())?;
//! for rank in 0..2 {
//!     let writer = session.writer(rank)?;
//!     for (tensor, region) in plan.boxes_of(rank) {
//!         let bytes = vec![1; usize::try_from(region.elements() * 4)?];
//!         writer.put(tensor, region, &bytes)?;
//!     }
//!     writer.finish()?;
//! }
//! session.commit()?;
//! # Ok(())
//! # }
//! ```

mod plan;
mod replicas;
mod session;
mod sharing;
mod spec;
#[cfg(test)]
pub(crate) mod tests;
mod watch;
mod writer;

pub use plan::SavePlan;
pub use session::{SaveOptions, Session, begin_epoch};
pub use sharing::Sharing;
pub use spec::{Replicas, SaveSpec};
pub use watch::{Moment, Unwatched, Watch};
pub use writer::{Writer, WriterDone};
