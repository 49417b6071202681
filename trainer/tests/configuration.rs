//! What `ckpt-train` says to right and wrong configurations, word for word, and how it ends.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{fs, path::Path, process::Command};

const RUN: &str = "\
include = [\"base.toml\"]

[training]
steps = 20
global_batch = 16

[parallelism]
mesh = \"2x2x1\"
";

const BASE: &str = "\
data.folder = \"text\"

[model]
kind = \"llama\"
dim = 64
layers = 4
heads = 4
ffn = 128
";

struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), RUN).unwrap();
    fs::write(folder.path().join("base.toml"), BASE).unwrap();
    folder
}

fn run(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-train"));
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOG_RANK"] {
        command.env_remove(name);
    }
    let output =
        command.current_dir(folder).args(arguments).envs(variables.iter().copied()).output().unwrap();
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn train(options: &[&str]) -> Answer {
    let folder = place();
    run(folder.path(), &[&["train", "--config", "run.toml"], options].concat(), &[])
}

#[test]
fn the_printed_configuration_names_the_origin_of_every_value() {
    let answer = train(&["--print-config", "--training.seed=7", "--set", "comm.step_timeout=90s"]);
    assert_eq!((answer.code, answer.err.as_str()), (Some(0), ""));
    for line in [
        "steps = 20  # run.toml:4",
        "seed = 7  # command line",
        "micro_batch = 1  # default",
        "microbatches = 8  # from global_batch, micro_batch and dp",
        "step_timeout = \"90s\"  # command line",
        "dim = 64  # base.toml:5",
        "vocab = 256  # from bytes as tokens",
        "folder = \"text\"  # base.toml:1",
    ] {
        // How wide the columns are depends on the other keys of the section.
        let same = |found: &str| found.split_whitespace().eq(line.split_whitespace());
        assert!(answer.out.lines().any(same), "{line:?} is not in\n{}", answer.out);
    }
    // Printed and read again, it is the same to the digest.
    let folder = place();
    fs::write(folder.path().join("again.toml"), &answer.out).unwrap();
    let again = run(folder.path(), &["config", "-c", "again.toml"], &[]);
    assert_eq!(again.out.lines().next(), answer.out.lines().next());
    assert!(again.out.starts_with("# sha256 "), "{}", again.out);
}

#[test]
fn refusals_say_what_where_why_and_what_to_do() {
    let refused = |options: &[&str], said: &str| {
        let answer = train(options);
        assert_eq!(answer.err, said, "{options:?}");
        assert_eq!((answer.code, answer.out.as_str()), (Some(78), ""));
    };
    let keys = "hint   `ckpt-train config keys` lists all keys, what they take and what they mean\n";
    refused(
        &["--training.stepz=5"],
        &format!("error  command line: unknown key `training.stepz`; did you mean `training.steps`?\n{keys}"),
    );
    refused(
        &["--training.steps", "many"],
        &format!(
            "error  command line: `training.steps` is \"many\", expected a whole number of at least 1\n{keys}"
        ),
    );
    refused(
        &["--training.global_batch=15"],
        "error  training.global_batch=15 is no multiple of training.micro_batch=1 x dp=2 = 2 \
         (parallelism.mesh=2x2x1); 14 or 16 would do\n\
         hint   global_batch = microbatches x micro_batch x dp must hold\n",
    );
    refused(
        &["--training.global_batch=12"],
        "error  in exact mode the microbatches of a replica must be a power of two, but training.global_batch=12 / \
         (training.micro_batch=1 x dp=2) = 6\n\
         hint   choose other batch sizes, or training.mode=fast\n",
    );
    let answer = train(&["--parallelism.mesh=1x1x8"]);
    assert_eq!(answer.code, Some(78));
    assert!(answer.err.contains("4 query heads do not divide over tp=8"), "{}", answer.err);
    assert!(answer.err.contains("meshes that fit: dp=2 pp=1 tp=4"), "{}", answer.err);
}

#[test]
fn wrong_lines_of_a_file_are_named() {
    let folder = place();
    let answer = |text: &str| {
        fs::write(folder.path().join("bad.toml"), text).unwrap();
        run(folder.path(), &["train", "-c", "bad.toml"], &[])
    };
    assert!(
        answer("\n\n[trainer]\nsteps = 1\n")
            .err
            .starts_with("error  bad.toml:4: unknown key `trainer.steps`; did you mean `training.steps`?")
    );
    assert!(answer("[training]\nsteps = \n").err.starts_with("error  bad.toml:2: this is not TOML:"));
    let absent = run(folder.path(), &["train", "-c", "absent.toml"], &[]);
    assert!(
        absent.err.starts_with("error  cannot read configuration absent.toml: No such file"),
        "{}",
        absent.err
    );
    let usage = run(folder.path(), &["train", "--training.steps"], &[]);
    assert_eq!(usage.code, Some(2));
}

#[test]
fn ranks_that_do_not_fit_the_mesh_or_each_other_are_refused() {
    let folder = place();
    let with = |variables: &[(&str, &str)]| run(folder.path(), &["train", "-c", "run.toml"], variables);
    let answer = with(&[("RANK", "0"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")]);
    assert_eq!(answer.code, Some(78));
    assert!(answer.err.contains("= 4 ranks, but there are 8 processes"), "{}", answer.err);
    let answer = with(&[("RANK", "4"), ("WORLD_SIZE", "4")]);
    assert!(answer.err.contains("RANK=4 is not below WORLD_SIZE=4"), "{}", answer.err);
    let answer = run(folder.path(), &["launch", "-n", "3", "--", "-c", "run.toml"], &[]);
    assert_eq!(answer.code, Some(78));
    assert!(answer.err.contains("= 4 ranks, but there are 3 processes"), "{}", answer.err);
    assert!(!folder.path().join("logs").exists(), "refused before anything was started");
}

#[test]
fn logs_of_consumed_samples_are_proven_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let start = r#"{"kind":"start","incarnation":0,"step":0,"cursor":0}"#;
    let step = |step: u64, cursor: u64, index: u64| {
        format!(
            r#"{{"kind":"step","incarnation":0,"step":{step},"cursor":{cursor},"samples":[[0,{index}]]}}"#
        )
    };
    let check = |lines: &[&str]| {
        fs::write(folder.path().join("log.jsonl"), lines.join("\n")).unwrap();
        run(folder.path(), &["data", "check-log", "log.jsonl"], &[])
    };
    let good = check(&[start, &step(1, 0, 5), &step(2, 1, 3)]);
    assert_eq!(good.code, Some(0));
    assert!(
        good.out.starts_with("every sample once: 2 steps, 2 samples, no gap, no repeat\n1 incarnations"),
        "{}",
        good.out
    );
    let bad = check(&[start, &step(1, 0, 5), &step(2, 1, 5)]);
    assert_eq!(bad.code, Some(20));
    assert!(bad.err.contains("log.jsonl: line 3: sample 5 of epoch 0 was consumed twice"), "{}", bad.err);
    let short = run(folder.path(), &["data", "describe", ".", "--seq-len", "1000000"], &[]);
    assert_eq!(short.code, Some(65));
    assert!(short.err.contains("needs at least 1000001 for one sample"), "{}", short.err);
}

#[test]
fn curves_are_compared_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let record = |step: u64, bits: &str| {
        let name = "loss_metrics/global_avg_loss";
        format!(r#"{{"step":{step},"time_us":1,"rank":0,"name":"{name}","value":4.0,"bits":"{bits}"}}"#)
    };
    let compare = |second: &[String]| {
        fs::write(folder.path().join("a"), [record(1, "40800000"), record(2, "40800001")].join("\n"))
            .unwrap();
        fs::write(folder.path().join("b"), second.join("\n")).unwrap();
        run(folder.path(), &["compare", "a", "b"], &[])
    };
    let same = compare(&[record(1, "40800000"), record(2, "40800001")]);
    assert_eq!(
        (same.code, same.out.as_str()),
        (Some(0), "same  2 steps of loss_metrics/global_avg_loss, to the bit\n")
    );
    let apart = compare(&[record(1, "40800000"), record(2, "40800000")]);
    assert_eq!(apart.code, Some(1));
    assert!(apart.out.contains("at step 2: 4.0000005 (40800001) and 4 (40800000)"), "{}", apart.out);
    let shorter = compare(&[record(1, "40800000")]);
    assert_eq!(shorter.code, Some(1));
    let words =
        "one ends with step 2, the other with step 1; the steps that both have are the same, to the bit";
    assert!(shorter.out.contains(words), "{}", shorter.out);
    assert_eq!(compare(&[]).code, Some(10));
}

#[test]
fn the_example_configurations_are_accepted_as_they_are_and_on_meshes_of_eight() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for name in ["llama.toml", "gpt2.toml"] {
        let file = examples.join(name);
        let file = file.to_str().unwrap();
        for mesh in ["1x1x1", "2x2x1", "1x2x2", "2x2x2", "1x8x1"] {
            let mesh = format!("--parallelism.mesh={mesh}");
            let answer = run(Path::new("."), &["train", "--print-config", "-c", file, &mesh], &[]);
            assert_eq!((answer.code, answer.err.as_str()), (Some(0), ""), "{name} {mesh}");
        }
    }
}
