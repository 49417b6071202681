//! Every sharding strategy trains to the bits of one process, on every mesh, also where shards are uneven or empty; and what it saves
//! is gone on with by any other.
//!
//! Replicas read different samples, so that a reduction that does nothing, or only half of it, gives other bits than the one process,
//! which sums all microbatches by itself.

use super::*;

/// Settings that name a strategy on `dp` ranks.
type Settings = &'static [(&'static str, &'static str)];

const FULL: Settings = &[("fsdp.strategy", "full_shard"), ("fsdp.reshard_after_forward", "always")];
const KEPT: Settings = &[("fsdp.strategy", "SHARD_GRAD_OP")];
const HYBRID: Settings = &[("fsdp.strategy", "hybrid_shard"), ("parallelism.dp_shard", "2")];
const WHOLE: Settings = &[("fsdp.strategy", "no_shard")];

/// Rows that few numbers of ranks divide: of the feed-forward layer two tensor-parallel ranks have 6 each, which four ranks share out as
/// 2, 2, 2 and 0; norms have 18, heads 20.
const UNEVEN: [(&str, &str); 8] = [
    ("model.layers", "2"),
    ("model.dim", "18"),
    ("model.heads", "2"),
    ("model.kv_heads", "2"),
    ("model.head_dim", "10"),
    ("model.ffn", "12"),
    ("training.steps", "3"),
    ("checkpoint.interval", "3"),
];

/// What the newest checkpoint holds, tensor by tensor: weights and moments. Fingerprints do not depend on how it is cut.
fn state(place: &Place) -> BTreeMap<String, String> {
    let loader = dcp::load::Loader::newest(&open(place), &"main".parse().unwrap()).unwrap();
    let catalog = loader.catalog();
    let all = catalog.registry.entries().iter().zip(&catalog.tensors);
    all.map(|(entry, chunks)| (entry.id().to_string(), format!("{:?}", chunks.fingerprint.unwrap())))
        .collect()
}

/// Curve and state after three steps.
fn trained(mesh: &str, batch: &str, more: Settings) -> (Vec<(u64, u32)>, BTreeMap<String, String>) {
    let place = Place::new();
    let mut settings = UNEVEN.to_vec();
    settings.extend([("parallelism.mesh", mesh), ("training.global_batch", batch)]);
    settings.extend(more);
    let ran = place.run(&settings);
    ran.summary.unwrap_or_else(|error| panic!("{mesh} {more:?}: {error}"));
    (ran.curve, state(&place))
}

#[test]
fn every_strategy_on_every_mesh_trains_to_the_bits_of_one_process() {
    for (dp, batch) in [(2, "8"), (3, "12"), (4, "8")] {
        let alone = trained("1x1x1", batch, &[]);
        assert_eq!((alone.0.len(), alone.1.len()), (3, 4 * 21));
        for (pp, tp) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
            let mesh = format!("{dp}x{pp}x{tp}");
            let hybrid = if dp == 4 { Some(HYBRID) } else { None };
            for strategy in [FULL, KEPT, WHOLE].into_iter().chain(hybrid) {
                assert!(trained(&mesh, batch, strategy) == alone, "{strategy:?} on {mesh}");
            }
        }
    }
}

#[test]
fn a_run_goes_on_from_the_checkpoint_of_any_other_strategy() {
    let settings = |mesh, steps| {
        let mut settings = UNEVEN.to_vec();
        settings.extend([
            ("parallelism.mesh", mesh),
            ("training.steps", steps),
            ("lr_scheduler.decay_steps", "6"),
        ]);
        settings.push(("checkpoint.interval", "1"));
        settings
    };
    let alone = Place::new();
    let whole = alone.run(&settings("1x1x1", "6"));
    whole.summary.unwrap();
    let (place, mut found) = (Place::new(), Vec::new());
    for (mesh, steps, strategy) in [
        ("4x1x1", "1", HYBRID),
        ("2x2x1", "2", WHOLE),
        ("4x1x2", "3", FULL),
        ("4x2x1", "4", HYBRID),
        ("2x1x2", "5", KEPT),
        ("1x1x1", "6", &[]),
    ] {
        let ran = place.run(&[&settings(mesh, steps)[..], strategy].concat());
        ran.summary.unwrap_or_else(|error| panic!("{mesh} {strategy:?}: {error}"));
        assert_eq!(ran.warnings, Vec::<String>::new());
        found.extend(ran.curve);
    }
    assert_eq!(found, whole.curve);
    assert!(state(&place) == state(&alone));
}

#[test]
fn checkpoints_of_replicas_name_both_axes_of_dp() {
    let place = Place::new();
    let settings =
        [("parallelism.mesh", "4x1x1"), ("parallelism.dp_replicate", "2"), ("training.steps", "1")];
    place.run(&settings).summary.unwrap();
    let loader = dcp::load::Loader::newest(&open(&place), &"main".parse().unwrap()).unwrap();
    let mesh = loader.catalog().mesh.as_ref().map(ToString::to_string);
    assert_eq!(mesh.as_deref(), Some("dp_replicate=2 dp_shard=2 pp=1 tp=1"));
}

#[test]
fn every_strategy_stays_within_the_tolerance_of_fast_mode() {
    let fast = |mesh, more: Settings| {
        let place = Place::new();
        let mut settings = UNEVEN.to_vec();
        settings.extend([("training.mode", "fast"), ("parallelism.mesh", mesh)]);
        settings.extend(more);
        let ran = place.run(&settings);
        ran.summary.unwrap();
        (ran.curve, weights(&place))
    };
    let (alone, whole) = fast("1x1x1", &[]);
    for (mesh, strategy) in [("4x1x1", FULL), ("2x2x1", KEPT), ("4x1x2", HYBRID), ("4x2x1", WHOLE)] {
        let (curve, weights) = fast(mesh, strategy);
        for ((_, mine), (_, theirs)) in curve.iter().zip(&alone) {
            let (mine, theirs) = (f64::from(f32::from_bits(*mine)), f64::from(f32::from_bits(*theirs)));
            assert!((mine - theirs).abs() / theirs <= FAST_LOSS, "{mesh}: {mine} and {theirs}");
        }
        let pairs = weights.values().flatten().zip(whole.values().flatten());
        let apart = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        assert!(apart <= FAST_WEIGHT * 3.0 * 1e-3, "{mesh}: weights apart by {apart:e}");
        assert!(fast(mesh, strategy) == (curve, weights), "{mesh} repeats itself");
    }
}
