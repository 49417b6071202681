//! Training data: a folder of text as one run of byte tokens, cut into samples, in an order that is a function.
//!
//! ```text
//!  Corpus (files in order of their paths)  ─►  samples: windows of seq_len + 1 bytes, numbered 0..n
//!  Order  (seed, epoch)                    ─►  a permutation of 0..n, computable at any index
//!  Stream (global cursor)                  ─►  the samples of a step; a rank takes its microbatches of them
//!  log                                     ─►  which samples were consumed, over crashes: each exactly once
//! ```
//!
//! Invariants: which samples a step consumes depends on (seed, cursor, global batch) alone, never on how many ranks there
//! are or how often the run was resumed; the cursor counts samples *consumed*, and moves only when a step is done.

mod corpus;
mod description;
pub mod log;
mod order;
mod stream;
mod tensors;

pub use corpus::{Corpus, DataError};
pub use description::{Description, FileMark};
pub use order::Order;
pub use stream::{Sample, Stream, Tokens};

/// Byte vocabulary: every byte is a token.
pub const VOCABULARY: usize = 256;
