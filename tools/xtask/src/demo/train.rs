//! The four stages of the trainer: from its first step, through a kill and three meshes, to what other software makes of
//! its last. The closing table comes behind them.

mod life;
mod out;
mod wide;

use super::Stage;
use super::trainer::{LOSSES, Run, SAMPLES};
use super::workplace::{Answer, Workplace};

/// The run that is killed, stopped and moved.
const MOVED: Run = Run("run");
/// The same, in one process, without interruption.
const STILL: Run = Run("still");

/// Steps of both, and sequences of each.
const STEPS: u64 = 24;
const BATCH: u64 = 16;

/// In order, with their titles.
pub(super) const ALL: [(&str, Stage); 4] = [
    ("the trainer on 2x2x1: a rank killed in mid-save", life::killed),
    ("stopped; on 1x2x2, on 2x1x1, alone: the same curve", life::moved),
    ("64 ranks on 4x2x8, resharded, trained on 8x1x8", wide::resharded),
    ("out again: transformers, and PyTorch with its optimizer", out::exported),
];

/// Has the Python readers of our logs hold `run` against itself and against `other`.
fn held(work: &mut Workplace, what: &str, steps: u64, run: Run, other: Run) {
    let answer = work.python(
        "check_trainer_run.py",
        &[&steps.to_string(), &BATCH.to_string(), &run.file(LOSSES), &run.file(SAMPLES), &other.file(LOSSES)],
    );
    work.expect(what, &answer, 0);
}

/// Has `ckpt-train` itself compare two curves.
fn compare(work: &Workplace, run: Run, other: Run) -> Answer {
    work.ckpt_train(&["compare", &run.file(LOSSES), &other.file(LOSSES)])
}
