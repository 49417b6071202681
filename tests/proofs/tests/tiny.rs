//! The proofs at a tiny size: all parts work together, and nothing is bad.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::process::Command;

use serde_json::Value;

fn proof(name: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_proofs"))
        .args([name, "--tiny"])
        .env_remove("CKPT_BIN")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn no_crash_leaves_a_bad_state() {
    let said = proof("crash");
    assert_eq!((&said["holds"], &said["figures"]["bad"]), (&true.into(), &0.into()));
    let scenarios = said["figures"]["scenarios"].as_object().unwrap();
    assert_eq!(scenarios.len(), 11);
    assert!(scenarios.values().all(|row| row["checked"].as_u64().unwrap() > 5), "{said}");
}

#[test]
fn no_kill_loses_or_mixes_a_checkpoint() {
    let said = proof("killer");
    assert_eq!((&said["holds"], &said["figures"]["bad"]), (&true.into(), &0.into()));
    assert!(said["figures"]["kills"].as_u64().unwrap() > 0, "{said}");
}
