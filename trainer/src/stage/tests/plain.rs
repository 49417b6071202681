//! The same model by libtorch's own autograd over one graph: an oracle that shares nothing with stages and nodes.

use tch::{Reduction, Tensor};

use super::{single, tiny::Tiny, whole::initial};
use crate::{
    Error, Result,
    model::{Linear, Lookup, Model, Norm, Ops, Output, Param, Value},
};

struct Plain(Vec<Tensor>);

impl Ops for Plain {
    fn linear(&self, x: &Value, layers: &[Linear]) -> Result<Vec<Value>> {
        let one = |layer: &Linear| {
            let product = x.tensor()?.matmul(&self.0[layer.weight.index].tr());
            Ok(Value::whole(
                layer.bias.map_or_else(|| product.shallow_clone(), |bias| &product + &self.0[bias.index]),
            ))
        };
        layers.iter().map(one).collect()
    }
    fn embed(&self, lookups: &[Lookup<'_>]) -> Result<Value> {
        let [Lookup { ids, table }] = *lookups else { return Err(Error::internal("one table")) };
        Ok(Value::whole(self.0[table.index].index_select(0, ids)))
    }
    fn norm(&self, _: &Value, _: Norm, _: Param, _: Option<Param>) -> Result<Value> {
        Err(Error::internal("the tiny model has no norm"))
    }
    fn loss(&self, logits: &Value, targets: &Tensor) -> Result<Tensor> {
        Ok(logits.tensor()?.cross_entropy_loss(targets, None::<Tensor>, Reduction::Sum, -100, 0.0))
    }
    fn assemble(&self, value: &Value) -> Result<Tensor> {
        Ok(value.tensor()?.shallow_clone())
    }
}

#[test]
fn a_stages_gradients_are_those_of_autograd_over_the_whole_graph() {
    let model = Tiny::new(3, true);
    let run = single::run(&model, 2);
    let weights: Vec<_> = initial(&model).into_iter().map(|it| it.set_requires_grad(true)).collect();
    let ops = Plain(weights);
    for (microbatch, batch) in single::batches(2).iter().enumerate() {
        let mut carry = Vec::new();
        let mut loss = None;
        for part in 0..model.parts().len() {
            match model.forward(part, &ops, batch, &carry).unwrap() {
                Output::Carry(next) => carry = next,
                Output::Logits(logits) => {
                    let targets = batch.targets.as_ref().unwrap().reshape([-1]);
                    loss = Some(ops.loss(&logits, &targets).unwrap());
                }
            }
        }
        let loss = loss.unwrap();
        assert_eq!(f32::try_from(&loss).unwrap().to_bits(), run.losses[microbatch].bits);
        (loss * f64::from(single::SCALE)).backward();
    }
    for (index, weight) in ops.0.iter().enumerate() {
        let oracle = Vec::<f32>::try_from(weight.grad().reshape([-1])).unwrap();
        let mut sum = vec![0.0_f32; oracle.len()];
        for (_, grad) in run.grads.iter().filter(|((param, _), _)| param.index == index) {
            sum.iter_mut().zip(grad).for_each(|(sum, bits)| *sum += f32::from_bits(*bits));
        }
        let far = oracle.iter().zip(&sum).map(|(a, b)| (a - b).abs() / (1e-3 + a.abs())).fold(0.0, f32::max);
        assert!(far < 1e-5, "parameter {index} is off by {far}");
        assert!(oracle.iter().any(|it| it.abs() > 1e-4), "parameter {index} learns nothing");
    }
}
