//! Nothing of a weight outlives the operation that asked for it.

use std::cell::{Cell, RefCell};

use tch::{Device, Kind};

use super::*;
use crate::{
    Error,
    model::{Norm, Ops, Param},
    parallel::Cut,
};

/// Makes each weight anew, while its part is open.
#[derive(Default)]
struct Fresh {
    shapes: Vec<Vec<i64>>,
    open: RefCell<Vec<usize>>,
    asked: Cell<usize>,
    given: Cell<usize>,
}

impl Params for Fresh {
    fn cut(&self, _: Param) -> Cut {
        Cut::Whole
    }

    fn weight(&self, param: Param) -> Result<Vec<Tensor>> {
        if !self.open.borrow().contains(&param.part) {
            return Err(Error::internal(format!("part {} is closed", param.part)));
        }
        self.asked.set(self.asked.get() + 1);
        Ok(vec![Tensor::full(self.shapes[param.index].as_slice(), 1e-4, (Kind::Float, Device::Cpu))])
    }

    fn gradient(&self, _: Param, _: usize, _: Vec<Tensor>) -> Result<()> {
        self.given.set(self.given.get() + 1);
        Ok(())
    }

    fn begin(&self, part: usize, _: Pass) -> Result<()> {
        self.open.borrow_mut().push(part);
        Ok(())
    }

    fn end(&self, part: usize, _: Pass) -> Result<()> {
        self.open.borrow_mut().retain(|open| *open != part);
        Ok(())
    }
}

fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

#[test]
fn weights_are_freed_after_forward_and_asked_for_again_in_backward() {
    // Most weights are above 32 MiB, which the C library's allocator gives back at once.
    const WIDE: &str = "dim=2048\nlayers=2\nheads=8\nffn=8192\nvocab=64\nmax_length=8";
    tch::set_num_threads(1);
    let model = built(Family::Llama, WIDE);
    let shapes: Vec<Vec<i64>> = model.params().iter().map(|spec| spec.shape.clone()).collect();
    let bytes: i64 = shapes.iter().map(|shape| shape.iter().product::<i64>() * 4).sum();
    assert!(bytes > 400 << 20);
    let params = Rc::new(Fresh { shapes, ..Fresh::default() });
    let one = VirtualTp::of(0, 1, 1).unwrap();
    let ops = TpOps::new(&*model, params.clone(), None, one, (Sums::Exact, Tokens::Whole)).unwrap();
    let batch = batch(1, 8, 64);
    tch::no_grad(|| forward(&*model, &ops, &*params, &batch).map(drop)).unwrap();
    let (before, asked) = (resident(), params.asked.get());
    let (went, logits) = forward(&*model, &ops, &*params, &batch).unwrap();
    let grown = resident() - before;
    assert!(grown < bytes / 4, "the graph of {bytes} bytes of weights holds {grown}");
    drop((went, logits));
    assert_eq!(params.asked.get(), 2 * asked);
    let _trained = train(&*model, &ops, &*params, &batch).unwrap();
    // All but the embedding, which needs no weights to go back.
    assert_eq!(params.asked.get(), 4 * asked - 1);
    ops.weight_gradients(0..4, 3).unwrap();
    assert_eq!((params.asked.get(), params.given.get()), (4 * asked - 1, model.params().len()));
}

#[test]
fn a_weight_of_a_closed_part_is_an_error_of_the_operation() {
    let model = built(Family::Llama, LLAMA);
    let params = Rc::new(Fresh { shapes: vec![vec![32]; 30], ..Fresh::default() });
    let ops = TpOps::new(
        &*model,
        params.clone(),
        None,
        VirtualTp::of(0, 1, 1).unwrap(),
        (Sums::Exact, Tokens::Whole),
    )
    .unwrap();
    let (param, leaf) = (Param { part: 1, index: 1 }, noise(&[4, 32], 1).set_requires_grad(true));
    let x = Value::whole(leaf.shallow_clone());
    let refused = ops.norm(&x, Norm::Rms(1e-5), param, None).unwrap_err();
    assert!(refused.to_string().contains("part 1 is closed"), "{refused}");
    params.begin(1, Pass::Forward).unwrap();
    let y = ops.norm(&x, Norm::Rms(1e-5), param, None).unwrap();
    params.end(1, Pass::Forward).unwrap();
    let y = y.tensor().unwrap();
    let refused = crate::torch::node::backward(&[y], &[&y.ones_like()]).unwrap_err();
    assert!(refused.to_string().contains("part 1 is closed"), "{refused}");
}
