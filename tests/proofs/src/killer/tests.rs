//! What a proof that kills must not do: take one phase for all of them, or nothing for something.

use super::{
    rounds::{Field, Kind},
    running::{Phase, Running, Starter},
    *,
};

fn field(kills: &[(Kind, Phase, u64)]) -> Field {
    let starter = Starter { program: PathBuf::new(), root: PathBuf::from("/nowhere/root"), sleep: 0 };
    let mut field = Field::new(starter, None, 1);
    field.kills = kills.iter().map(|(kind, phase, count)| ((*kind, *phase), *count)).collect();
    field
}

fn concluded(full: bool, field: &Field) -> Vec<String> {
    let size = Size { full, seed: 1 };
    let options = Options { size, ckpt: None, python: None, folder: None, tiny: false };
    let mut kills = Kills::default();
    kills.conclude(field, &options);
    kills.bad()
}

#[test]
fn a_run_that_hits_one_phase_or_nothing_is_bad() {
    assert!(!concluded(false, &field(&[])).is_empty());
    assert!(!concluded(false, &field(&[(Kind::Save, Phase::Blobs, 30)])).is_empty());
    let several =
        [(Kind::Save, Phase::Blobs, 9), (Kind::Save, Phase::Parts, 9), (Kind::Forget, Phase::Delete, 400)];
    assert_eq!(concluded(false, &field(&several)), [""; 0]);
    assert!(concluded(true, &field(&several)).iter().any(|what| what.starts_with("forget: all kills hit")));
    let few = [(Kind::Save, Phase::Blobs, 9), (Kind::Save, Phase::Parts, 9), (Kind::Save, Phase::Record, 9)];
    assert!(concluded(true, &field(&few)).iter().any(|what| what.contains("27 kills, 200 are promised")));
}

#[test]
fn a_killed_process_is_told_from_one_that_ended_or_failed() {
    let sh = |script: &str| Running::start(std::process::Command::new("sh").args(["-c", script])).unwrap();
    let killed = sh("echo begin; echo wrote; sleep 20").killed_at(Duration::from_millis(300)).unwrap();
    assert_eq!((killed.killed, killed.done, killed.phase), (true, false, Phase::Blobs));
    let ended = sh("echo kept 3; echo committed").ends().unwrap();
    assert_eq!((ended.killed, ended.done, ended.phase, ended.kept()), (false, true, Phase::After, 3));
    let late = sh("echo committed").killed_at(Duration::from_millis(500)).unwrap();
    assert!(late.done && !late.killed);
    let failed = sh("echo no way >&2; exit 3").ends().unwrap();
    assert!(failed.well("it").unwrap_err().contains("no way"));
}
