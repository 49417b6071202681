//! The same bits on every mesh: weights, gathers, reductions, ties, norms, updates, and state that moves between meshes.

use reshard::Strided;
use tch::Tensor;

use super::meshes::{Run, SEED, Saved, Whole, assemble, exact, replicated, room};
use crate::{
    exact::Sums,
    model::{Model, Param},
    parallel::{Params, Pass, Precision},
};

const STEPS: u64 = 2;

/// Whole state after some steps, and the norms on the way.
fn trained(run: Run) -> (Whole, Vec<u64>) {
    let ranks = run.on_each(|rank| {
        let norms: Vec<u64> = (1..=STEPS).map(|step| rank.train(step).to_bits()).collect();
        rank.state.check_ties().unwrap();
        assert_eq!(rank.state.step_count(), STEPS);
        (rank.saved(), norms)
    });
    let norms = ranks[0].1.clone();
    assert!(ranks.iter().all(|(_, other)| *other == norms), "all ranks have the same norm");
    (assemble(&ranks.into_iter().flat_map(|(saved, _)| saved).collect::<Vec<_>>()), norms)
}

fn assert_same(meshes: &[&str], microbatches: usize) {
    let (first, rest) = meshes.split_first().unwrap();
    let expected = trained(exact(first, microbatches));
    for mesh in rest {
        let found = trained(exact(mesh, microbatches));
        assert_eq!(found.1, expected.1, "norms on {mesh} are those on {first}");
        for (id, bytes) in &expected.0 {
            assert!(found.0[id] == *bytes, "{id} on {mesh} is that on {first}");
        }
    }
}

#[test]
fn dp_ranks_of_a_power_of_two_train_to_the_bits_of_one() {
    assert_same(&["1x1x1", "2x1x1", "4x1x1", "8x1x1"], 8);
}

#[test]
fn dp_ranks_of_other_numbers_train_to_the_bits_of_one() {
    assert_same(&["1x1x1", "3x1x1", "6x1x1", "12x1x1"], 12);
}

#[test]
fn replicas_train_to_the_bits_of_one_process_however_they_share_out_the_weights() {
    let expected = trained(exact("1x1x1", 12));
    for (mesh, replicate) in [("3x1x1", 3), ("6x1x1", 3), ("3x2x2", 3), ("12x1x1", 12), ("12x1x1", 6)] {
        let found = trained(replicated(mesh, replicate, 12));
        assert!(found == expected, "{replicate} replicas on {mesh}");
    }
    let expected = trained(exact("1x1x1", 8));
    for (mesh, replicate) in
        [("2x1x1", 2), ("4x1x1", 2), ("4x1x1", 4), ("4x2x2", 2), ("4x4x1", 4), ("8x1x2", 4)]
    {
        let found = trained(replicated(mesh, replicate, 8));
        assert!(found == expected, "{replicate} replicas on {mesh}");
    }
}

#[test]
fn tensor_parallel_ranks_train_to_the_bits_of_one() {
    assert_same(&["1x1x1", "1x1x2", "1x1x4", "1x1x8", "2x1x4", "4x1x2"], 4);
}

#[test]
fn stages_with_a_tied_parameter_train_to_the_bits_of_one_process() {
    assert_same(&["1x1x1", "1x2x1", "1x4x1", "2x2x2", "2x4x1"], 4);
}

#[test]
fn gradients_are_the_sums_of_microbatches_replicas_and_uses() {
    exact("2x1x1", 4).on_each(|rank| {
        rank.backward(1);
        let gradients = rank.state.gradients().unwrap();
        let find = |index: usize| {
            let (_, region, tensor) = rank.state.named(&gradients).unwrap().swap_remove(index);
            (region, tensor)
        };
        let whole = |part, index, microbatch| {
            let pieces = rank.gradient(Param { part, index }, 1, microbatch);
            Tensor::cat(&pieces, 0)
        };
        let all = |part, index| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|microbatch| whole(part, index, microbatch));
            (a + b) + (c + d)
        };
        for (place, expected) in [(0, all(0, 0) + all(3, 0)), (5, all(2, 5))] {
            let (region, found) = find(place);
            let first = i64::try_from(region.offsets()[0]).unwrap();
            assert!(found.equal(&expected.narrow(0, first, found.size()[0])));
        }
    });
}

#[test]
fn fast_sums_are_close_to_exact_ones_on_meshes_that_exact_mode_refuses() {
    let (expected, norms) = trained(exact("1x1x1", 16));
    let float = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    for (mesh, replicate) in [("1x1x1", 1), ("2x2x2", 1), ("4x1x1", 1), ("4x2x1", 2), ("2x1x2", 2)] {
        let (found, fast) = trained(Run { sums: Sums::Fast, ..replicated(mesh, replicate, 16) });
        for (fast, exact) in fast.iter().zip(&norms) {
            assert!((f64::from_bits(*fast) / f64::from_bits(*exact) - 1.0).abs() < 1e-6);
        }
        for (id, bytes) in &expected {
            let pairs = float(bytes).into_iter().zip(float(&found[id]));
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{id} on {mesh} differs by {worst}");
        }
    }
}

#[test]
fn a_part_that_has_begun_gives_the_pieces_of_the_whole_weights() {
    for mesh in ["1x1x1", "2x1x1", "3x1x1", "5x1x1", "2x2x4", "3x4x2", "1x1x8"] {
        let microbatches = exact(mesh, 1).mesh.dp;
        exact(mesh, microbatches).on_each(|rank| {
            for param in rank.uses() {
                assert!(rank.state.weight(param).is_err(), "nothing before `begin`");
                rank.state.begin(param.part, Pass::Forward).unwrap();
                let init = rank.model.params()[param.index].init;
                let expected = rank.pieces(param, SEED, init);
                let found = rank.state.weight(param).unwrap();
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.size(), expected.size());
                    assert!(found.equal(expected), "{param:?} on {mesh}");
                    assert!(found.is_contiguous() && (found.data_ptr() as usize).is_multiple_of(64));
                }
                rank.state.end(param.part, Pass::Forward).unwrap();
                assert!(rank.state.weight(param).is_err(), "nothing after `end`");
            }
        });
    }
}

#[test]
fn passes_nest_and_a_part_is_gathered_once_while_it_is_needed() {
    exact("2x1x1", 2).on_each(|rank| {
        let state = &rank.state;
        state.begin(1, Pass::Forward).unwrap();
        state.begin(2, Pass::Forward).unwrap();
        state.begin(1, Pass::Backward).unwrap();
        assert_eq!((state.live().parts, state.live().gathers), (2, 2));
        state.end(1, Pass::Forward).unwrap();
        assert_eq!(state.live().parts, 2);
        state.end(2, Pass::Forward).unwrap();
        state.end(1, Pass::Backward).unwrap();
        assert_eq!((state.live().parts, state.live().peak_parts, state.live().elements), (0, 2, 0));
        assert!(state.end(1, Pass::Backward).unwrap_err().to_string().contains("part 1 ended more often"));
        state.begin(0, Pass::Forward).unwrap();
        state.reset_peaks();
        assert_eq!((state.live().peak_parts, state.live().peak_elements), (1, 21 * 4));
        state.end(0, Pass::Forward).unwrap();
    });
}

#[test]
fn a_part_that_the_program_holds_is_gathered_once_and_freed_when_it_lets_go() {
    exact("2x1x1", 2).on_each(|rank| {
        rank.state.begin(1, Pass::Forward).unwrap();
        for pass in [Pass::Forward, Pass::Backward] {
            rank.state.begin(1, pass).unwrap();
            rank.state.end(1, pass).unwrap();
        }
        assert_eq!((rank.state.live().parts, rank.state.live().gathers), (1, 1));
        rank.state.end(1, Pass::Forward).unwrap();
        rank.train(1);
        assert_eq!(rank.state.live().parts, 0);
        rank.state.begin(1, Pass::Forward).unwrap();
        assert_eq!(rank.state.live().gathers, 2, "new weights are gathered anew");
    });
}

#[test]
fn the_next_part_of_a_pass_is_gathered_while_this_one_is_computed() {
    let run = Run { prefetch: true, ..exact("2x1x1", 2) };
    run.on_each(|rank| {
        let state = &rank.state;
        let pass = |part, pass| {
            state.begin(part, pass).unwrap();
            let (live, gathers) = (state.live().parts, state.live().gathers);
            for index in &rank.model.parts()[part].params {
                let param = Param { part, index: *index };
                let expected = rank.pieces(param, SEED, rank.model.params()[*index].init);
                assert!(state.weight(param).unwrap().iter().zip(&expected).all(|(a, b)| a.equal(b)));
            }
            state.end(part, pass).unwrap();
            (live, gathers)
        };
        let forward: Vec<_> = (0..4).map(|part| pass(part, Pass::Forward)).collect();
        assert_eq!(forward, [(2, 2), (2, 3), (2, 4), (1, 4)], "one ahead, none after the last");
        let backward: Vec<_> = (0..4).rev().map(|part| pass(part, Pass::Backward)).collect();
        assert_eq!(backward.iter().map(|(live, _)| *live).max(), Some(2));
        assert_eq!((state.live().parts, state.live().peak_parts), (0, 2));
        // What was begun and turned out not to be needed is dropped before the weights change.
        state.begin(1, Pass::Forward).unwrap();
        state.end(1, Pass::Forward).unwrap();
        assert_eq!(state.live().parts, 1);
        rank.train(1);
        assert_eq!(state.live().parts, 0);
        state.begin(2, Pass::Forward).unwrap();
        let fresh = state.weight(Param { part: 2, index: 5 }).unwrap();
        let old = rank.pieces(Param { part: 2, index: 5 }, SEED, rank.model.params()[5].init);
        assert!(!fresh[0].equal(&old[0]), "new weights are gathered anew");
        state.end(2, Pass::Forward).unwrap();
    });
}

#[test]
fn weights_are_gathered_rounded_and_masters_stay_what_they_are() {
    for (mesh, replicate) in [("1x1x1", 1), ("3x1x2", 1), ("4x1x1", 2), ("2x1x1", 2)] {
        let dp = exact(mesh, 1).mesh.dp;
        let run = Run { compute: Precision::Bfloat16, prefetch: true, ..replicated(mesh, replicate, dp) };
        run.on_each(|rank| {
            let masters = rank.saved();
            for param in rank.uses() {
                rank.state.begin(param.part, Pass::Forward).unwrap();
                let init = rank.model.params()[param.index].init;
                let expected = rank.pieces(param, SEED, init);
                for (found, expected) in rank.state.weight(param).unwrap().iter().zip(&expected) {
                    assert!(found.equal(&expected.to_kind(tch::Kind::BFloat16)), "{param:?} on {mesh}");
                }
                rank.state.end(param.part, Pass::Forward).unwrap();
            }
            assert!(masters.iter().zip(rank.saved()).all(|(before, now)| before.bytes == now.bytes));
        });
    }
}

#[test]
fn gradients_exchanged_in_bf16_are_summed_in_f32_and_replicas_stay_equal() {
    let (expected, _) = trained(exact("1x1x1", 16));
    let float = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    for (mesh, replicate) in [("4x1x1", 1), ("4x1x2", 2), ("4x2x1", 4), ("3x1x1", 3)] {
        let run = replicated(mesh, replicate, if mesh == "3x1x1" { 12 } else { 16 });
        // `trained` compares all copies of a shard to the bit.
        let (found, _) = trained(Run { sums: Sums::Fast, reduce: Precision::Bfloat16, ..run });
        if run.microbatches == 16 {
            for (id, bytes) in expected.iter().filter(|(id, _)| id.role == fqn::Role::ExpAvg) {
                let pairs = float(bytes).into_iter().zip(float(&found[id]));
                let largest = float(bytes).into_iter().map(f32::abs).fold(0.0, f32::max);
                let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(
                    worst < largest / 64.0 && worst > 0.0,
                    "{id} on {mesh} differs by {worst} of {largest}"
                );
            }
        }
    }
}

#[test]
fn state_saved_on_one_mesh_is_loaded_on_any_other_to_the_bit() {
    let saved = |run: Run| -> Vec<Saved> {
        let saved = run.on_each(|rank| {
            rank.train(1);
            rank.saved()
        });
        saved.concat()
    };
    let (sharded, replicated_twice) = (saved(exact("3x2x2", 12)), saved(replicated("6x2x1", 3, 12)));
    let expected = assemble(&sharded);
    assert!(assemble(&replicated_twice) == expected);
    for (saved, mesh, replicate) in [
        (&sharded, "1x1x1", 1),
        (&sharded, "2x4x1", 1),
        (&replicated_twice, "5x1x4", 1),
        (&sharded, "4x1x2", 2),
        (&replicated_twice, "3x1x1", 3),
    ] {
        let dp = exact(mesh, 1).mesh.dp;
        let loaded = replicated(mesh, replicate, dp).on_each(|rank| {
            for target in rank.state.tensors().unwrap() {
                for source in saved.iter().filter(|source| source.id == target.id) {
                    let Some(shared) = source.region.intersect(&target.region) else { continue };
                    let mut bytes = room(&shared);
                    let from = Strided::row_major(&source.bytes, &source.region);
                    reshard::copy_region(&shared, &from, &mut bytes, &shared, 4).unwrap();
                    rank.state.load(&target.id, &shared, &bytes).unwrap();
                }
            }
            rank.state.check_ties().unwrap();
            rank.saved()
        });
        assert!(assemble(&loaded.concat()) == expected, "{mesh}");
    }
}
