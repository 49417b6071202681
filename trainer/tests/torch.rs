//! The trainer against real PyTorch: the same weights, data and hyper-parameters, fifty steps, in one process and on a mesh.

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::{env, fs, path::Path};

use training::{Answer, EXE, Place};

/// Fifty steps at a small rate with a warm-up, the way that the tolerances are for.
const SETTINGS: &[&str] = &[
    "--training.steps=50",
    "--training.micro_batch=1",
    "--optimizer.lr=1e-3",
    "--lr_scheduler.warmup_steps=10",
    "--lr_scheduler.decay_type=\"cosine\"",
    "--checkpoint.interval=0",
];
const SIZES: &str = r#"{"length": 16, "micro_batch": 1, "sizes": {"layers": 4, "dim": 32, "heads": 8, "kv_heads": 4,
    "head_dim": 8, "ffn": 64, "vocab": 256, "max_length": 16}}"#;

/// A run below `name`, with the tensors of its first and its last step.
#[expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]
fn run(place: &Place, name: &str, settings: &[&str]) {
    for step in [1, 50] {
        let folder = |what: &str| place.path().join(name).join(what).display().to_string();
        // The second run makes the same steps: only the log of one of them may stay.
        let _ = fs::remove_dir_all(folder("metrics"));
        let more = [
            format!("--metrics.folder={}", folder("metrics")),
            format!("--checkpoint.root={}", folder("store")),
            format!("--debug.tensors_step={step}"),
            format!("--debug.tensors_folder={}", folder(&format!("tensors-{step}"))),
        ];
        let mut command = place.command(EXE);
        command.args(["train", "-c", "run.toml"]).args(SETTINGS).args(settings).args(&more);
        Answer::of(command.output().unwrap()).is(0, &[]);
    }
}

#[test]
fn fifty_steps_agree_with_pytorch_in_one_process_and_on_a_mesh_in_both_modes() {
    let Some(python) = env::var_os("CKPT_PYTHON") else {
        println!("skipped: CKPT_PYTHON names no Python that has torch");
        return;
    };
    let place = Place::new();
    run(&place, "one", &[]);
    run(&place, "fast", &["--training.mode=fast"]);
    run(&place, "mesh", &["--parallelism.mesh=2x2x1"]);
    run(&place, "mesh-fast", &["--parallelism.mesh=2x2x2", "--training.mode=fast"]);
    run(&place, "sequence", &["--parallelism.mesh=1x2x2", "--parallelism.sequence_parallel=true"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/python/check_trainer_torch.py");
    let mut command = place.command(python);
    command.arg(script).args(["text", SIZES, "one", "fast", "mesh", "mesh-fast", "sequence"]);
    let answer = Answer::of(command.output().unwrap());
    answer.is(0, &[]);
    assert_eq!(answer.out.matches("\"steps\": 50").count(), 5, "{}", answer.out);
    println!("{}", answer.out.trim());
}
