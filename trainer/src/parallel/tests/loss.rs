//! Cross entropy by pieces against torch's own.

use tch::{Device, Kind, Reduction};

use super::*;
use crate::{ErrorKind, model::Ops, torch::node};

/// Columns cut into `ceil` chunks.
fn pieces(logits: &Tensor, ranks: i64) -> Vec<Tensor> {
    let columns = logits.size()[1];
    let chunk = (columns + ranks - 1) / ranks;
    let piece = |rank: i64| {
        let (start, end) = ((rank * chunk).min(columns), ((rank + 1) * chunk).min(columns));
        logits.narrow(1, start, end - start).copy().set_requires_grad(true)
    };
    (0..ranks).map(piece).collect()
}

fn both(columns: i64, ranks: usize, targets: &Tensor) -> ((f64, Tensor), (f64, Tensor)) {
    let logits = noise(&[targets.size()[0], columns], 5) * 8.0;
    let rank = Rank::alone(Family::Llama, LLAMA, ranks);
    let cut = pieces(&logits, i64::try_from(ranks).unwrap());
    let loss =
        rank.ops.loss(&Value::split(cut.iter().map(Tensor::shallow_clone).collect()), targets).unwrap();
    node::backward(&[&loss], &[&(loss.ones_like() * 0.25)]).unwrap();
    let ours = Tensor::cat(&cut.iter().map(Tensor::grad).collect::<Vec<_>>(), 1);
    let leaf = logits.set_requires_grad(true);
    let torchs = leaf.cross_entropy_loss(targets, None::<&Tensor>, Reduction::Sum, -100, 0.0);
    node::backward(&[&torchs], &[&(torchs.ones_like() * 0.25)]).unwrap();
    ((loss.double_value(&[]), ours), (torchs.double_value(&[]), leaf.grad()))
}

#[test]
fn pieces_of_any_width_give_torchs_loss_and_gradient() {
    let targets = Tensor::from_slice(&[0_i64, 9, -100, 3, 4, 7, -100, 2]);
    for (columns, ranks) in [(10, 1), (10, 2), (10, 4), (10, 8), (16, 8)] {
        let ((ours, our_grad), (torchs, torch_grad)) = both(columns, ranks, &targets);
        assert!((ours - torchs).abs() < 2e-6 * torchs.abs(), "{columns} over {ranks}: {ours}, {torchs}");
        let gap = (our_grad - torch_grad).abs().max().double_value(&[]);
        assert!(gap < 1e-6, "{columns} over {ranks}: {gap}");
    }
}

#[test]
fn tokens_that_are_not_counted_have_no_loss_and_no_gradient() {
    let ((loss, grad), _) = both(10, 4, &Tensor::full([4], -100, (Kind::Int64, Device::Cpu)));
    assert_eq!((loss, grad.abs().sum(Kind::Float).double_value(&[])), (0.0, 0.0));
}

#[test]
fn whole_logits_give_torchs_loss_to_the_bit() {
    let rank = Rank::alone(Family::Llama, LLAMA, 1);
    let targets = Tensor::from_slice(&[1_i64, -100, 3]);
    let logits = noise(&[3, 10], 8);
    let ours = rank.ops.loss(&Value::whole(logits.shallow_clone()), &targets).unwrap();
    assert!(ours.equal(&logits.cross_entropy_loss(&targets, None::<&Tensor>, Reduction::Sum, -100, 0.0)));
}

#[test]
fn ids_outside_the_vocabulary_are_data_errors() {
    let rank = Rank::alone(Family::Llama, LLAMA, 2);
    let value = Value::split(pieces(&noise(&[2, 10], 1), 2));
    for bad in [10_i64, -1] {
        let error = rank.ops.loss(&value, &Tensor::from_slice(&[1, bad])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains(&format!("id {bad} is none of the 10")), "{error}");
    }
    let mut batch = batch(1, 4, 48);
    let _ = batch.tokens.as_mut().unwrap().fill_(48);
    let Err(error) = forward(&*rank.model, &rank.ops, &*rank.whole, &batch) else { panic!("id 48 of 48") };
    assert!(
        error.to_string().contains("tok_embeddings.weight") && error.kind() == ErrorKind::Data,
        "{error}"
    );
}
