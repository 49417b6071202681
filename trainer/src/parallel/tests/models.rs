//! Both models against plain autograd; virtual ranks against real ones.

use std::collections::BTreeMap;

use tch::Tensor;

use super::*;
use crate::{
    model::{Ops, Param},
    torch::node,
};

pub(super) const ALL: [(Family, &str); 4] =
    [(Family::Llama, LLAMA), (Family::Llama, GROUPED), (Family::Llama, TIED), (Family::Gpt2, GPT2)];

/// Gradient of each parameter: its uses added up.
pub(super) fn by_param(rank: &Rank) -> BTreeMap<usize, Vec<Tensor>> {
    let mut sums: BTreeMap<usize, Vec<Tensor>> = BTreeMap::new();
    for ((param, microbatch), pieces) in rank.whole.gradients().iter().rev() {
        assert_eq!(*microbatch, 3);
        let pieces = pieces.iter().map(Tensor::shallow_clone);
        let sum = match sums.remove(&param.index) {
            Some(sum) => sum.iter().zip(pieces).map(|(a, b)| a + b).collect(),
            None => pieces.collect(),
        };
        sums.insert(param.index, sum);
    }
    sums
}

/// As plain autograd has them, from this gradient of the logits.
fn plainly(family: Family, model: &dyn Model, batch: &Batch, grad: &Tensor) -> (Tensor, Vec<Tensor>) {
    let (logits, leaves) = plain::logits(family, model, &weights(model), batch);
    let found = node::grad(&[&logits], &[grad], &leaves.iter().collect::<Vec<_>>()).unwrap();
    (logits.detach(), found.into_iter().map(|grad| grad.unwrap().detach()).collect())
}

/// What the loss gives back to these logits.
fn loss_gradient(rank: &Rank, logits: &Tensor, batch: &Batch) -> Tensor {
    let leaf = logits.copy().set_requires_grad(true);
    let value = Value::split(vec![leaf.shallow_clone()]);
    let loss = rank.ops.loss(&value, batch.targets.as_ref().unwrap()).unwrap();
    node::backward(&[&loss], &[&loss.ones_like()]).unwrap();
    leaf.grad()
}

#[test]
fn with_one_virtual_rank_everything_is_bit_equal_to_plain_autograd() {
    tch::set_num_threads(1);
    for (family, sizes) in ALL {
        let rank = Rank::alone(family, sizes, 1);
        let batch = batch(3, 8, vocab(&*rank.model));
        let (logits, _) = rank.train(&batch);
        let grad = loss_gradient(&rank, &logits, &batch);
        let (plain, grads) = plainly(family, &*rank.model, &batch, &grad);
        assert!(logits.equal(&plain), "{family} logits: {}", distance(&logits, &plain));
        let ours = by_param(&rank);
        assert_eq!(ours.len(), grads.len());
        for ((index, pieces), grad) in ours.iter().zip(&grads) {
            let name = &rank.model.params()[*index].fqn;
            assert!(pieces[0].equal(grad), "{family} {name}: {}", distance(&pieces[0], grad));
        }
        assert_eq!(rank.ops.queued(), 0);
    }
}

#[test]
fn virtual_ranks_are_near_plain_autograd() {
    for (family, sizes) in ALL {
        for (total, tokens) in [2, 4, 8].into_iter().flat_map(|it| [(it, Tokens::Whole), (it, Tokens::Cut)]) {
            let rank = Rank::with(family, sizes, None, total, (Sums::Exact, tokens));
            let batch = batch(2, 8, vocab(&*rank.model));
            let (logits, loss) = rank.train(&batch);
            let (plain, leaves) = plain::logits(family, &*rank.model, &weights(&*rank.model), &batch);
            assert!(distance(&logits, &plain.detach()) < 1e-5);
            let targets = batch.targets.as_ref().unwrap().view([-1]);
            let reference =
                plain.cross_entropy_loss(&targets, None::<&Tensor>, tch::Reduction::Sum, -100, 0.0);
            reference.backward();
            let reference = f32::try_from(reference.detach()).unwrap();
            assert!((loss - reference).abs() <= 1e-5 * reference, "{family}: {loss} and {reference}");
            let largest =
                leaves.iter().map(|leaf| leaf.grad().abs().max().double_value(&[])).fold(0.0, f64::max);
            for (index, pieces) in by_param(&rank) {
                let spec = &rank.model.params()[index];
                let whole = match rank.whole.cut(Param { part: 0, index }) {
                    super::super::Cut::Whole => pieces[0].shallow_clone(),
                    super::super::Cut::Dim(dim) => Tensor::cat(&pieces, i64::try_from(dim).unwrap()),
                };
                // Absolute: the gradient of a key's bias is zero but for rounding.
                let gap = (whole - leaves[index].grad()).abs().max().double_value(&[]);
                assert!(gap < 2e-6 * largest, "{family} {} over {total}: {gap}", spec.fqn);
            }
        }
    }
}

#[test]
fn in_exact_mode_real_ranks_give_the_bits_of_one_process() {
    let meshes = [(2, 2), (4, 2), (8, 4), (8, 8)].into_iter();
    let meshes: Vec<_> = meshes.flat_map(|it| [(it, Tokens::Whole), (it, Tokens::Cut)]).collect();
    for (family, sizes) in ALL {
        for ((total, real), tokens) in &meshes {
            let (total, real, how) = (*total, *real, (Sums::Exact, *tokens));
            tch::set_num_threads(1);
            let alone = Rank::with(family, sizes, None, total, how);
            let batch = || batch(2, 8, vocab(&*alone.model));
            let (logits, loss) = alone.train(&batch());
            let batches: Vec<_> = (0..real).map(|_| std::sync::Mutex::new(batch())).collect();
            let found = group::ranks(real, |tp| {
                let (index, batch) = (tp.index(), batches[tp.index()].lock().unwrap());
                let rank = Rank::with(family, sizes, Some(tp), total, how);
                let (logits, loss) = rank.train(&batch);
                (
                    index,
                    logits,
                    loss,
                    rank.whole
                        .gradients()
                        .iter()
                        .map(|(k, v)| (*k, v.iter().map(Tensor::copy).collect::<Vec<_>>()))
                        .collect::<BTreeMap<_, _>>(),
                )
            });
            for (index, theirs, their_loss, grads) in found {
                assert!(theirs.equal(&logits) && their_loss.to_bits() == loss.to_bits());
                assert_eq!(grads.len(), alone.whole.gradients().len());
                for (key, pieces) in &grads {
                    let all = &alone.whole.gradients()[key];
                    let first = if all.len() == total { index * (total / real) } else { 0 };
                    for (piece, same) in pieces.iter().zip(&all[first..]) {
                        let name = &alone.model.params()[key.0.index].fqn;
                        assert!(piece.equal(same), "{family} {name}, {real} ranks play {total}, {tokens:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn fast_sums_over_real_ranks_are_near_one_process() {
    let alone = Rank::alone(Family::Llama, LLAMA, 1);
    let batch = || batch(2, 8, vocab(&*alone.model));
    let (logits, loss) = alone.train(&batch());
    let batches = [std::sync::Mutex::new(batch()), std::sync::Mutex::new(batch())];
    for tokens in [Tokens::Whole, Tokens::Cut] {
        let found = group::ranks(2, |tp| {
            let batch = batches[tp.index()].lock().unwrap();
            Rank::with(Family::Llama, LLAMA, Some(tp), 2, (Sums::Fast, tokens)).train(&batch)
        });
        for (theirs, their_loss) in found {
            assert!(distance(&theirs, &logits) < 1e-5 && (their_loss - loss).abs() < 1e-4 * loss);
        }
    }
}

#[test]
fn without_gradients_nothing_is_queued() {
    let rank = Rank::alone(Family::Gpt2, GPT2, 2);
    let batch = batch(1, 8, vocab(&*rank.model));
    let logits = tch::no_grad(|| {
        let (_, logits) = forward(&*rank.model, &rank.ops, &*rank.whole, &batch).unwrap();
        rank.ops.assemble(&logits).unwrap()
    });
    assert!(!logits.requires_grad());
    assert!(logits.equal(&rank.train(&batch).0));
}

#[test]
fn gradients_wait_for_their_part_and_microbatch() {
    let rank = Rank::alone(Family::Llama, LLAMA, 2);
    let batch = batch(1, 4, vocab(&*rank.model));
    let _trained = train(&*rank.model, &rank.ops, &*rank.whole, &batch).unwrap();
    let all = rank.ops.queued();
    assert_eq!(all, 1 + 2 * 9 + 2);
    rank.ops.weight_gradients(0..4, 2).unwrap();
    assert_eq!(rank.ops.queued(), all, "another microbatch");
    rank.ops.weight_gradients(1..2, 3).unwrap();
    assert_eq!(rank.ops.queued(), all - 9);
    rank.ops.weight_gradients(0..4, 3).unwrap();
    assert_eq!((rank.ops.queued(), rank.whole.gradients().len()), (0, all));
}
