//! Saves of a run: what they share with the checkpoint before, and what a failed one leaves to the next.

use super::*;

/// Bytes that all ranks together wrote at a step, and those that they shared.
fn bytes(saved: &[Saved], step: u64) -> (u64, u64) {
    let of_step = saved.iter().filter(|it| it.step == step);
    of_step.fold((0, 0), |(bytes, shared), it| (bytes + it.bytes, shared + it.shared))
}

#[test]
fn a_save_that_shares_does_not_write_again_what_has_not_changed() {
    for (share, rate) in [("true", "0.0"), ("true", "1e-3"), ("false", "0.0")] {
        let place = Place::new();
        // Without a rate weights stay as they are, and moments don't.
        let settings = |steps, mesh| {
            [
                ("checkpoint.share", share),
                ("optimizer.lr", rate),
                ("model.dim", "128"),
                ("training.steps", steps),
                ("parallelism.mesh", mesh),
            ]
        };
        let first = place.run(&settings("2", "1x1x1"));
        first.summary.unwrap();
        let before = weights(&place);
        let (all, _) = bytes(&first.saved, 2);
        let again = place.run(&settings("4", "1x1x1"));
        again.summary.unwrap();
        let (written, shared) = bytes(&again.saved, 4);
        // But for the headers of files.
        assert!((written + shared).abs_diff(all) < 4096, "{share} {rate}: {written} + {shared}, {all}");
        // Embedding and head: smaller tensors are always written.
        let expected = if share == "true" && rate == "0.0" { 2 * 256 * 128 * 4 } else { 0 };
        assert_eq!(shared, expected, "{share} {rate}: {shared} of {all}");
        assert_eq!(weights(&place) == before, rate == "0.0");
        let moved = place.run(&settings("6", "2x1x2"));
        moved.summary.unwrap();
        assert_eq!((moved.begun[0].step, moved.warnings), (4, vec![]));
    }
}

/// A model of one layer with five matrices of 256 KiB, of which halves are shared too; all others are small. Weights stay.
fn still<'a>(steps: &'a str, mesh: &'a str) -> [(&'a str, &'a str); 7] {
    [
        ("checkpoint.share", "true"),
        ("optimizer.lr", "0.0"),
        ("model.layers", "1"),
        ("model.dim", "256"),
        ("model.ffn", "256"),
        ("training.steps", steps),
        ("parallelism.mesh", mesh),
    ]
}

/// Embedding, head and the three of the MLP.
const LARGE: u64 = 5 * 256 * 256 * 4;
/// Both moments of the embedding's upper half, zeros for ever: the text has no bytes beyond ASCII.
const ZEROS: u64 = 2 * 128 * 256 * 4;

#[test]
fn a_save_shares_with_a_checkpoint_that_the_same_run_committed() {
    const { assert!(LARGE / 5 / 2 > dcp::save::Sharing::LEAST) };
    let place = Place::new();
    let ran = place.run(&still("6", "2x1x1"));
    ran.summary.unwrap();
    let (all, shared) = bytes(&ran.saved, 2);
    assert_eq!(shared, 0, "there is nothing before it");
    // The save of step 2 is over when that of step 4 begins, and all know it by step 5.
    let (written, shared) = bytes(&ran.saved, 6);
    assert_eq!(shared, LARGE + ZEROS, "of {all}");
    assert!((written + shared).abs_diff(all) < 2 * 4096, "{written} + {shared}, {all}");
}

#[test]
fn a_save_shares_with_a_checkpoint_of_another_mesh_also_where_that_was_cut_otherwise() {
    let place = Place::new();
    place.run(&still("2", "1x1x2")).summary.unwrap();
    let before = weights(&place);
    let ran = place.run(&still("4", "2x1x1"));
    ran.summary.unwrap();
    assert_eq!((ran.begun[0].step, ran.warnings), (2, vec![]));
    assert_eq!(bytes(&ran.saved, 4).1, LARGE + ZEROS);
    assert!(weights(&place) == before);
    // Also what refers to two checkpoints before it is all there.
    let ran = place.run(&still("6", "1x1x2"));
    ran.summary.unwrap();
    assert_eq!((ran.begun[0].step, ran.warnings), (4, vec![]));
    assert_eq!(bytes(&ran.saved, 6).1, LARGE + ZEROS);
    assert!(weights(&place) == before);
}

#[test]
fn a_save_that_failed_leaves_the_next_one_its_time() {
    let place = Place::new();
    let settings = [
        ("parallelism.mesh", "2x1x1"),
        ("training.steps", "9"),
        ("checkpoint.interval", "3"),
        ("checkpoint.on_save_failure", "continue"),
        ("debug.fail_save_step", "3"),
        ("debug.fail_save_rank", "1"),
        // Of this one, rank 1's part is late.
        ("debug.slow_save_step", "6"),
        ("comm.step_timeout", "30s"),
    ];
    let ran = place.run(&settings);
    ran.summary.unwrap();
    assert!(
        !ran.warnings.is_empty() && ran.warnings.iter().all(|it| it.contains("save of step 3")),
        "{:?}",
        ran.warnings
    );
    let late = ran.saved.iter().filter(|it| it.step == 6 && it.writing >= LATE);
    assert_eq!(late.count(), 1);
    let log = dcp::commit::Log::open(&open(&place)).unwrap();
    let steps: Vec<u64> = log.state().checkpoints.values().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, [6, 9]);
}

#[test]
fn a_run_that_a_failed_save_stops_does_not_wait_for_the_part_that_will_not_come() {
    let place = Place::new();
    let settings = [
        ("parallelism.mesh", "2x1x1"),
        ("training.steps", "9"),
        ("checkpoint.interval", "3"),
        ("checkpoint.on_save_failure", "stop"),
        ("debug.fail_save_step", "3"),
        ("debug.fail_save_rank", "1"),
        ("comm.step_timeout", "60s"),
    ];
    let began = std::time::Instant::now();
    let error = place.run(&settings).summary.unwrap_err();
    assert!(error.to_string().contains("a save failed on rank 1"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}
