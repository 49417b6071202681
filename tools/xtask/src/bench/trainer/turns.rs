//! A process that does some steps whenever it is told to, and says how long they took.

use std::process::Command;

use serde::Deserialize;

use crate::bench::served::Served;
use crate::error::Error;

/// Of Linux's `USER_HZ`, on every machine that it runs torch on.
const TICKS_PER_SECOND: f64 = 100.0;

/// What it says of one turn.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Answer {
    /// Seconds of each step.
    pub(super) steps: Vec<f64>,
    /// Processor time of the turn, all threads together, the kernel's part included; not a number where the system does not
    /// tell it as Linux does.
    #[serde(skip)]
    pub(super) processor: f64,
    /// Parameters of its model.
    pub(super) parameters: u64,
    /// Mean loss of the last step.
    pub(super) loss: f64,
    /// Seconds that each save kept the training thread from training.
    #[serde(default)]
    pub(super) saves: Vec<f64>,
    /// Steps that ended while a save was being written.
    #[serde(default)]
    pub(super) during_saves: usize,
}

impl Answer {
    /// Mean seconds of a step.
    pub(super) fn mean(&self) -> f64 {
        self.steps.iter().sum::<f64>() / self.steps.len() as f64
    }

    /// Processor time of a step.
    pub(super) fn used(&self) -> f64 {
        self.processor / self.steps.len() as f64
    }
}

/// The process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turns(Served<Answer>);

impl Turns {
    pub(super) fn start(mut command: Command) -> Result<Self, Error> {
        command.env("OMP_NUM_THREADS", "1");
        Served::start(command).map(Self)
    }

    /// Has it do `steps` steps.
    pub(super) fn go(&mut self, steps: usize) -> Result<Answer, Error> {
        let before = self.processor();
        let mut answer = self.0.go(&steps.to_string())?;
        answer.processor = self.processor() - before;
        if answer.steps.len() == steps && answer.loss.is_finite() {
            return Ok(answer);
        }
        Err(self.0.failed("still running", &format!("a turn of {steps} steps gave {answer:?}")))
    }

    /// Seconds of processor time since it began.
    fn processor(&self) -> f64 {
        let said = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        let ticks = said.ok().and_then(|said| ticks(&said));
        ticks.map_or(f64::NAN, |ticks| ticks / TICKS_PER_SECOND)
    }
}

/// Ticks in user and kernel mode: the 14th and 15th field; the second is the program's name in brackets, blanks and all.
fn ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11).map(str::parse::<f64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_whatever_the_program_is_called() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(ticks(stat), Some(300.0));
        assert_eq!(ticks("42 (cut) S 1 2"), None);
    }
}
