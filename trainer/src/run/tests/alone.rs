//! Checks: one rank at its real sizes sends what planning counts, whatever the mesh and strategy; all ranks one after another do what
//! they do as threads.

use super::*;
use crate::config::{Resolved, resolve as resolved};

/// Of what formulas leave out: norms that tensor ranks hold whole, padding of shards.
const LEFT_OUT: f64 = 0.02;

fn alone(settings: &[&str], rank: usize) -> Alone {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [
        "model.kind=llama",
        "model.layers=4",
        "model.dim=256",
        "model.heads=8",
        "model.kv_heads=4",
        "model.ffn=512",
        "model.vocab=512",
        "training.global_batch=16",
        "training.seq_len=32",
        "data.folder=none",
    ];
    let overrides = |all: &[String]| -> Vec<Override> { all.iter().map(|it| it.parse().unwrap()).collect() };
    let mut all: Vec<String> = sizes.iter().chain(settings).map(|it| (*it).to_owned()).collect();
    let config = resolved(None, &overrides(&all)).unwrap();
    all.extend(unshrunk(&config, folder.path()).unwrap());
    check_alone(resolved(None, &overrides(&all)).unwrap(), rank).unwrap()
}

#[test]
fn what_a_rank_sends_is_what_planning_counts_on_every_mesh_and_strategy() {
    let cases: &[(&[&str], &[usize])] = &[
        (&["parallelism.mesh=4x1x1", "fsdp.strategy=full_shard"], &[0, 3]),
        (&["parallelism.mesh=4x1x1", "fsdp.strategy=shard_grad_op"], &[1]),
        (&["parallelism.mesh=4x1x1", "fsdp.strategy=no_shard", "training.mode=fast"], &[2]),
        (&["parallelism.mesh=4x1x1", "parallelism.dp_replicate=2", "parallelism.dp_shard=2"], &[3]),
        (&["parallelism.mesh=1x1x4", "training.mode=fast"], &[0, 3]),
        (&["parallelism.mesh=1x1x4", "exact.virtual_tp=4"], &[1]),
        (&["parallelism.mesh=1x4x1"], &[0, 1, 3]),
        (&["parallelism.mesh=1x2x1", "training.mixed_precision_param=bfloat16"], &[0, 1]),
        (&["parallelism.mesh=1x1x4", "parallelism.sequence_parallel=true", "training.mode=fast"], &[2]),
        (&["parallelism.mesh=2x2x2", "training.mode=fast"], &[0, 5, 7]),
        (&["parallelism.mesh=2x2x2", "parallelism.schedule=ZBVZeroBubble", "training.mode=fast"], &[0, 7]),
        (&["parallelism.mesh=8x1x2", "training.mode=fast", "training.mixed_precision_param=bfloat16"], &[9]),
    ];
    for (settings, ranks) in cases {
        for rank in *ranks {
            let found = alone(settings, *rank);
            let mut counted = 0;
            for line in &found.lines {
                let (Some(planned), bytes) = (line.planned, line.bytes as f64) else { continue };
                let close = (bytes - planned).abs() <= LEFT_OUT * planned;
                assert!(close, "{settings:?}, rank {rank}: {line}\n{found}");
                counted += u64::from(planned > 0.0 && line.count > 0);
            }
            assert!(counted > 0 && found.collectives > 0, "{found}");
        }
    }
}

#[test]
fn a_ranks_memory_is_that_of_its_own_share() {
    let whole = alone(&["parallelism.mesh=1x1x1"], 0).tensors;
    let quarter = alone(&["parallelism.mesh=4x1x1"], 2).tensors;
    // 16 bytes a parameter on one rank; a quarter of the moments and masters on each of four.
    assert!(quarter * 2 < whole, "{quarter} of {whole}");
}

#[test]
fn a_rank_that_is_not_on_the_mesh_is_refused() {
    let place = Place::new();
    let job = place.job("llama", &[("parallelism.mesh", "2x1x1")]).unwrap();
    let error = check_alone(job.config, 2).unwrap_err();
    assert!(error.to_string().contains("rank 2 is not on mesh 2x1x1, which has 2 ranks"), "{error}");
}

fn shrunken(settings: &[&str], folder: &Path, threads: bool) -> Resolved {
    let sizes = [
        "model.kind=llama",
        "model.layers=4",
        "model.dim=64",
        "model.heads=8",
        "model.ffn=64",
        "data.folder=none",
    ];
    let overrides = |all: &[String]| -> Vec<Override> { all.iter().map(|it| it.parse().unwrap()).collect() };
    let mut all: Vec<String> = sizes.iter().chain(settings).map(|it| (*it).to_owned()).collect();
    let config = resolved(None, &overrides(&all)).unwrap();
    all.extend(shrunk(&config, folder).unwrap());
    all.extend(threads.then(|| one_store(folder)));
    resolved(None, &overrides(&all)).unwrap()
}

#[test]
fn ranks_one_after_another_do_what_they_do_as_threads() {
    for settings in [
        &["parallelism.mesh=2x2x2", "training.global_batch=8", "parallelism.schedule=ZBVZeroBubble"][..],
        &["parallelism.mesh=4x1x2", "training.global_batch=8", "training.mode=fast"],
        &["parallelism.mesh=1x4x1", "comm.mode=sync", "model.tie_embeddings=true", "parallelism.ties=sync"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let recorded = check(shrunken(settings, folder.path(), false)).unwrap();
        let threads = check_in_threads(shrunken(settings, folder.path(), true)).unwrap();
        let moved = |checked: &Checked| -> Vec<_> {
            checked.traffic.iter().map(|it| (it.sent, it.received)).collect()
        };
        assert_eq!(moved(&recorded), moved(&threads), "{settings:?}");
    }
}

/// Run by hand, with a mesh: `CHECK_MESH=8x16x8 … run::tests::alone::how_long --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn how_long_many_ranks_take() {
    let mesh = format!("parallelism.mesh={}", std::env::var("CHECK_MESH").unwrap());
    let settings = ["training.global_batch=256", "model.layers=16", "exact.virtual_tp=8", mesh.as_str()];
    let folder = tempfile::tempdir().unwrap();
    println!("{}", check(shrunken(&settings, folder.path(), false)).unwrap());
}
