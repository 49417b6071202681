//! Failures of peers within operations, and operations in the wrong place.

use std::{cell::Cell, sync::Barrier, time::Duration};

use super::*;
use crate::{
    Error, ErrorKind,
    exact::VirtualTp,
    model::{Linear, Ops, Param},
    torch::c10d::Store,
    transport::{Limits, Purpose, Transport, gloo, local},
};

/// A group of two whose other member stops coming after some collectives.
struct Dying {
    left: Cell<usize>,
}

impl Dying {
    fn next(&self, purpose: &Purpose) -> Result<()> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        if left > 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Peer, format!("{purpose}: rank 1 did not come within 2 s"))
            .hint("look at rank 1"))
    }
}

impl Group for Dying {
    fn index(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, _: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.next(purpose)?;
        Ok(vec![mine.copy(), mine.copy()])
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, _: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.next(purpose).map(|()| parts)
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        self.next(purpose).map(|()| mine)
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.next(purpose).map(|()| vec![mine.to_vec(), mine.to_vec()])
    }
}

#[test]
fn a_peer_that_dies_at_any_collective_is_one_error_and_the_thread_goes_on() {
    let mut failed = 0;
    for left in 0.. {
        let group = Rc::new(Dying { left: Cell::new(left) });
        let rank = Rank::new(Family::Llama, LLAMA, Some(group), 2, Sums::Exact);
        let batch = batch(1, 4, vocab(&*rank.model));
        let Err(error) = train(&*rank.model, &rank.ops, &*rank.whole, &batch) else { break };
        assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
        assert!(error.to_string().contains("rank 1 did not come within 2 s"), "{error}");
        assert_eq!(error.hint_text(), Some("look at rank 1"));
        failed += 1;
    }
    // Forward: the embedding, two sums a layer, the loss's two, and two to assemble. Backward: the head, two a layer.
    assert_eq!(failed, 1 + 2 * 2 + 2 + 2 + 1 + 2 * 2);
    let rank = Rank::alone(Family::Llama, LLAMA, 2);
    assert!(rank.train(&batch(1, 4, 48)).1.is_finite());
}

/// Forward on both ranks; then rank 0 goes back alone, while rank 1 waits until it is through.
fn goes_back_alone(transport: &dyn Transport, through: &Barrier) -> Result<()> {
    let outcome = half(transport);
    through.wait();
    outcome
}

fn half(transport: &dyn Transport) -> Result<()> {
    tch::set_num_threads(1);
    let tp = transport.group("tp", &[0, 1])?;
    let rank = Rank::new(Family::Llama, LLAMA, Some(tp), 2, Sums::Exact);
    let batch = batch(1, 4, 48);
    let (went, logits) = forward(&*rank.model, &rank.ops, &*rank.whole, &batch)?;
    let loss = rank.ops.loss(&logits, batch.targets.as_ref().unwrap())?;
    if transport.rank() == 1 {
        return Ok(());
    }
    rank.whole.begin(went.len() - 1, Pass::Backward)?;
    crate::torch::node::backward(&[&loss], &[&loss.ones_like()])
}

/// One error that names who did not come; the thread goes on.
fn is_one_error(outcome: Result<()>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    let said = error.to_string();
    assert!(said.contains("rank 0 waited 0.5 s for") && said.contains("missing: rank 1"), "{said}");
    assert!(Rank::alone(Family::Llama, LLAMA, 2).train(&batch(1, 4, 48)).1.is_finite());
}

fn short() -> Limits {
    Limits { start: Duration::from_secs(60), step: Duration::from_millis(500), ..Limits::default() }
}

#[test]
fn a_thread_that_does_not_come_to_a_collective_of_backward_is_one_error() {
    let through = &Barrier::new(2);
    std::thread::scope(|scope| {
        let ranks = local::World::new(2, short()).into_iter();
        let spawn = |transport| scope.spawn(move || goes_back_alone(&transport, through));
        let mut ranks: Vec<_> = ranks.map(spawn).collect();
        ranks.pop().unwrap().join().unwrap().unwrap();
        is_one_error(ranks.pop().unwrap().join().unwrap());
    });
}

#[test]
fn a_gloo_peer_that_does_not_come_to_a_collective_of_backward_is_one_error() {
    const HOST: &str = "127.0.0.1";
    let (_store, port) = Store::serve(HOST, 0, Duration::from_secs(30)).unwrap();
    let through = &Barrier::new(2);
    let run = |rank| {
        let (master_addr, master_port) = (HOST.to_owned(), port);
        let (restart, hosted, interface) = (0, true, None);
        let ranks = gloo::Ranks { rank, world: 2, master_addr, master_port, restart, hosted, interface };
        goes_back_alone(&gloo::rendezvous(&ranks, &short()).unwrap(), through)
    };
    let run = &run;
    std::thread::scope(|scope| {
        let mut ranks: Vec<_> = (0..2).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.pop().unwrap().join().unwrap().unwrap();
        is_one_error(ranks.pop().unwrap().join().unwrap());
    });
}

#[test]
fn values_in_the_wrong_place_are_named() {
    let rank = Rank::alone(Family::Llama, LLAMA, 2);
    let linear = |index| Linear { weight: Param { part: 1, index }, bias: None };
    let whole = Value::whole(noise(&[4, 32], 1));
    let error = rank.ops.linear(&whole, &[linear(5)]).unwrap_err().to_string();
    assert!(error.contains("layers.0.attention.wo.weight") && error.contains("got a whole value"), "{error}");
    let error =
        rank.ops.linear(&Value::split(vec![noise(&[4, 32], 1)]), &[linear(2)]).unwrap_err().to_string();
    assert!(error.contains("1 pieces where a whole one is needed"), "{error}");
    let error = rank.ops.linear(&whole, &[linear(2), linear(5)]).unwrap_err();
    assert!(error.to_string().contains("layers.0.attention.wo.weight as Dim(1)"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[test]
fn virtual_ranks_of_another_place_are_refused() {
    let model = built(Family::Llama, LLAMA);
    let tp = VirtualTp { total: 4, first: 2, count: 2 };
    let whole =
        Rc::new(Whole::new(&*model, &weights(&*model), &vec![super::super::Cut::Whole; 21], tp).unwrap());
    assert!(TpOps::new(&*model, whole, None, tp, (Sums::Exact, Tokens::Whole)).is_err());
}
