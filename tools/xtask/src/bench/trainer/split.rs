//! I and W of a split backward beside a full one: `trainer/examples/split_backward.rs` measures the pairs in one process, on one thread.
//! By processor time, where the system tells it.

use std::process::Command;

use serde::Deserialize;

use super::Part;
use super::row::{Relation, Row};
use crate::bench::figure::Target;
use crate::bench::target_folder;
use crate::error::Error;
use crate::process;

const PRICE: Target = Target::AtMost(1.03);

/// Seconds of each pair, of one model.
#[derive(Debug, Deserialize)]
struct Pairs {
    model: String,
    tokens: u32,
    inputs: Vec<f64>,
    weights: Vec<f64>,
    full: Vec<f64>,
    inputs_on_processor: Vec<f64>,
    weights_on_processor: Vec<f64>,
    full_on_processor: Vec<f64>,
}

/// Of every model.
pub(super) fn rows(rounds: u32) -> Result<Vec<Row>, Error> {
    let mut command = Command::new(target_folder().join("release/examples/split_backward"));
    command.arg(rounds.to_string()).env("OMP_NUM_THREADS", "1");
    let output = process::output(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(process::failed(&command, &output.status.to_string(), &said));
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let read = |line| serde_json::from_slice::<Pairs>(line);
    let pairs = lines.map(read).collect::<Result<Vec<_>, _>>();
    let pairs = pairs.map_err(|source| Error::Answer { command: process::shown(&command), source })?;
    Ok(pairs.into_iter().map(row).collect())
}

fn row(pairs: Pairs) -> Row {
    let sum = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(one, other)| one + other).collect();
    let split: Vec<f64> = sum(&pairs.inputs, &pairs.weights);
    let on_processor: Vec<f64> = sum(&pairs.inputs_on_processor, &pairs.weights_on_processor);
    let words: Vec<&str> = pairs.model.split(' ').take(2).collect();
    let what = format!("I + W, {}, {} tokens", words.join(" "), pairs.tokens);
    let row = Row::new(
        (Part::Split, Relation::TimesAsLong),
        (what, split),
        ("a full backward", pairs.full),
        Some(PRICE),
    );
    row.with_processor(&on_processor, &pairs.full_on_processor).judged_by_processor()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_and_w_count_together_and_other_work_on_the_machine_does_not() {
        let pairs = Pairs {
            model: "dim=8 layers=2 heads=1".to_owned(),
            tokens: 32,
            inputs: vec![9.0],
            weights: vec![3.0],
            full: vec![4.0],
            inputs_on_processor: vec![2.0],
            weights_on_processor: vec![2.04],
            full_on_processor: vec![4.0],
        };
        let row = row(pairs);
        assert_eq!(row.what, "I + W, dim=8 layers=2, 32 tokens");
        assert!((row.value.median - 3.0).abs() < 1e-12);
        assert_eq!(row.met, Some(true));
    }
}
