//! The parallel meaning of a model's operations: tensor parallelism over virtual ranks, backward by nodes that hold
//! weight *handles*, and the queue of weight gradients.

mod params;
mod runtime;

pub use params::{Cut, Params, Pass};
pub use runtime::Runtime;
