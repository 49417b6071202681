//! Sequence parallelism: which bits it changes and which it does not, what a rank then keeps, and what it refuses. That real
//! ranks have the bits of one process is tested with the models.

use std::sync::Mutex;

use super::{models::ALL, *};
use crate::{
    ErrorKind,
    model::{Linear, Lookup, Norm, Ops, Param},
    parallel::Cut,
    torch::memory,
};

const CUT: (Sums, Tokens) = (Sums::Exact, Tokens::Cut);

#[test]
fn cut_tokens_change_the_gradients_of_norms_alone_and_those_by_rounding() {
    tch::set_num_threads(1);
    let mut rounded = 0;
    for (family, sizes) in ALL {
        let (whole, cut) = (Rank::alone(family, sizes, 4), Rank::with(family, sizes, None, 4, CUT));
        let batch = batch(2, 8, vocab(&*whole.model));
        let ((logits, loss), (same, same_loss)) = (whole.train(&batch), cut.train(&batch));
        assert!(logits.equal(&same) && loss.to_bits() == same_loss.to_bits(), "{family}");
        let (whole_gradients, gradients) = (whole.whole.gradients(), cut.whole.gradients());
        assert_eq!(whole_gradients.len(), gradients.len());
        for ((param, _), pieces) in &*gradients {
            let name = whole.model.params()[param.index].fqn.as_str();
            let others = &whole_gradients[&(*param, 3)];
            assert_eq!(pieces.len(), others.len(), "{name}");
            let is_norm = ["norm", "ln_"].iter().any(|it| name.contains(it));
            for (piece, other) in pieces.iter().zip(others) {
                assert!(is_norm || piece.equal(other), "{family} {name}");
                assert!(distance(piece, other) < 1e-5, "{family} {name}");
                rounded += usize::from(!piece.equal(other));
            }
        }
    }
    assert!(rounded > 0, "sums over tokens are made by virtual rank");
}

#[test]
fn one_virtual_rank_owns_all_tokens() {
    tch::set_num_threads(1);
    let (whole, cut) = (Rank::alone(Family::Gpt2, GPT2, 1), Rank::with(Family::Gpt2, GPT2, None, 1, CUT));
    // No multiple of anything.
    let batch = batch(1, 7, 48);
    assert!(whole.train(&batch).0.equal(&cut.train(&batch).0));
    for (key, pieces) in &*cut.whole.gradients() {
        assert!(pieces[0].equal(&whole.whole.gradients()[key][0]));
    }
}

/// A rank between forward and backward, and between an input gradient and its weight gradients that are put off.
#[derive(Debug, Clone, Copy)]
struct Held {
    forward: i64,
    queued: i64,
}

const WIDE: &str = "dim=128\nlayers=3\nheads=8\nkv_heads=8\nffn=256\nvocab=64\nmax_length=64";

/// What tensors each of `size` ranks holds, beside its weights, if it keeps its tokens so.
fn held(family: Family, sizes: &str, size: usize, tokens: Tokens) -> Vec<Held> {
    memory::count().unwrap();
    let batches: Vec<_> = (0..size).map(|_| Mutex::new(batch(8, 64, 64))).collect();
    group::ranks(size, |tp| {
        let batch = batches[tp.index()].lock().unwrap();
        let rank = Rank::with(family, sizes, Some(tp), size, (Sums::Fast, tokens));
        let now = || memory::counted().unwrap().now;
        let before = now();
        let (mut went, logits) = forward(&*rank.model, &rank.ops, &*rank.whole, &batch).unwrap();
        // Those of the head's backward, which follows at once, are no activations that wait.
        let head = went.pop().unwrap();
        let loss = rank.ops.loss(&logits, batch.targets.as_ref().unwrap()).unwrap();
        drop(logits);
        crate::torch::node::backward(&[&loss], &[&loss.ones_like()]).unwrap();
        let mut grads: Vec<Tensor> = head.inputs.iter().map(Tensor::grad).collect();
        drop((head, loss));
        let parts = rank.model.parts().len();
        rank.ops.weight_gradients(parts - 1..parts, 3).unwrap();
        rank.whole.clear_gradients();
        let held_by_grads = || grads.iter().map(|it| it.numel() as i64 * 4).sum::<i64>();
        let forward = now() - before - held_by_grads();
        for (part, run) in went.into_iter().enumerate().rev() {
            rank.whole.begin(part, Pass::Backward).unwrap();
            let (roots, with): (Vec<_>, Vec<_>) = (run.outputs.iter().collect(), grads.iter().collect());
            crate::torch::node::backward(&roots, &with).unwrap();
            grads = run.inputs.iter().map(Tensor::grad).collect();
            rank.ops.postpone(part..part + 1, 3);
        }
        drop(grads);
        let queued = now() - before;
        rank.ops.weight_gradients(0..parts, 3).unwrap();
        Held { forward, queued }
    })
}

#[test]
fn a_rank_keeps_one_part_in_tp_of_the_activations_and_of_what_waits_for_weight_gradients() {
    for (family, sizes) in
        [(Family::Llama, WIDE), (Family::Gpt2, "dim=128\nlayers=3\nheads=8\nvocab=64\nmax_length=64")]
    {
        let alone = held(family, sizes, 1, Tokens::Whole)[0];
        for size in [2, 4] {
            for (whole, cut) in held(family, sizes, size, Tokens::Whole).into_iter().zip(held(
                family,
                sizes,
                size,
                Tokens::Cut,
            )) {
                println!("{family} tp={size}: {cut:?} with cut tokens, {whole:?} without; {alone:?} alone");
                let percent = |part: i64, all: i64| 100.0 * (part * size as i64) as f64 / all as f64;
                // Ids of tokens are whole everywhere.
                assert!(percent(cut.forward, alone.forward) < 103.0, "{family} {size}: {cut:?} of {alone:?}");
                assert!(percent(cut.queued, alone.queued) < 103.0, "{family} {size}: {cut:?} of {alone:?}");
                assert!(percent(whole.forward, alone.forward) > 120.0, "{family} {size}: {whole:?}");
                assert!(percent(whole.queued, alone.queued) > 120.0, "{family} {size}: {whole:?}");
            }
        }
    }
}

#[test]
fn weight_gradients_that_were_put_off_have_the_same_bits() {
    tch::set_num_threads(1);
    let run = |postponed: bool| {
        let batches: Vec<_> = (0..2).map(|_| Mutex::new(batch(2, 8, 48))).collect();
        group::ranks(2, |tp| {
            let batch = batches[tp.index()].lock().unwrap();
            let rank = Rank::with(Family::Gpt2, GPT2, Some(tp), 4, CUT);
            let _trained = train(&*rank.model, &rank.ops, &*rank.whole, &batch).unwrap();
            let parts = rank.model.parts().len();
            if postponed {
                rank.ops.postpone(0..parts, 3);
            }
            rank.ops.weight_gradients(0..parts, 3).unwrap();
            let gradients = rank.whole.gradients();
            gradients.values().flatten().map(Tensor::copy).collect::<Vec<_>>()
        })
    };
    for (now, later) in run(false).into_iter().zip(run(true)) {
        assert_eq!(now.len(), later.len());
        assert!(now.iter().zip(&later).all(|(a, b)| a.equal(b)));
    }
}

#[test]
fn tokens_that_do_not_divide_over_ranks_are_refused_with_both_numbers() {
    let rank = Rank::with(Family::Llama, LLAMA, None, 4, CUT);
    let ids = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6]);
    let table = Param { part: 0, index: 0 };
    let error = rank.ops.embed(&[Lookup { ids: &ids, table }]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("the 6 tokens of a microbatch over 4 virtual"), "{error}");
    assert!(error.hint_text().unwrap().contains("training.micro_batch x training.seq_len"));
}

#[test]
fn a_linear_that_is_not_cut_is_refused_where_tokens_are() {
    let model = built(Family::Llama, LLAMA);
    let two = VirtualTp::of(0, 1, 2).unwrap();
    let cuts = vec![Cut::Whole; model.params().len()];
    let whole = Rc::new(Whole::new(&*model, &weights(&*model), &cuts, two).unwrap());
    let ops = TpOps::new(&*model, whole, None, two, CUT).unwrap();
    let layer = Linear { weight: Param { part: 1, index: 2 }, bias: None };
    let error = ops.linear(&Value::whole(noise(&[4, 32], 1)), &[layer]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("layers.0.attention.wq.weight is cut over, but it is not"), "{error}");
    let norm =
        ops.norm(&Value::whole(noise(&[4, 32], 1)), Norm::Rms(1e-5), Param { part: 1, index: 1 }, None);
    norm.unwrap();
}
