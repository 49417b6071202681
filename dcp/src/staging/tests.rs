//! What is promised of staged targets, on a real file system.

use super::*;

const PLAN: &str = "0123456789abcdef0123456789abcdef";

fn done(file: usize, path: &str, size: u64) -> FileDone {
    FileDone {
        file,
        path: path.to_owned(),
        size,
        logical: None,
        crc32: vec![7],
        blocks: None,
        sums: Vec::new(),
        source_sums: Vec::new(),
    }
}

fn write(staging: &Staging, file: usize, path: &str, bytes: &[u8]) {
    let blob = staging.blob(path, bytes.len() as u64).unwrap();
    blob.write_at(0, bytes).unwrap();
    blob.finish().unwrap();
    staging.file_done(&done(file, path, bytes.len() as u64)).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_folder_appears_at_one_moment_and_nothing_else_stays() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new/out");
    let staging = Staging::open(&target, PLAN, TargetKind::Folder).unwrap();
    write(&staging, 0, "a/model.safetensors", b"tensor");
    staging.put("config.json", &Bytes::from_static(b"{}")).unwrap();
    assert!(!target.exists());
    staging.publish().unwrap();
    assert_eq!(names(&dir.path().join("new")), ["out"]);
    assert_eq!(fs::read(target.join("a/model.safetensors")).unwrap(), b"tensor");
    assert_eq!(names(&target), ["a", "config.json"]);
}

#[test]
fn a_single_file_appears_under_its_own_name() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("model.pt");
    let staging = Staging::open(&target, PLAN, TargetKind::File).unwrap();
    write(&staging, 0, "model.pt", b"archive");
    staging.publish().unwrap();
    assert_eq!(names(dir.path()), ["model.pt"]);
    assert_eq!(fs::read(target).unwrap(), b"archive");
}

#[test]
fn a_second_run_of_the_plan_finds_what_is_finished_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    {
        let staging = Staging::open(&target, PLAN, TargetKind::Folder).unwrap();
        write(&staging, 0, "kept", b"whole");
        write(&staging, 1, "cut", b"whole");
        write(&staging, 2, "gone", b"whole");
        staging.put("unfinished", &Bytes::from_static(b"?")).unwrap();
        fs::write(staging.partial().join("data/cut"), b"who").unwrap();
        fs::remove_file(staging.partial().join("data/gone")).unwrap();
        fs::write(staging.partial().join("journal/00000007.json"), b"{torn").unwrap();
        fs::write(staging.partial().join("data/.staging-00000000000000000000000000000001"), b"half").unwrap();
    }
    let staging = Staging::open(&target, PLAN, TargetKind::Folder).unwrap();
    let finished: Vec<String> = staging.finished().into_iter().map(|done| done.path).collect();
    assert_eq!(finished, ["kept"]);
    assert_eq!(staging.finished()[0].crc32, [7]);
    write(&staging, 1, "cut", b"whole");
    staging.publish().unwrap();
    assert_eq!(names(&target), ["cut", "kept"]);
}

#[test]
fn a_target_that_exists_is_refused_at_the_start_and_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let staging = Staging::open(&target, PLAN, TargetKind::Folder).unwrap();
    write(&staging, 0, "f", b"ours");
    fs::create_dir(&target).unwrap();
    let error = staging.publish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(names(&target).is_empty());
    let error = Staging::open(&target, PLAN, TargetKind::Folder).unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    fs::remove_dir(&target).unwrap();
    Staging::open(&target, PLAN, TargetKind::Folder).unwrap().publish().unwrap();
    assert_eq!(names(&target), ["f"]);
}

#[test]
fn a_plan_is_run_once_at_a_time_and_what_others_left_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out");
    let first = Staging::open(&target, PLAN, TargetKind::Folder).unwrap();
    let error = Staging::open(&target, PLAN, TargetKind::Folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let other = Staging::open(&target, &PLAN.replace('0', "f"), TargetKind::Folder).unwrap();
    assert_eq!(other.stale().unwrap(), [first.partial().to_owned()]);
}

#[test]
fn names_that_lead_out_of_the_target_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::open(&dir.path().join("out"), PLAN, TargetKind::Folder).unwrap();
    for path in ["../x", "a/../../x", "/etc/x", ""] {
        assert!(staging.blob(path, 1).is_err(), "{path}");
    }
    assert!(Staging::open(Path::new("/"), PLAN, TargetKind::Folder).is_err());
}
