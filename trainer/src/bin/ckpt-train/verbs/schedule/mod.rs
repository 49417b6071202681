//! `ckpt-train schedule`: schedules drawn, checked, simulated and compared, without a model, data or ranks.

pub(crate) mod args;
mod check;
mod compare;
mod numbers;
mod show;
mod simulate;
mod subject;

use serde_json::Value;
use trainer::{Error, Result};

use args::Schedule;

pub(super) fn run(verb: &Schedule) -> Result<u8> {
    match verb {
        Schedule::Show(options) => show::run(options),
        Schedule::Check(options) => check::run(options),
        Schedule::Simulate(options) => simulate::run(options),
        Schedule::Compare(options) => compare::run(options),
    }
}

fn json(value: &Value) -> Result<u8> {
    let failed = |error: serde_json::Error| Error::internal(error.to_string()).caused_by(error);
    super::print(&(serde_json::to_string_pretty(value).map_err(failed)? + "\n"))
}
