//! [`interpret`]: runs one rank's row of a program. All that a schedule means at run time is in the [`Executor`].
//!
//! Invariant: what an action waits for comes before it is noted, so that waiting is never counted as computing.

use std::fmt::Write;

use schedule::{Action, Program};

use crate::{Result, error::Place};

/// Cells shown before and after the one that failed.
const AROUND: usize = 4;

/// Does what actions say.
pub trait Executor {
    /// Remembers that `action` comes now, for the dump of the scene.
    fn note(&self, action: &Action);

    /// Waits until what `action` needs of other ranks is here. An executor that takes every message at its RECV has nothing
    /// to wait for.
    ///
    /// # Errors
    /// Whatever goes wrong; the interpreter adds where in the schedule.
    fn ready(&mut self, action: &Action) -> Result<()> {
        let _ = action;
        Ok(())
    }

    /// Does it.
    ///
    /// # Errors
    /// Likewise.
    fn run(&mut self, action: &Action) -> Result<()>;
}

/// One action: waits for what it needs, then does it.
///
/// # Errors
/// The executor's.
pub(super) fn perform(executor: &mut dyn Executor, action: &Action) -> Result<()> {
    executor.ready(action)?;
    executor.note(action);
    executor.run(action)
}

/// Runs the row of `rank`, in order.
///
/// # Errors
/// The first failure of the executor, with the rank, the step, the cell, and the row around it.
pub fn interpret(program: &Program, rank: usize, executor: &mut dyn Executor) -> Result<()> {
    let row = program.table().row(rank);
    for (step, action) in row.iter().enumerate() {
        perform(executor, action).place(Failed { rank, step, row })?;
    }
    Ok(())
}

struct Failed<'a> {
    rank: usize,
    step: usize,
    row: &'a [Action],
}

impl std::fmt::Display for Failed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, step, row } = self;
        let first = step.saturating_sub(AROUND);
        let last = row.len().min(step + AROUND + 1);
        let mut around = if first > 0 { "… ".to_owned() } else { String::new() };
        for (at, action) in row.iter().enumerate().take(last).skip(first) {
            if at == *step { write!(around, "»{action}« ")? } else { write!(around, "{action} ")? }
        }
        around.push_str(if last < row.len() { "…" } else { "end" });
        let cell = row.get(*step).map(ToString::to_string).unwrap_or_default();
        write!(f, "pipeline rank {rank}, step {step} of {}, {cell} [{around}]", row.len())
    }
}

#[cfg(test)]
mod tests {
    use schedule::{Gather, Shape, generate, lower, named};

    use super::*;
    use crate::{Error, ErrorKind};

    #[derive(Default)]
    struct Recorder {
        noted: std::cell::RefCell<Vec<String>>,
        fails_at: Option<usize>,
    }

    impl Executor for Recorder {
        fn note(&self, action: &Action) {
            self.noted.borrow_mut().push(action.to_string());
        }
        fn run(&mut self, _: &Action) -> Result<()> {
            if Some(self.noted.borrow().len()) == self.fails_at {
                return Err(Error::new(ErrorKind::Peer, "rank 1 is gone"));
            }
            Ok(())
        }
    }

    fn program() -> Program {
        let shape = Shape { stages: 2, ranks: 2, microbatches: 3 };
        lower(&generate(named("1f1b").unwrap(), shape).unwrap(), Gather::PerPart).unwrap()
    }

    #[test]
    fn every_action_of_the_row_is_noted_and_run_in_order() {
        let (program, mut recorder) = (program(), Recorder::default());
        interpret(&program, 0, &mut recorder).unwrap();
        let row: Vec<_> = program.table().row(0).iter().map(ToString::to_string).collect();
        assert_eq!(*recorder.noted.borrow(), row);
    }

    #[test]
    fn a_failure_keeps_its_kind_and_gains_rank_step_cell_and_row() {
        let mut recorder = Recorder { fails_at: Some(5), ..Recorder::default() };
        let failed = interpret(&program(), 0, &mut recorder).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Peer);
        let text = failed.to_string();
        assert!(text.starts_with("pipeline rank 0, step 4 of 13, 0RECV_B0 [0F0 "), "{text}");
        assert!(text.contains("0F1 0SEND_F1 »0RECV_B0« 0B0") && text.ends_with(": rank 1 is gone"), "{text}");
        assert_eq!(recorder.noted.borrow().len(), 5, "nothing runs after a failure");
    }
}
