//! ZB-H1 beside 1F1B on devices whose actions sleep: `cargo xtask virtual`'s own measurement, on threads and on processes. The other
//! schedules are measured with it, and shown by that command.

use std::process::Command;

use serde::Deserialize;

use super::Part;
use super::row::{Relation, Row};
use crate::bench::figure::Target;
use crate::bench::target_folder;
use crate::error::Error;
use crate::process;

/// In theory 33/27: so much longer is a step of 1F1B on 4 ranks with 8 microbatches, all actions alike.
const GAIN: Target = Target::AtLeast(1.20);

#[derive(Debug, Deserialize)]
struct Figures {
    cases: Vec<Case>,
}

/// The best step of a schedule.
#[derive(Debug, Deserialize)]
struct Case {
    schedule: String,
    ranks: usize,
    microbatches: usize,
    transport: String,
    measured_ms: f64,
}

/// Over each transport.
pub(super) fn rows() -> Result<Vec<Row>, Error> {
    let mut command = Command::new(target_folder().join("release/examples/virtual"));
    command.arg("--json");
    let output = process::output(&mut command)?;
    // It fails where a schedule takes longer than simulated: what it measured stands all the same.
    let line = output.stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let figures: Figures = serde_json::from_slice(line).map_err(|source| {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim());
        Error::Answer { command: process::shown(&command), source }
    })?;
    Ok(["local", "gloo"].iter().filter_map(|transport| figures.row(transport)).collect())
}

impl Figures {
    fn row(&self, transport: &str) -> Option<Row> {
        let of = |schedule: &str| {
            let is = |case: &&Case| {
                (case.schedule.as_str(), case.transport.as_str()) == (schedule, transport)
                    && (case.ranks, case.microbatches) == (4, 8)
            };
            self.cases.iter().find(is).map(|case| vec![case.measured_ms / 1e3])
        };
        Some(Row::new(
            (Part::Schedules, Relation::TimesAsFast),
            (format!("ZB-H1 on 4 virtual devices, 8 microbatches, {transport}"), of("ZBH1")?),
            ("1F1B", of("1F1B")?),
            Some(GAIN),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_transport_and_one_size_are_compared() {
        let case = |schedule: &str, ranks, transport: &str, ms: f64| {
            serde_json::json!({"schedule": schedule, "ranks": ranks, "microbatches": 2 * ranks, "transport": transport,
                "measured_ms": ms, "simulated_ms": ms})
        };
        let all = serde_json::json!({"cases": [
            case("1F1B", 2, "local", 90.0), case("1F1B", 4, "gloo", 50.0), case("1F1B", 4, "local", 33.0),
            case("ZBH1", 4, "local", 27.0), case("ZBH1", 2, "local", 10.0),
        ]});
        let figures: Figures = serde_json::from_value(all).unwrap();
        let row = figures.row("local").unwrap();
        assert!((row.value.median - 33.0 / 27.0).abs() < 1e-12);
        assert_eq!(row.met, Some(true));
        assert!(figures.row("gloo").is_none());
    }
}
