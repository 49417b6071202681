//! What must be refused, what must stop all ranks, and leases.

use std::{sync::mpsc, time::Duration};

use fqn::{Fqn, Role, TensorId};
use reshard::Region;
use tch::Tensor;

use super::meshes::{Rank, Saved, assemble, exact, replicated};
use crate::{
    ErrorKind,
    fsdp::{Gradients, Lease},
    model::Param,
    optim::AdamW,
    parallel::{Params, Pass},
};

fn id(name: &str) -> TensorId {
    TensorId { fqn: Fqn::new(name).unwrap(), role: Role::Param }
}

#[test]
fn a_missing_gradient_is_named_with_its_microbatch() {
    exact("2x1x1", 8).on_each(|rank| {
        for microbatch in [0, 1, 3] {
            for param in rank.uses() {
                let pieces = rank.gradient(param, 1, microbatch);
                rank.state.gradient(param, microbatch, pieces).unwrap();
            }
        }
        let text = rank.state.reduce(1).unwrap_err().to_string();
        assert_eq!(text, "part 1: layers.0.up.weight: no gradient for microbatch 2");
        assert!(rank.state.gradients().unwrap_err().to_string().contains("part 0 was not reduced"));
        rank.state.discard_gradients();
        assert!(rank.state.reduce(2).unwrap_err().to_string().contains("layers.1.prime.weight"));
    });
}

#[test]
fn second_gradients_and_those_of_other_shapes_or_parts_are_refused() {
    exact("1x1x1", 2).on_each(|rank| {
        let param = Param { part: 2, index: 5 };
        let give = |param, microbatch, pieces| rank.state.gradient(param, microbatch, pieces);
        give(param, 0, rank.gradient(param, 1, 0)).unwrap();
        let again = give(param, 0, rank.gradient(param, 1, 0)).unwrap_err().to_string();
        assert_eq!(again, "part 2: layers.1.prime.weight: a second gradient for microbatch 0");
        assert!(give(param, 2, rank.gradient(param, 1, 2)).is_err());
        let misfit = give(param, 1, vec![Tensor::from_slice(&[1.0_f32])]).unwrap_err().to_string();
        assert!(misfit.contains("a gradient [[1]] of pieces [[11, 3]]"), "{misfit}");
        let foreign = give(Param { part: 1, index: 5 }, 0, vec![]).unwrap_err().to_string();
        assert_eq!(foreign, "part 1 has no parameter 5 (layers.1.prime.weight)");
    });
}

#[test]
fn a_gradient_that_is_not_finite_stops_all_ranks_before_the_update() {
    let texts = exact("2x2x1", 2).on_each(|rank| {
        let before = rank.saved();
        for param in rank.uses() {
            let pieces = rank.gradient(param, 1, rank.first_microbatch);
            if rank.at.dp == 1 && param.index == 7 {
                let _ = pieces[0].get(2).fill_(f64::NAN);
            }
            rank.state.gradient(param, 0, pieces).unwrap();
        }
        rank.state.plan.units.iter().for_each(|unit| rank.state.reduce(unit.part).unwrap());
        let gradients = rank.state.gradients().unwrap();
        let error = rank.state.norm(&gradients, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        let same = before.iter().zip(rank.saved()).all(|(before, now)| before.bytes == now.bytes);
        assert!(same && rank.state.step_count() == 0);
        error.to_string()
    });
    let expected = "not finite (NaN): the gradient of layers.1.cube.weight on rank 3 (dp1 pp1 tp0); \
                    first of the model: layers.1.cube.weight";
    assert!(texts.iter().all(|text| text == expected), "{texts:?}");
}

#[test]
fn who_gave_a_gradient_that_is_not_finite_is_named_however_it_was_reduced() {
    for replicate in [1, 2, 4] {
        let texts = replicated("4x1x1", replicate, 4).on_each(|rank| {
            for param in rank.uses() {
                let pieces = rank.gradient(param, 1, rank.first_microbatch);
                if rank.at.dp == 2 && param.index == 5 {
                    // A row of rank 0's shard, where there are shards.
                    let _ = pieces[0].get(0).fill_(f64::INFINITY);
                }
                rank.state.gradient(param, 0, pieces).unwrap();
            }
            rank.state.plan.units.iter().for_each(|unit| rank.state.reduce(unit.part).unwrap());
            let gradients = rank.state.gradients().unwrap();
            rank.state.norm(&gradients, Some(1.0)).unwrap_err().to_string()
        });
        let expected = "not finite (infinity): the gradient of layers.1.prime.weight on rank 2 (dp2 pp0 tp0); \
                        first of the model: layers.1.prime.weight";
        assert!(texts.iter().all(|text| text == expected), "{replicate}: {texts:?}");
    }
}

#[test]
fn a_loss_that_is_not_finite_stops_all_ranks() {
    let texts = exact("2x1x2", 2).on_each(|rank| {
        rank.backward(1);
        let gradients = rank.state.gradients().unwrap();
        let loss = if rank.at.dp == 1 { f64::INFINITY } else { 2.0 };
        rank.state.norm(&gradients, Some(loss)).unwrap_err().to_string()
    });
    let expected = "not finite: the loss of rank 2 (dp1 pp0 tp0), the loss of rank 3 (dp1 pp0 tp1)";
    assert!(texts.iter().all(|text| text == expected), "{texts:?}");
}

#[test]
fn copies_of_a_tied_parameter_that_drift_apart_are_found() {
    let texts = exact("1x4x1", 1).on_each(|rank| {
        rank.train(1);
        rank.state.check_ties().unwrap();
        if rank.at.pp == 3 {
            let one = Region::new(&[20, 3], &[1, 1]).unwrap();
            rank.state.load(&id("embed.weight"), &one, &7_f32.to_le_bytes()).unwrap();
        }
        rank.state.check_ties().unwrap_err().to_string()
    });
    assert!(texts[0].contains("embed.weight on pipeline ranks 0 and 3 has drifted apart"), "{texts:?}");
}

#[test]
fn loads_that_do_not_fit_are_refused() {
    exact("2x1x1", 2).on_each(|rank| {
        let load = |name: &str, region: Region, bytes: &[u8]| {
            rank.state.load(&id(name), &region, bytes).unwrap_err().to_string()
        };
        let rows = |offset, count| Region::new(&[offset, 0], &[count, 3]).unwrap();
        assert!(load("other", rows(0, 1), &[0; 12]).contains("other is not on"));
        let error = load("layers.1.prime.weight", rows(rank.at.dp as u64 * 6, 1), &[0; 8]);
        assert!(error.contains("8 bytes for") && error.contains("takes 12"), "{error}");
        let error = load("layers.1.prime.weight", rows(5, 2), &[0; 24]);
        assert!(error.contains("layers.1.prime.weight"), "{error}");
    });
}

fn summed(rank: &Rank, step: u64) -> Gradients {
    rank.backward(step);
    rank.state.gradients().unwrap()
}

fn step(rank: &Rank, step: u64) -> Duration {
    let gradients = summed(rank, step);
    rank.state.update(gradients, &AdamW::default(), 1e-2, 1.0).unwrap()
}

fn copies(lease: &Lease) -> Vec<Saved> {
    lease.tensors().iter().map(Saved::of).collect()
}

#[test]
fn an_update_waits_for_the_saver_that_reads_the_shards() {
    exact("1x1x1", 1).on_each(|rank| {
        assert_eq!(step(rank, 1), Duration::ZERO);
        let expected = assemble(&rank.saved());
        let lease = rank.state.lease().unwrap();
        assert_eq!(lease.step(), 1);
        let gradients = summed(rank, 2);
        let (begin, begun) = mpsc::channel();
        let saver = std::thread::spawn(move || {
            begin.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
            copies(&lease)
        });
        begun.recv().unwrap();
        let waited = rank.state.update(gradients, &AdamW::default(), 1e-2, 1.0).unwrap();
        assert!(waited > Duration::ZERO, "the wait is measured");
        assert!(assemble(&saver.join().unwrap()) == expected, "the saver saw the state before the update");
        assert!(assemble(&rank.saved()) != expected);
        assert_eq!(step(rank, 3), Duration::ZERO);
    });
}

#[test]
fn a_saver_that_panics_or_forgets_holds_up_nothing() {
    exact("1x1x1", 1).on_each(|rank| {
        let lease = rank.state.lease().unwrap();
        let saver = std::thread::spawn(move || {
            assert!(lease.tensors().is_empty(), "as a failed saver does");
        });
        assert!(saver.join().is_err());
        drop(rank.state.lease().unwrap());
        assert_eq!(step(rank, 1), Duration::ZERO);
    });
}

#[test]
fn an_update_while_a_part_is_in_use_is_refused() {
    exact("1x1x1", 1).on_each(|rank| {
        rank.backward(1);
        rank.state.begin(2, Pass::Forward).unwrap();
        let gradients = rank.state.gradients().unwrap();
        let error = rank.state.update(gradients, &AdamW::default(), 1e-2, 1.0).unwrap_err();
        assert!(error.to_string().contains("an update while part 2 is in use"), "{error}");
    });
}
