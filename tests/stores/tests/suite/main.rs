//! The stores behind a network, against servers: what every store must do, what happens when they fail, and `ckpt` on a bucket.
//!
//! A server that is not installed fails its tests, by name.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on has failed")]

mod cli;
mod conformance;
mod failures;
mod reshard;

use std::time::Duration;

use dcp::store::{Patience, Stores};

/// Stores that take their variables from a server, and give up soon.
fn stores(environment: Vec<(String, String)>) -> Stores {
    let patience = Patience {
        tries: 3,
        in_all: Duration::from_secs(4),
        connect: Duration::from_secs(2),
        ..Patience::default()
    };
    Stores::new().with_environment(environment).with_patience(patience)
}
