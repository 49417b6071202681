//! Logs of runs that crash anywhere fold to every sample exactly once, and logs that lie are refused.

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::*;
use crate::data::{log::Writer, stream};

const LEN: u64 = 37;

fn take(cursor: u64, count: u64) -> Vec<Sample> {
    stream::samples(LEN, 11, cursor..cursor + count)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/consumed.jsonl");
    (folder, path)
}

/// An incarnation: resumes at `from`, does steps up to `to`, then dies, leaving `torn` bytes less of its last line.
fn incarnation(path: &Path, number: u64, from: u64, to: u64, batch: u64, torn: usize) {
    let mut writer = Writer::open(path, number, from, from * batch).unwrap();
    for step in from + 1..=to {
        writer.step(step, (step - 1) * batch, &take((step - 1) * batch, batch)).unwrap();
    }
    let content = fs::read(path).unwrap();
    fs::write(path, &content[..content.len() - torn.min(content.len())]).unwrap();
}

fn refused(lines: &[&str]) -> String {
    let (_folder, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, lines.join("\n")).unwrap();
    fold(&path).unwrap_err().to_string()
}

const START: &str = r#"{"kind":"start","incarnation":0,"step":0,"cursor":0}"#;
const ONE: &str = r#"{"kind":"step","incarnation":0,"step":1,"cursor":0,"samples":[[0,3],[0,1]]}"#;

#[test]
fn what_a_crash_undid_is_replayed_and_counts_once() {
    let (_folder, path) = place();
    incarnation(&path, 0, 0, 5, 4, 3);
    incarnation(&path, 1, 2, 7, 4, 0);
    let folded = fold(&path).unwrap();
    assert_eq!((folded.incarnations, folded.cut, folded.cursor), (2, 1, 28));
    // Steps 3 and 4 stood in the log and were done again; of step 5 the record was cut.
    assert_eq!(folded.replayed, 2);
    let taken: Vec<Sample> = folded.steps.into_iter().flat_map(|(_, samples)| samples).collect();
    assert_eq!(taken, take(0, 28));
}

#[test]
fn gaps_repeats_and_lies_are_told_with_their_line() {
    let at = |step: u64, cursor: u64, samples: &str| {
        format!(r#"{{"kind":"step","incarnation":0,"step":{step},"cursor":{cursor},"samples":[{samples}]}}"#)
    };
    let second = |step, cursor, samples| refused(&[START, ONE, &at(step, cursor, samples)]);
    assert_eq!(
        second(2, 4, "[0,5]"),
        "line 3: samples 2..4 were consumed by no step (step 2 begins at sample 4)"
    );
    assert_eq!(second(2, 1, "[0,5]"), "line 3: samples 1..2 were consumed twice (step 2 begins at sample 1)");
    assert_eq!(second(3, 2, "[0,5]"), "line 3: step 3 where step 2 should be");
    assert_eq!(second(2, 2, "[0,3]"), "line 3: sample 3 of epoch 0 was consumed twice");
    let later = r#"{"kind":"start","incarnation":1,"step":3,"cursor":6}"#;
    assert!(refused(&[START, ONE, later]).contains("samples 2..6 were consumed by no step"));
    assert!(refused(&[START, ONE, START]).contains("incarnation 0 among those of 1"));
    assert!(refused(&[ONE]).contains("incarnation"));
}

#[test]
fn a_line_is_taken_for_cut_only_where_a_crash_can_cut() {
    let (_folder, path) = place();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("{START}\n{ONE}\n{}", &ONE[..20])).unwrap();
    assert_eq!(fold(&path).unwrap().cut, 1);
    assert!(refused(&[START, &ONE[..20], ONE]).starts_with("line 2 is no record"));
}

proptest! {
    #[test]
    fn runs_that_crash_anywhere_consume_every_sample_once(
        crashes in prop::collection::vec((0_u64..12, 0_u64..6, 0_usize..200), 1..8),
        batch in 1_u64..6,
    ) {
        let (_folder, path) = place();
        // Each resumes from some step that was done and saved before.
        let mut saved = 0;
        let mut done = 0;
        for (number, (back, further, torn)) in crashes.into_iter().enumerate() {
            let from = done.min(saved + back % (1 + done - saved));
            saved = from;
            let to = from + further;
            // A line can only be torn if it was being written; its step was then not done.
            let torn = if further > 0 { torn.min(40) } else { 0 };
            incarnation(&path, number as u64, from, to, batch, torn);
            done = if torn > 1 { to - 1 } else { to };
        }
        let folded = fold(&path).unwrap();
        prop_assert_eq!(folded.cursor, done * batch);
        let taken: Vec<Sample> = folded.steps.into_iter().flat_map(|(_, samples)| samples).collect();
        prop_assert_eq!(taken, take(0, done * batch));
    }
}
