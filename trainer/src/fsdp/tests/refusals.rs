//! Boxes of any shape on any mesh, and setups that no state can be made of.

use std::sync::Arc;

use fqn::Registry;
use proptest::prelude::*;
use reshard::Region;
use tch::Device;

use super::{
    model::Bare,
    threads::{Board, groups},
};
use crate::{
    Result,
    exact::{Sums, VirtualTp},
    fsdp::{Setup, State, plan::Plan},
    mesh::{Coordinates, DataSplit, MeshShape},
    model::Model,
    parallel::Precision,
};

/// A setup of rank `rank`, exact, with 4 virtual tensor-parallel ranks.
fn with<T>(
    model: &Bare,
    registry: &Registry,
    (mesh, rank): (MeshShape, usize),
    work: impl FnOnce(&mut Setup<'_>) -> T,
) -> T {
    let at = mesh.coordinates(rank).unwrap();
    let parts = vec![(0..model.parts().len()).collect()];
    work(&mut Setup {
        model,
        registry,
        mesh,
        data: DataSplit::sharded(mesh.dp),
        at,
        parts: &parts,
        stages: &[],
        prefetch: false,
        virtual_tp: VirtualTp::of(at.tp, mesh.tp, 4).unwrap(),
        sums: Sums::Exact,
        compute: Precision::Float32,
        reduce: Precision::Float32,
        microbatches: 2,
        device: Device::Cpu,
        groups: groups(&Arc::new(Board::default()), mesh, DataSplit::sharded(mesh.dp), at),
    })
}

fn refusal(model: &Bare, mesh: &str, change: impl FnOnce(&mut Setup<'_>)) -> String {
    let made = with(model, &model.registry(), (mesh.parse().unwrap(), 0), |setup| {
        change(setup);
        State::new(setup)
    });
    made.unwrap_err().to_string()
}

/// Counts every element of `region` once.
fn count(counts: &mut [u32], shape: &[i64], region: &Region) {
    let columns = usize::try_from(shape[1]).unwrap();
    let range = |dim: usize| {
        let (offset, extent) = (region.offsets()[dim], region.extents()[dim]);
        usize::try_from(offset).unwrap()..usize::try_from(offset + extent).unwrap()
    };
    for row in range(0) {
        range(1).for_each(|column| counts[row * columns + column] += 1);
    }
}

proptest! {
    #[test]
    fn shards_and_pieces_tile_a_parameter_of_any_shape_on_any_mesh(
        rows in 1_i64..40,
        columns in 1_i64..12,
        dp in 1_usize..7,
        tp in prop::sample::select(vec![1_usize, 2, 4]),
        cut in prop::sample::select(vec!["dp:0", "tp:0,dp:0", "tp:1,dp:0"]),
    ) {
        let shape = [rows, columns];
        let (model, mesh) = (Bare::single(&shape, cut), MeshShape { dp, pp: 1, tp });
        let registry = model.registry();
        let plans: Result<Vec<Plan>> =
            (0..mesh.ranks()).map(|rank| with(&model, &registry, (mesh, rank), |setup| Plan::new(setup))).collect();
        let divides = match cut {
            "tp:0,dp:0" => rows % 4 == 0,
            "tp:1,dp:0" => columns % 4 == 0,
            _ => true,
        };
        let Ok(plans) = plans else {
            prop_assert!(!divides, "a parameter that divides is refused");
            return Ok(());
        };
        let elements = usize::try_from(rows * columns).unwrap();
        let (mut held, mut seen) = (vec![0; elements], vec![0; elements]);
        for (rank, plan) in plans.iter().enumerate() {
            let Coordinates { dp, .. } = mesh.coordinates(rank).unwrap();
            let param = &plan.params[0];
            if param.primary {
                count(&mut held, &shape, &param.regions[dp]);
            }
            if param.primary && dp == 0 {
                param.pieces.iter().for_each(|piece| count(&mut seen, &shape, piece));
            }
        }
        prop_assert!(held.iter().all(|count| *count == 1), "primary shards: {held:?}");
        prop_assert!(seen.iter().all(|count| *count == 1), "pieces: {seen:?}");
    }
}

#[test]
fn rows_that_are_not_cut_over_dp_are_refused() {
    let model = Bare::single(&[8, 4], "tp:0,dp:1");
    let text = refusal(&model, "2x1x1", |_| ());
    assert_eq!(text, "placement tp:0,dp:1 of w does not cut its rows over dp");
    assert!(refusal(&Bare::single(&[8], "tp:1,dp:0"), "1x1x1", |_| ()).starts_with("layout of w: placement"));
}

#[test]
fn virtual_ranks_that_cut_elsewhere_than_real_ones_are_refused() {
    // Two ranks take 5 rows each, four virtual ones 3, 3, 3 and 1.
    let text = refusal(&Bare::single(&[10, 4], "tp:0,dp:0"), "1x1x2", |_| ());
    assert!(text.starts_with("layout of w: tp and the virtual tensor-parallel ranks cut it"), "{text}");
}

#[test]
fn a_registry_of_another_model_is_refused() {
    let (model, other) = (Bare::single(&[8, 4], "dp:0"), Bare::single(&[8, 5], "dp:0"));
    let mesh = "1x1x1".parse().unwrap();
    let made = with(&model, &other.registry(), (mesh, 0), |setup| State::new(setup));
    assert_eq!(made.unwrap_err().to_string(), "w is [8, 4] in the model, 8x5 in the registry");
    let made = with(&model, &Registry::new(), (mesh, 0), |setup| State::new(setup));
    assert_eq!(made.unwrap_err().to_string(), "w is not in the registry");
}

#[test]
fn microbatches_parts_and_groups_that_do_not_fit_the_mesh_are_refused() {
    let model = Bare::single(&[8, 4], "dp:0");
    let text = refusal(&model, "2x1x1", |setup| setup.microbatches = 3);
    assert_eq!(text, "3 microbatches for each dp rank");
    let text = refusal(&model, "2x1x1", |setup| setup.data = DataSplit { replicate: 2, shard: 2 });
    assert_eq!(text, "2 replicas of 2 shards on dp=2");
    let text = refusal(&model, "6x1x1", |setup| {
        setup.data = DataSplit { replicate: 2, shard: 3 };
        setup.groups = groups(&Arc::new(Board::default()), setup.mesh, setup.data, setup.at);
    });
    assert_eq!(text, "replicas of 3 ranks each, in exact mode");
    let text = refusal(&model, "1x1x1", |setup| setup.reduce = Precision::Bfloat16);
    assert_eq!(text, "gradients exchanged in bf16, in exact mode");
    let text = refusal(&model, "1x1x1", |setup| setup.parts = &[]);
    assert!(text.contains("0 parts on 0 pipeline ranks"), "{text}");
    let text = refusal(&model, "2x1x1", |setup| setup.groups.shard = setup.groups.pp.clone());
    assert!(text.starts_with("the shard group is member 0 of 1"), "{text}");
}
