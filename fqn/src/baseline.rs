//! The baseline: a registry as JSON, written before any split, and the check of a checkpoint against it.
//!
//! Schema `fqn.baseline/1` is `{"schema": "fqn.baseline/1", "tensors": [entry, …]}` with the registry's entries. A
//! bare list, and entries of only `fqn`, `shape` and `dtype` (torch's spelling or ours), are read as well, so that
//! a few lines of Python write one from the unsplit model:
//!
//! ```python
//! import json
//!
//! def baseline(model, path):
//!     rows = [(n, p, "param") for n, p in model.named_parameters()]
//!     rows += [(n, b, "buffer") for n, b in model.named_buffers() if n in model.state_dict()]
//!     tensors = [{"fqn": n, "shape": list(t.shape), "dtype": str(t.dtype), "role": r} for n, t, r in rows]
//!     with open(path, "w") as out:
//!         json.dump({"schema": "fqn.baseline/1", "tensors": tensors}, out)
//! ```
//!
//! Invariants: what is written reads back equal; a key that means nothing is refused, never ignored; the report of
//! a check is in stable order (the baseline's, then the checkpoint's), whatever the input's order of pieces.

mod check;
mod collide;
mod json;
mod renames;
mod renumber;
mod report;
#[cfg(test)]
mod tests;

pub use check::{Observed, Piece, check};
pub use json::{BaselineError, SCHEMA, read, write};
pub use report::{CheckReport, Code, Finding};
