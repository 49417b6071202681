//! Servers that speak the protocols of object stores, for tests.
//!
//! ```text
//!  S3     moto, in Python    ─┐ processes, on a free port of the loopback: ended with the value that
//!  Azure  Azurite, in Node   ─┘ started them, and with the process of the test, however that ends
//!  GCS    a small one of our own, in this process
//! ```
//!
//! Invariants: a server that cannot be started is an error that names it as *not run* and says what to do; nothing listens but on the
//! loopback; two tests never share a server.

mod azure;
mod error;
mod gcs;
mod process;
mod s3;

pub use azure::Azurite;
pub use error::{Error, Result};
pub use gcs::{Fault, Gcs};
pub use s3::Moto;

/// The bucket that every server begins with.
pub const BUCKET: &str = "bucket";
