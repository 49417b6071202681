//! A run that was saved under one schedule and placement goes on under every other as if nothing had happened.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::*;

/// Meshes and schedules, and what else: in a loop, in a V, with stages of embedding or head alone, sharded otherwise, with layers that
/// are computed again.
const LAYOUTS: [&[(&str, &str)]; 8] = [
    &[("parallelism.mesh", "1x1x1")],
    &[("parallelism.mesh", "1x2x1"), ("parallelism.schedule", "ZBVZeroBubble")],
    &[("parallelism.mesh", "2x2x1"), ("parallelism.schedule", "Interleaved1F1B")],
    &[
        ("parallelism.mesh", "1x4x1"),
        ("parallelism.schedule", "1F1B"),
        ("parallelism.stage_split", "[0, 2, 2, 0]"),
    ],
    &[("parallelism.mesh", "1x2x2"), ("parallelism.schedule", "DualPipeV")],
    &[
        ("parallelism.mesh", "2x2x2"),
        ("parallelism.schedule", "ZBH1"),
        ("activation_checkpoint.mode", "full"),
    ],
    &[
        ("parallelism.mesh", "1x2x1"),
        ("parallelism.schedule", "LoopedBFS"),
        ("parallelism.stages_per_rank", "3"),
    ],
    &[("parallelism.mesh", "2x1x1"), ("fsdp.strategy", "no_shard")],
];

const BEFORE: &str = "10";
const AFTER: &str = "12";

fn settings<'a>(layout: &[(&'a str, &'a str)], steps: &'a str) -> Vec<(&'a str, &'a str)> {
    let same =
        [("training.steps", steps), ("lr_scheduler.decay_steps", AFTER), ("checkpoint.interval", BEFORE)];
    [layout, &same].concat()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Digests of weights, moments and counts of the newest checkpoint, by name and role.
fn digests(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let loader = dcp::load::Loader::newest(&open(place), &"main".parse().unwrap()).unwrap();
    let digest = |entry: &fqn::Entry| {
        let whole = reshard::Region::whole(&entry.shape).unwrap();
        let bytes = loader.reader().read_vec(&entry.id(), &whole).unwrap();
        (entry.id().to_string(), Sha256::digest(&bytes).to_vec())
    };
    loader.catalog().registry.entries().iter().map(digest).collect()
}

/// That the newest checkpoint has the names, shapes and roles of the unsplit model, and no others.
fn check_names(place: &Place, model: &str, layout: &[(&str, &str)]) {
    let outline = Outline::new(&place.job(model, &settings(layout, BEFORE)).unwrap().config).unwrap();
    let baseline = fqn::baseline::read(&outline.baseline().unwrap()).unwrap();
    let loader = dcp::load::Loader::newest(&open(place), &"main".parse().unwrap()).unwrap();
    let registry = &loader.catalog().registry;
    let params = registry.entries().iter().filter(|entry| entry.role == fqn::Role::Param).count();
    assert_eq!(params, baseline.len(), "{layout:?}");
    let mut only = fqn::Registry::new();
    for entry in registry.entries().iter().filter(|entry| entry.role == fqn::Role::Param) {
        only.push(entry.clone()).unwrap();
    }
    let report = fqn::baseline::check(&baseline, fqn::baseline::Observed { registry: &only, pieces: &[] });
    assert!(report.findings.is_empty() && report.agreeing == params, "{layout:?}: {report:?}");
}

#[test]
fn what_one_schedule_and_placement_saved_goes_on_under_every_other_with_a_loss_difference_of_zero() {
    for model in ["llama", "gpt2"] {
        let (whole, last) = {
            let place = Place::new();
            let ran = place.run_model(model, &settings(LAYOUTS[0], AFTER));
            ran.summary.unwrap();
            (ran.curve, digests(&place))
        };
        assert_eq!(whole.len(), 12);
        // One model goes from every layout to its two neighbours, the other from a V to all.
        let pairs: Vec<(usize, usize)> = match model {
            "llama" => (0..LAYOUTS.len()).filter(|to| *to != 1).map(|to| (1, to)).collect(),
            _ => (0..LAYOUTS.len()).map(|from| (from, (from + 3) % LAYOUTS.len())).collect(),
        };
        let mut saved: BTreeMap<usize, Place> = BTreeMap::new();
        let mut state = None;
        for (from, to) in pairs {
            let first = saved.entry(from).or_insert_with(|| {
                let place = Place::new();
                let ran = place.run_model(model, &settings(LAYOUTS[from], BEFORE));
                ran.summary.unwrap_or_else(|error| panic!("{model} {:?}: {error}", LAYOUTS[from]));
                assert_eq!(ran.curve, whole[..10], "{model} {:?}", LAYOUTS[from]);
                check_names(&place, model, LAYOUTS[from]);
                place
            });
            let found = digests(first);
            assert!(
                *state.get_or_insert_with(|| found.clone()) == found,
                "{model} {:?} saves other bytes",
                LAYOUTS[from]
            );
            let place = Place::new();
            copy(&first.path().join("root"), &place.path().join("root"));
            let ran = place.run_model(model, &settings(LAYOUTS[to], AFTER));
            ran.summary.unwrap_or_else(|error| panic!("{model} {:?}: {error}", LAYOUTS[to]));
            assert_eq!((ran.begun[0].step, ran.begun[0].from.is_some()), (10, true));
            assert_eq!(ran.curve, whole[10..], "{model} from {:?} to {:?}", LAYOUTS[from], LAYOUTS[to]);
            assert!(
                digests(&place) == last,
                "{model} from {:?} to {:?}: other bytes",
                LAYOUTS[from],
                LAYOUTS[to]
            );
            check_names(&place, model, LAYOUTS[to]);
        }
    }
}
