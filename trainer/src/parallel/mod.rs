//! The parallel meaning of a model's operations: tensor parallelism over virtual ranks, backward by nodes that hold
//! weight *handles*, and the queue of weight gradients.
//!
//! ```text
//!  model ─► Ops = TpOps ── linear, embed, norm, loss, assemble
//!                  │ weights, for the time of one operation      │ what each gradient is made of
//!                  ▼                                              ▼
//!                Params ◄─────── gradients ─────── queue, drained by Runtime::weight_gradients
//! ```
//!
//! With sequence parallelism ([`Tokens`]) a rank keeps its own tokens alone between linears.
//!
//! A part's nodes ask for weights in backward too: whoever runs a part's backward calls `begin` and `end` around it.

mod embed;
mod linear;
mod loss;
mod norm;
mod ops;
mod params;
mod precision;
mod queue;
mod ranks;
mod rows;
mod runtime;
mod tape;
#[cfg(test)]
mod tests;
mod tokens;
mod whole;

pub use ops::TpOps;
pub use params::{Cut, Params, Pass};
pub use precision::Precision;
use precision::Products;
pub(crate) use precision::wide;
pub use runtime::Runtime;
pub use tape::Tape;
pub use tokens::{Tokens, lengths_that_fit};
pub use whole::Whole;
