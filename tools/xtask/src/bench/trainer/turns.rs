//! Processes that do some steps whenever they are told to, and say how long they took: the ranks of one run.

use std::process::Command;

use serde::Deserialize;

use crate::bench::served::Served;
use crate::error::Error;

/// Of Linux's `USER_HZ`, on every machine that it runs torch on.
const TICKS_PER_SECOND: f64 = 100.0;

/// What the ranks say of one turn.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Answer {
    /// Seconds of each step; of several ranks, of the slowest.
    pub(super) steps: Vec<f64>,
    /// Processor time of the turn, all threads of all ranks together, the kernel's part included; not a number where the
    /// system does not tell it as Linux does.
    #[serde(skip)]
    pub(super) processor: f64,
    /// Parameters of the model.
    pub(super) parameters: u64,
    /// Mean loss of the last step; none of what trains nothing.
    pub(super) loss: Option<f64>,
    /// In a run's first turn: steps of the checkpoint that it went on from.
    #[serde(default)]
    pub(super) from: Option<u64>,
    /// In a run's first turn: seconds of loading, or of making the first weights.
    #[serde(default)]
    pub(super) loading: Option<f64>,
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

    /// What all ranks say, as one.
    fn merged(all: &[Self]) -> Option<Self> {
        let (first, count) = (all.first()?, all.len() as f64);
        let longest = |of: fn(&Self) -> &[f64]| {
            let at = |at: usize| all.iter().filter_map(|it| of(it).get(at).copied()).fold(0.0, f64::max);
            (0..of(first).len()).map(at).collect::<Vec<_>>()
        };
        Some(Self {
            steps: longest(|it| &it.steps),
            saves: longest(|it| &it.saves),
            loss: all.iter().map(|it| it.loss).sum::<Option<f64>>().map(|sum| sum / count),
            loading: all.iter().filter_map(|it| it.loading).reduce(f64::max),
            during_saves: all.iter().map(|it| it.during_saves).max().unwrap_or_default(),
            ..first.clone()
        })
    }
}

/// The processes. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Turns {
    ranks: Vec<Served<Answer>>,
    /// Whether they train. A loss that is not a number arrives as none, and must not be taken for that of what trains nothing.
    train: bool,
}

impl Turns {
    /// Starts one for each rank.
    pub(super) fn start(commands: Vec<Command>, train: bool) -> Result<Self, Error> {
        let mut all = Self { ranks: Vec::new(), train };
        for command in commands {
            all.ranks.push(Served::start(command)?);
        }
        Ok(all)
    }

    /// Has them do `steps` steps.
    pub(super) fn go(&mut self, steps: usize) -> Result<Answer, Error> {
        let before = self.processor();
        for rank in &mut self.ranks {
            rank.ask(&steps.to_string())?;
        }
        let answers = self.ranks.iter_mut().map(Served::hear).collect::<Result<Vec<_>, _>>()?;
        for (rank, answer) in self.ranks.iter().zip(&answers) {
            let learns = answer.loss.is_some() == self.train && answer.loss.is_none_or(f64::is_finite);
            if answer.steps.len() != steps || !learns {
                return Err(rank.failed("still running", &format!("a turn of {steps} steps gave {answer:?}")));
            }
        }
        let merged = Answer::merged(&answers);
        let mut merged = merged.ok_or_else(|| Error::Missing {
            what: "a process to measure".to_owned(),
            remedy: "a way to train has at least one rank".to_owned(),
        })?;
        merged.processor = self.processor() - before;
        Ok(merged)
    }

    /// Seconds of processor time since they began.
    fn processor(&self) -> f64 {
        self.ranks.iter().map(|rank| used(rank.id())).sum()
    }
}

impl Drop for Turns {
    /// Ranks end together: one that is still waited for keeps the others.
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(Served::dismiss);
    }
}

fn used(process: u32) -> f64 {
    let said = std::fs::read_to_string(format!("/proc/{process}/stat"));
    let ticks = said.ok().and_then(|said| ticks(&said));
    ticks.map_or(f64::NAN, |ticks| ticks / TICKS_PER_SECOND)
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

    #[test]
    fn a_step_of_several_ranks_takes_as_long_as_on_the_slowest() {
        let rank = |steps: &[f64], loss| Answer {
            steps: steps.to_vec(),
            processor: 0.0,
            parameters: 7,
            loss: Some(loss),
            from: Some(3),
            loading: Some(loss / 10.0),
            saves: vec![],
            during_saves: 0,
        };
        let both = Answer::merged(&[rank(&[1.0, 4.0], 2.0), rank(&[3.0, 2.0], 4.0)]).unwrap();
        assert_eq!(both.steps, [3.0, 4.0]);
        assert_eq!((both.loss, both.loading, both.from), (Some(3.0), Some(0.4), Some(3)));
        assert!(Answer::merged(&[]).is_none());
    }

    #[test]
    fn ranks_are_told_before_any_is_waited_for_and_end_together() {
        // Each waits until the other has been told as well.
        let folder = std::env::temp_dir().join(format!("ckpt-turns-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rank = |mine: &str, other: &str| {
            let mut command = Command::new("sh");
            let answer = r#"{"steps":[0.5],"parameters":1,"loss":2.0}"#;
            let script = format!(
                "read line; : > {mine}; while [ ! -e {other} ]; do sleep 0.01; done; echo '{answer}'; read line"
            );
            command.args(["-c", &script]).current_dir(&folder);
            command
        };
        let mut turns = Turns::start(vec![rank("a", "b"), rank("b", "a")], true).unwrap();
        assert_eq!(turns.go(1).unwrap().steps, [0.5]);
        drop(turns);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_loss_that_is_not_a_number_ends_a_measurement_and_only_what_trains_nothing_has_none() {
        let turn = |answer: &str, train| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("read line; echo '{answer}'; read line")]);
            Turns::start(vec![command], train).unwrap().go(1).map(|answer| answer.loss)
        };
        let with = r#"{"steps":[0.5],"parameters":1,"loss":2.0}"#;
        for without in [r#"{"steps":[0.5],"parameters":1,"loss":null}"#, r#"{"steps":[0.5],"parameters":1}"#]
        {
            assert!(turn(without, true).is_err(), "{without}");
            assert_eq!(turn(without, false).unwrap(), None);
        }
        assert_eq!(turn(with, true).unwrap(), Some(2.0));
        assert!(turn(with, false).is_err());
    }
}
