//! Tests of nodes: gradients, order, what runs; errors and panics that come back as themselves; nothing is leaked.

use std::{cell::Cell, rc::Rc};

use tch::{Device, Kind};

use super::*;
use crate::ErrorKind;

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Counts its drops.
struct Dropped(Rc<Cell<usize>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

/// `y = 2x` by a node; `then` runs in its backward.
fn doubled(x: &Tensor, then: impl FnOnce() -> Result<()> + 'static) -> Tensor {
    let y = tch::no_grad(|| x.detach() * 2.0);
    attach(
        &[&y],
        &[x],
        Box::new(move |grads| {
            then()?;
            Ok(grads.into_iter().map(|grad| grad.map(|grad| grad * 2.0)).collect())
        }),
    )
    .unwrap();
    y
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn a_node_takes_part_in_autograd_with_explicit_root_gradients() {
    let x = leaf(&[1.0, 2.0]);
    let z = doubled(&x, || Ok(())).square();
    let found = grad(&[&z], &[&Tensor::from_slice(&[1.0_f32, 10.0])], &[&x]).unwrap();
    assert_eq!(values(found[0].as_ref().unwrap()), [8.0, 160.0]);
    let z = doubled(&x, || Ok(())).square();
    backward(&[&z], &[&Tensor::from_slice(&[1.0_f32, 10.0])]).unwrap();
    assert_eq!(values(&x.grad()), [8.0, 160.0]);
}

#[test]
fn unused_outputs_give_none_and_unused_inputs_get_none() {
    let (x, unused) = (leaf(&[1.0]), leaf(&[5.0]));
    let (a, b) = tch::no_grad(|| (x.detach() * 2.0, x.detach() * 3.0));
    attach(
        &[&a, &b],
        &[&x],
        Box::new(|grads| {
            assert!(grads[1].is_none());
            Ok(vec![grads[0].as_ref().map(|grad| grad * 2.0)])
        }),
    )
    .unwrap();
    let found = grad(&[&a], &[&a.ones_like()], &[&x, &unused]).unwrap();
    assert_eq!(values(found[0].as_ref().unwrap()), [2.0]);
    assert!(found[1].is_none());
}

#[test]
fn a_node_without_differentiable_inputs_runs_in_backward() {
    let ran = Rc::new(Cell::new(false));
    let seen = ran.clone();
    let rows = Tensor::ones([2], F32);
    attach(
        &[&rows],
        &[],
        Box::new(move |grads| {
            seen.set(grads[0].is_some());
            Ok(vec![])
        }),
    )
    .unwrap();
    assert!(rows.requires_grad());
    let y = &rows * 3.0;
    backward(&[&y], &[&Tensor::ones([2], F32)]).unwrap();
    assert!(ran.get());
}

#[test]
fn an_error_in_a_node_comes_back_as_itself_and_the_thread_goes_on() {
    let x = leaf(&[1.0]);
    for kind in [ErrorKind::Peer, ErrorKind::NotFinite, ErrorKind::Cancelled] {
        let z = doubled(&x, move || Err(Error::new(kind, "rank 3 did not come").hint("look there"))) + &x;
        let error = backward(&[&z], &[&z.ones_like()]).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, "rank 3 did not come"));
        assert_eq!(error.hint_text(), Some("look there"));
        assert!((&x * 2.0).requires_grad(), "gradients are tracked as before");
    }
    let z = doubled(&x, || Ok(()));
    let found = grad(&[&z], &[&z.ones_like()], &[&x]).unwrap();
    assert_eq!(values(found[0].as_ref().unwrap()), [2.0]);
}

#[test]
fn a_panic_in_a_node_becomes_one_error_and_restores_the_gradient_mode() {
    let x = leaf(&[1.0]);
    let z = doubled(&x, || tch::with_grad(|| panic!("index out of order")));
    let error = backward(&[&z], &[&z.ones_like()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("index out of order"), "{error}");
    assert!((&x * 2.0).requires_grad());
    let y = doubled(&x, || panic!("again"));
    tch::no_grad(|| {
        let error = backward(&[&y], &[&x.ones_like()]).unwrap_err();
        assert!(error.to_string().contains("again"));
        assert!(!(&x * 2.0).requires_grad());
    });
}

#[test]
fn closures_are_freed_after_success_failure_panic_and_without_backward() {
    let x = leaf(&[1.0]);
    let drops = Rc::new(Cell::new(0));
    let saved = || Dropped(drops.clone());
    let (a, b, c, d) = (saved(), saved(), saved(), saved());
    let y = doubled(&x, move || {
        let _a = &a;
        Ok(())
    });
    backward(&[&y], &[&y.ones_like()]).unwrap();
    assert_eq!(drops.get(), 1, "freed by backward, while the output lives");
    let y = doubled(&x, move || {
        let _b = &b;
        Err(Error::internal("no"))
    });
    backward(&[&y], &[&y.ones_like()]).unwrap_err();
    assert_eq!(drops.get(), 2);
    let y = doubled(&x, move || {
        let _c = &c;
        panic!("no")
    });
    backward(&[&y], &[&y.ones_like()]).unwrap_err();
    assert_eq!(drops.get(), 3);
    let y = doubled(&x, move || {
        let _d = &d;
        Ok(())
    });
    let z = y.square();
    drop(y);
    assert_eq!(drops.get(), 3);
    drop(z);
    assert_eq!(drops.get(), 4, "freed with the graph");
}

#[test]
fn nodes_behind_a_failed_one_are_freed_with_the_graph() {
    let x = leaf(&[1.0]);
    let drops = Rc::new(Cell::new(0));
    let saved = Dropped(drops.clone());
    let first = doubled(&x, move || {
        let _saved = &saved;
        Ok(())
    });
    let z = doubled(&first, || Err(Error::internal("no")));
    drop(first);
    backward(&[&z], &[&z.ones_like()]).unwrap_err();
    assert_eq!(drops.get(), 0);
    drop(z);
    assert_eq!(drops.get(), 1);
}

#[test]
fn nothing_is_kept_where_gradients_are_not_tracked() {
    let x = leaf(&[1.0]);
    let drops = Rc::new(Cell::new(0));
    let saved = Dropped(drops.clone());
    let y = tch::no_grad(|| {
        doubled(&x, move || {
            let _saved = &saved;
            Ok(())
        })
    });
    assert!(!y.requires_grad());
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_second_backward_is_refused() {
    let x = leaf(&[1.0]);
    let y = doubled(&x, || Ok(()));
    backward(&[&y], &[&y.ones_like()]).unwrap();
    let error = backward(&[&y], &[&y.ones_like()]).unwrap_err();
    assert!(error.to_string().contains("second time"), "{error}");
}

#[test]
fn a_backward_within_a_node_keeps_its_own_errors() {
    let x = leaf(&[3.0]);
    let inner = x.detach();
    let y = tch::no_grad(|| x.detach().square());
    attach(
        &[&y],
        &[&x],
        Box::new(move |grads| {
            let at = inner.set_requires_grad(true);
            let again = tch::with_grad(|| at.square());
            let failing = tch::with_grad(|| doubled(&at, || Err(Error::new(ErrorKind::Peer, "inner"))));
            assert_eq!(
                grad(&[&failing], &[&failing.ones_like()], &[&at]).unwrap_err().kind(),
                ErrorKind::Peer
            );
            grad(&[&again], &[grads[0].as_ref().unwrap()], &[&at])
        }),
    )
    .unwrap();
    let found = grad(&[&y], &[&y.ones_like()], &[&x]).unwrap();
    assert_eq!(values(found[0].as_ref().unwrap()), [6.0]);
}

#[test]
fn wrong_counts_shapes_and_outputs_are_refused() {
    let x = leaf(&[1.0, 2.0]);
    let y = tch::no_grad(|| x.detach() * 2.0);
    attach(&[&y], &[&x], Box::new(|_| Ok(vec![]))).unwrap();
    let error = backward(&[&y], &[&y.ones_like()]).unwrap_err();
    assert!(error.to_string().contains("0 gradients for 1 inputs"), "{error}");
    let y = tch::no_grad(|| x.detach() * 2.0);
    attach(&[&y], &[&x], Box::new(|_| Ok(vec![Some(Tensor::ones([3], F32))]))).unwrap();
    assert!(backward(&[&y], &[&y.ones_like()]).unwrap_err().to_string().contains("shape"));
    let tracked = &x * 2.0;
    let error = attach(&[&tracked], &[&x], Box::new(Ok)).unwrap_err();
    assert!(error.to_string().contains("part of a graph already"), "{error}");
    assert!(backward(&[&y], &[]).is_err());
}

#[test]
fn a_graph_that_is_dropped_elsewhere_does_not_touch_its_closure() {
    let x = leaf(&[1.0]);
    let drops = Rc::new(Cell::new(0));
    let saved = Dropped(drops.clone());
    let y = doubled(&x, move || {
        let _saved = &saved;
        Ok(())
    });
    std::thread::spawn(move || {
        let error = backward(&[&y], &[&y.ones_like()]).unwrap_err();
        assert!(error.to_string().contains("another thread"), "{error}");
    })
    .join()
    .unwrap();
    assert_eq!(drops.get(), 0);
}
