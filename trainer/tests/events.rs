//! TensorBoard's files of a run that was resumed, read by a reader that was written from the format's definition alone, in Python.

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::{env, path::Path, process::Command};

use training::Place;

#[test]
fn event_files_hold_what_the_records_of_the_rank_hold_and_resumes_leave_no_step_twice() {
    let place = Place::new();
    let settings = ["--metrics.tensorboard=true", "--metrics.log_freq=1", "--lr_scheduler.decay_steps=8"];
    let train = |more: &[&str]| place.train(&[&settings[..], more].concat());
    // Dies after the save of step 4; then goes on from there.
    let dead = train(&["--training.steps=6", "--debug.die_step=6", "--debug.die_rank=0"]);
    assert_eq!(dead.code, None, "killed: {}", dead.err);
    train(&["--training.steps=6"]).is(0, &[]);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/python/read_events.py");
    let python = env::var_os("CKPT_PYTHON").expect("CKPT_PYTHON: run `cargo xtask test`");
    let folder = place.path().join("metrics/tensorboard");
    let output = Command::new(python).arg(script).arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["files"], 2);

    let history = trainer::metrics::History::read(place.path()).unwrap();
    let rank = &history.ranks[0];
    let steps: Vec<u64> = rank.steps.keys().copied().collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    for tag in ["loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)", "time_metrics/end_to_end(s)"]
    {
        let values = found["tags"][tag].as_array().unwrap_or_else(|| panic!("no {tag} in {}", found["tags"]));
        let seen: Vec<(u64, u64)> =
            values.iter().map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap())).collect();
        #[expect(clippy::cast_possible_truncation, reason = "event files have f32")]
        let recorded: Vec<(u64, u64)> =
            steps.iter().map(|step| (*step, u64::from((rank.steps[step][tag] as f32).to_bits()))).collect();
        assert_eq!(seen, recorded, "{tag}");
    }
}
