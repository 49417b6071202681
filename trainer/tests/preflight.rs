//! `ckpt-train preflight`: four workers, eight layers, one command.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{fs, path::Path, process::Command};

fn preflight(folder: &Path, options: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-train"));
    command.current_dir(folder).arg("preflight").args(options);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn four_workers_eight_layers_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = preflight(folder.path(), &["--folder", "kept", "--json"]);
    assert_eq!(code, Some(0), "{out}\n{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    let checks = found["checks"].as_array().unwrap();
    assert_eq!((found["passed"].as_bool(), checks.len()), (Some(true), 8), "{out}");
    for words in [
        "75 names on 4 stages",
        "rank 2 (pid ",
        "was killed by signal 9 (SIGKILL); restarting all (1 of 1)",
        "12 of 12 losses are equal to the last bit",
        "192 samples in 12 steps and 3 starts",
        "75 names, none missing, none more",
    ] {
        assert!(out.contains(words), "{words:?} is not in\n{out}");
    }
    assert!(folder.path().join("kept/moved-launch.log").is_file());
}

#[test]
fn a_preflight_that_fails_says_where_and_keeps_what_was_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, _) = preflight(folder.path(), &["--folder", "kept", "--schedule", "DualPipeW"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with("FAILED  every name is on one stage") && out.contains("DualPipeV"), "{out}");
    assert!(out.contains("kept    kept:"), "{out}");
    let (code, _, err) = preflight(folder.path(), &["--folder", "kept"]);
    assert_eq!(code, Some(11));
    assert!(err.contains("kept is not empty"), "{err}");
    assert!(fs::read_dir(folder.path().join("kept")).unwrap().count() > 0);
}
