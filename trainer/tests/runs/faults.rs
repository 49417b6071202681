//! What must stop a run, what must not, and what is left of it.

use crate::place::Place;

/// A run of two steps, with a checkpoint of the last.
fn begun() -> Place {
    let place = Place::new();
    place.train("run", &["training.steps=2"]).is(0, &[]);
    assert_eq!(place.checkpoints("run"), [2]);
    place
}

#[test]
fn when_the_disk_is_full_training_goes_on_without_saves_if_that_is_the_policy() {
    let place = begun();
    let more = ["training.steps=6", "checkpoint.on_save_failure=continue"];
    place.train_within(300, "run", &more).is(0, &["a save failed on rank 0", "the checkpoint before stays"]);
    assert_eq!(place.checkpoints("run"), [2]);
    assert_eq!(place.curve("run").len(), 6, "it trained on");
    place.train("run", &["training.steps=6", "checkpoint.resume=require"]).is(0, &[]);
    place.is_undisturbed("run", 6);
    assert_eq!(place.samples("run", 6), 3);
}

#[test]
fn when_the_disk_is_full_training_stops_if_that_is_the_policy() {
    let place = begun();
    let more = ["training.steps=40", "checkpoint.on_save_failure=stop"];
    place
        .train_within(300, "run", &more)
        .is(74, &["a save failed on rank 0", "the checkpoint before is untouched"]);
    assert_eq!(place.checkpoints("run"), [2]);
    place.train("run", &["training.steps=6", "checkpoint.resume=require"]).is(0, &[]);
    place.is_undisturbed("run", 6);
}

#[test]
fn a_worker_that_never_arrives_is_named() {
    let place = Place::new();
    let more = ["parallelism.mesh=2x1x1", "training.steps=2", "comm.start_timeout=2s"];
    place.train_forsaken("run", &more).is(75, &["rank 1"]);
}

#[test]
fn a_value_that_is_not_finite_on_one_rank_stops_all_before_they_update() {
    let place = Place::new();
    let more = ["parallelism.mesh=2x1x1", "training.steps=6"];
    let faulty = [&more[..], &["debug.nan_step=6", "debug.nan_rank=1"]].concat();
    let launched = place.launch(&["-n", "2", "--max-restarts", "3"], "run", &faulty);
    launched.end().is(23, &["[0] error", "[1] error", "step 6", "not restarting"]);
    assert!([&[2][..], &[2, 4]].contains(&&*place.checkpoints("run")), "the save of step 4 may be cut off");
    assert_eq!(place.curve("run").len(), 5);
    place.launch(&["-n", "2"], "run", &more).end().is(0, &[]);
    place.is_undisturbed("run", 6);
}

#[test]
fn a_rank_that_stops_answering_is_named_and_all_start_again() {
    let place = Place::new();
    let hangs = ["debug.hang_step=4", "debug.hang_rank=1", "comm.step_timeout=6s", "comm.dump_folder=dumps"];
    let more = [&["parallelism.mesh=2x1x1", "training.steps=6"], &hangs[..]].concat();
    let launched = place.launch(&["-n", "2", "--max-restarts", "1", "--grace", "1s"], "run", &more);
    launched.end().is(0, &["[0] error", "rank 1", "restarting all (1 of 1)"]);
    place.is_undisturbed("run", 6);
    let dumps = std::fs::read_dir(place.path().join("dumps")).unwrap().count();
    assert!(dumps > 0, "the rank that gave up says what it was doing");
}

#[test]
fn a_rank_that_dies_ends_the_run_when_no_restart_is_left() {
    let place = Place::new();
    let more = ["parallelism.mesh=2x1x1", "training.steps=8", "debug.die_step=6", "debug.die_rank=1"];
    let launched = place.launch(&["-n", "2", "--max-restarts", "0"], "run", &more);
    launched.end().is(137, &["rank 1", "giving up after 0 of 0 restarts"]);
    assert!(place.checkpoints("run").starts_with(&[2]));
    place.train("run", &["training.steps=8"]).is(0, &["resume"]);
    place.is_undisturbed("run", 8);
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_the_names_of_what_differs() {
    let place = begun();
    let wide = ["model.ffn=96", "training.steps=4"];
    place.train("run", &wide).is(22, &["layers.0.feed_forward.w1.weight", "another model"]);
    let deep = ["model.layers=5", "training.steps=4"];
    place.train("run", &deep).is(22, &["layers.4.attention.wk.weight", "is missing"]);
    assert_eq!(place.checkpoints("run"), [2]);
}

#[test]
fn other_data_and_another_geometry_are_refused() {
    let place = begun();
    place.train("run", &["training.steps=4", "exact.virtual_tp=4"]).is(22, &["virtual tp ranks"]);
    std::fs::write(place.path().join("text/a.txt"), "quite another text. ".repeat(100)).unwrap();
    place.train("run", &["training.steps=4"]).is(65, &["was trained on data"]);
    assert_eq!(place.checkpoints("run"), [2]);
}
