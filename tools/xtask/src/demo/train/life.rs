//! One run's life: four processes, one of them killed in the middle of a save; stopped; moved to two other meshes, and to one
//! process.
//! In exact mode its losses are those of a run that nothing happened to, bit for bit.

use super::super::trainer::{LOSSES, SAMPLES, signal};
use super::super::workplace::Workplace;
use super::{MOVED, STEPS, STILL, compare, held};

/// The save during which a worker is killed, and how long each rank's first blob holds it up.
const KILLED_AT: &str = "debug.slow_save_step=8";
const HELD_UP: &str = "debug.slow_save=4s";
/// The run is asked to stop when this step was done.
const STOPPED_AT: u64 = 11;
/// Exit code after SIGTERM.
const TERMINATED: i32 = 143;

pub(super) fn killed(work: &mut Workplace) {
    if let Err(error) = work.configure() {
        work.report.check("the configuration is written", false, &error.to_string());
        return;
    }
    let options = ["--nproc", "4", "--max-restarts", "2", "--grace", "60s"];
    let mut launched = work.launch(&options, MOVED, &["parallelism.mesh=2x2x1", KILLED_AT, HELD_UP]);

    let wrote = launched.line(|line| line.contains("save  step 8: rank") && line.contains("first blob"));
    let victim = wrote.as_deref().and_then(pid);
    let killed = victim.is_some_and(|pid| signal("KILL", pid));
    let restarted = launched.line(|line| line.contains("restarting all (1 of 2)"));
    let told = restarted.clone().unwrap_or_default();
    let named = victim.is_some_and(|pid| told.contains(pid) && told.contains("SIGKILL"));
    // The save of step 8 is begun again, by the next incarnation.
    let reached = launched.line(|line| step(line).is_some_and(|step| step >= STOPPED_AT));
    let stopped = reached.is_some() && launched.terminate();
    let answer = launched.end();

    let said = answer.said();
    work.report.check("a worker that had written its first blob is killed", killed, &said);
    work.report.check("the launcher names it and starts all again", named, &said);
    work.report.check("training goes on from the save before, by itself", resumed_from(work, 4), &said);
    work.report.check(
        "asked to stop, it saves and ends by code 143",
        stopped && answer.code == TERMINATED,
        &said,
    );
    let answer = work.ckpt(&["verify", &MOVED.store()]);
    work.expect("verify finds its newest checkpoint whole", &answer, 0);
}

pub(super) fn moved(work: &mut Workplace) {
    let first = newest_step(work);
    let said = format!("step {first:?}");
    work.report.check("the stop has saved the last step", first >= Some(STOPPED_AT), &said);
    let resumed = ["parallelism.mesh=1x2x2", "checkpoint.resume=require", "training.steps=16"];
    let answer = work.launch(&["--nproc", "4"], MOVED, &resumed).end();
    work.expect("four processes on 1x2x2 go on", &answer, 0);
    let from = first.is_some_and(|step| resumed_from(work, step));
    work.report.check("from the step that was stopped at", from, &answer.said());
    let resumed = ["parallelism.mesh=2x1x1", "checkpoint.resume=require", "training.steps=20"];
    let answer = work.torchrun(MOVED, &resumed);
    work.expect("two processes on 2x1x1, started by torchrun, go on", &answer, 0);
    work.report.check("from step 16", resumed_from(work, 16), &answer.said());
    let answer = work.train(MOVED, &["parallelism.mesh=1x1x1", "checkpoint.resume=require"]);
    work.expect("one process goes on, to the end", &answer, 0);
    work.report.check("from step 20", resumed_from(work, 20), &answer.said());
    let answer = work.train(STILL, &["parallelism.mesh=1x1x1", "checkpoint.interval=1000"]);
    work.expect("one process alone trains without interruption", &answer, 0);

    let answer = compare(work, MOVED, STILL);
    work.expect("the losses of both are the same, bit for bit", &answer, 0);
    let answer = work.ckpt(&["diff", &MOVED.store(), &STILL.store()]);
    work.expect("and so are weights and optimizer: diff finds nothing", &answer, 0);
    let answer = work.ckpt_train(&["data", "check-log", &MOVED.file(SAMPLES)]);
    work.expect("every sample was consumed once: no gap, no repeat", &answer, 0);
    held(work, "Python readers of both logs say the same", STEPS, MOVED, STILL);
    let losses = losses(work);
    let fell = matches!((losses.first(), losses.last()), (Some(first), Some(last)) if last + 1.0 < *first);
    work.report.check("the loss falls", fell, &format!("{losses:?}"));
    work.measure("trainer's store: a checkpoint every four steps", &MOVED.store());
}

/// The process in `… rank R (pid P) wrote its first blob …`.
fn pid(line: &str) -> Option<&str> {
    line.split_once("(pid ")?.1.split_once(')').map(|(pid, _)| pid)
}

/// The step in `[0] step  12  loss …`.
fn step(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with('['));
    (words.next()? == "step").then(|| words.next()?.parse().ok())?
}

/// The records of the run's losses and of its beginnings.
fn records(work: &Workplace) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(work.folder.join(MOVED.file(LOSSES))).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Whether the incarnation that began last went on from this step.
fn resumed_from(work: &Workplace, step: u64) -> bool {
    let records = records(work);
    let last = records.iter().rfind(|record| record["name"] == "incarnation");
    let resumed = records.iter().rfind(|record| record["name"] == "resumed_from");
    let at = |record: Option<&serde_json::Value>| record.and_then(|record| record["step"].as_u64());
    at(last) == Some(step) && at(resumed) == Some(step)
}

fn losses(work: &Workplace) -> Vec<f64> {
    let records = records(work);
    let losses = records.iter().filter(|record| record["name"] == "loss_metrics/global_avg_loss");
    losses.filter_map(|record| record["value"].as_f64()).collect()
}

fn newest_step(work: &Workplace) -> Option<u64> {
    work.ckpt_json(&["inspect", &MOVED.store()]).json()["result"]["step"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_trainer_are_understood() {
        let line = "[2] save  step 8: rank 2 (pid 4711) wrote its first blob data/r00002.safetensors";
        assert_eq!((pid(line), step(line)), (Some("4711"), None));
        assert_eq!(step("[0] step    12  loss  5.125000  grad_norm"), Some(12));
        assert_eq!(step("step     3  loss  5.125000"), Some(3));
        assert_eq!((pid("no process"), step("steps"), step("step x")), (None, None, None));
    }
}
