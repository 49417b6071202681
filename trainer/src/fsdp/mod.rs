//! Data parallelism, per parameter: a rank keeps the rows of every parameter of its stages that the layout gives it, gathers a part
//! of the model when that part runs, and reduces gradients to the same rows. Rows are cut over the ranks of a replica
//! ([`DataSplit`](crate::mesh::DataSplit)); of one rank each they are whole, and this is DDP.
//!
//! ```text
//!  plan       boxes: what each rank of a replica holds, and the pieces that operations see        (pure geometry)
//!  shards     flat, padded f32 buffers: weights and moments of each part; views of them; load
//!  gather     Params: begin ─► one all-gather of a part's flat buffers ─► pieces ─► end frees them
//!  gradients  microbatches ─► one sum per use, without communication
//!  reduce     once a step, each part: the sums of a replica's ranks to shards, then shards over replicas
//!  ties       a parameter with several uses: their sums, swapped between stages, added once in order
//!  update     finiteness and norm over the mesh, clipping, the optimizer's step
//!  lease      a saver reads the shards; the next step waits for it
//! ```
//!
//! Shards are f32: masters, where weights are gathered and products computed in bf16 ([`Precision`](crate::parallel::Precision)); what
//! goes between ranks in bf16 goes as bf16, which every transport carries.
//!
//! How long gathered weights stay is the program's to say: UNSHARD and RESHARD hold and release a stage's parts; without them a part
//! is gathered for each pass (`schedule::Gather`, chosen by the configuration's strategy).
//!
//! Memory of a rank, with full sharding: its shards (weights and two moments), at most one part gathered and one on its way, and the
//! gradients of its stages, which accumulate *unsharded* from their first microbatch until the schedule reduces them
//! (REDUCE_GRAD): the size of the weights of its stages once, and in exact mode of as many partial sums as the tree keeps
//! open, at most log2 of the microbatches more.
//!
//! Invariants:
//! - shards lie where `reshard` lays them, padding is no part of any state, and no element depends on the mesh;
//! - collectives are called in an order that follows from the schedule and the model alone, so that all members agree;
//! - nothing is updated before every rank has said that its loss and gradients are finite.

mod gather;
mod gradients;
mod lease;
mod plan;
mod reduce;
mod shards;
mod state;
mod ties;
mod update;

pub use gather::Live;
pub use gradients::Gradients;
pub use lease::Lease;
pub use shards::StateTensor;
pub use state::{Groups, Setup, State};
pub use update::clip_coefficient;

#[cfg(test)]
mod tests;
