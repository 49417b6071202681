//! Linear layers: column-parallel (weight cut along its rows), row-parallel (along its columns), or not cut.
//!
//! Invariants: every product is of one virtual rank's contiguous piece, so that its shape does not depend on how many are
//! played here; the gradient of one input of several layers is summed from the last layer to the first within a virtual
//! rank, then over virtual ranks; weights are asked for in each direction and dropped at once. What is kept for backward is
//! kept as an operand of the [`Precision`]; results are rounded to it after their sum. Where tokens are cut over ranks
//! ([`super::tokens`]), whole values have this rank's tokens alone, also among what is kept: products gather all of them, and
//! each rank gets the sums of its own.

use std::rc::Rc;

use tch::Tensor;

use super::{
    Cut, Precision, Products, TpOps,
    queue::{Piece, Sink},
    ranks::Ranks,
    rows::Rows,
    wide,
};
use crate::{
    Error, Result,
    model::{Linear, Param, Value},
    torch::node,
};

/// See [`crate::model::Ops::linear`].
pub(super) fn linear(ops: &TpOps, x: &Value, layers: &[Linear]) -> Result<Vec<Value>> {
    let allowed = [Cut::Whole, Cut::Dim(0), Cut::Dim(1)];
    let Some(first) = layers.first() else { return Ok(vec![]) };
    let cut = ops.cut(first.weight, &allowed)?;
    for layer in layers {
        ops.cut(layer.weight, &[cut])?;
        if let Some(bias) = layer.bias {
            ops.cut(bias, &[if cut == Cut::Dim(0) { cut } else { Cut::Whole }])?;
        }
    }
    match cut {
        Cut::Dim(1) => row_parallel(ops, x, layers),
        Cut::Whole if ops.ranks.cuts_tokens() => Err(Error::config(format!(
            "sequence parallelism cuts tokens over the ranks that {} is cut over, but it is not",
            ops.ranks.name(first.weight)
        ))
        .hint("give it a placement rule that cuts it over tp, or set parallelism.sequence_parallel=false")),
        cut => column_parallel(ops, x, layers, cut),
    }
}

/// Whole input; output in pieces, or whole where the weights are.
fn column_parallel(ops: &TpOps, x: &Value, layers: &[Linear], cut: Cut) -> Result<Vec<Value>> {
    let input = x.tensor()?;
    let played = ops.pieces(cut);
    let precision = ops.ranks.precision();
    let saved = precision.operand(&input.detach())?;
    let outputs = ops.deck.product(layers.len() * played, || {
        tch::no_grad(|| {
            let x = ops.ranks.products().operand(&ops.ranks.all_tokens(&saved)?)?;
            let each = layers.iter().map(|layer| products(&ops.ranks, layer, &x, played));
            Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
    })?;
    let (ranks, sink, layers) = (Rc::clone(&ops.ranks), ops.sink(), layers.to_vec());
    let (all, count): (Vec<&Tensor>, _) = (outputs.iter().collect(), layers.len());
    node::attach(
        &all,
        &[input],
        Box::new(move |grads| {
            let grads = by_layer(grads, played, precision)?;
            let mut sums: Vec<Option<Tensor>> = (0..played).map(|_| None).collect();
            for (layer, grads) in layers.iter().zip(&grads).rev() {
                let weights = ranks.stored_weight(layer.weight, played)?;
                for ((sum, grad), weight) in sums.iter_mut().zip(grads).zip(&weights) {
                    accumulate(ranks.products(), sum, grad.as_ref(), weight)?;
                }
            }
            let x = Rows::own(&ranks, saved.shallow_clone());
            queue_columns(&ranks, &sink, &layers, &x, grads)?;
            let sums = input_gradient(&ranks, sums, cut, &saved)?;
            sums.into_iter().map(|sum| sum.map(|sum| precision.rounded(sum)).transpose()).collect()
        }),
    )?;
    let value = |mut pieces: Vec<Tensor>| match (cut, pieces.pop()) {
        (Cut::Whole, Some(only)) => Value::whole(only),
        (_, last) => {
            pieces.extend(last);
            Value::split(pieces)
        }
    };
    let mut outputs = outputs.into_iter();
    Ok((0..count).map(|_| value(outputs.by_ref().take(played).collect())).collect())
}

fn products(ranks: &Ranks, layer: &Linear, x: &Tensor, played: usize) -> Result<Vec<Tensor>> {
    let (weights, precision) = (ranks.stored_weight(layer.weight, played)?, ranks.precision());
    let Some(bias) = layer.bias else {
        let product = |weight| precision.rounded(ranks.products().output(x, weight)?);
        return weights.iter().map(product).collect();
    };
    let (biases, x) = (ranks.weight(bias, played)?, wide(x)?);
    let product =
        |(weight, bias): (&Tensor, &Tensor)| precision.rounded(bias.f_addmm(&x, &wide(weight)?.f_tr()?)?);
    weights.iter().zip(&biases).map(product).collect()
}

/// Gradients of the outputs as operands, by layer and rank.
fn by_layer(
    grads: Vec<Option<Tensor>>,
    played: usize,
    precision: Precision,
) -> Result<Vec<Vec<Option<Tensor>>>> {
    let operand = |grad: Tensor| precision.operand(&grad.f_contiguous()?);
    let mut grads = grads.into_iter().map(|grad| grad.map(operand).transpose());
    let mut layers = Vec::new();
    while grads.len() > 0 {
        layers.push(grads.by_ref().take(played).collect::<Result<_>>()?);
    }
    Ok(layers)
}

/// Adds `grad · weight` to `sum`, in f32; a sum of one product is that product, as it was computed.
fn accumulate(
    products: Products,
    sum: &mut Option<Tensor>,
    grad: Option<&Tensor>,
    weight: &Tensor,
) -> Result<()> {
    let Some(grad) = grad else { return Ok(()) };
    let product = products.input_gradient(grad, weight)?;
    *sum = Some(match sum.take() {
        Some(sum) => wide(&sum)?.f_add_(&product)?,
        None => product,
    });
    Ok(())
}

fn queue_columns(
    ranks: &Ranks,
    sink: &Sink,
    layers: &[Linear],
    x: &Rows,
    grads: Vec<Vec<Option<Tensor>>>,
) -> Result<()> {
    for (layer, grads) in layers.iter().zip(grads) {
        let played = grads.len();
        let grads: Vec<Tensor> = grads.into_iter().flatten().collect();
        if !grads.is_empty() && grads.len() != played {
            let name = ranks.name(layer.weight);
            return Err(Error::internal(format!(
                "{} of {played} pieces of {name} got a gradient",
                grads.len()
            )));
        }
        if grads.is_empty() {
            continue;
        }
        let grads: Vec<Rows> = grads.into_iter().map(Rows::all).collect();
        queue_bias(sink, layer.bias, &grads);
        let piece = |dy| Piece::Product { x: x.clone(), dy };
        sink.push(layer.weight, grads.into_iter().map(piece).collect());
    }
    Ok(())
}

fn queue_bias(sink: &Sink, bias: Option<Param>, grads: &[Rows]) {
    if let Some(bias) = bias {
        sink.push(bias, grads.iter().map(|dy| Piece::Rows { dy: dy.clone() }).collect());
    }
}

/// The gradient of a whole input: the sum over virtual ranks, where the weights are cut.
fn input_gradient(
    ranks: &Ranks,
    sums: Vec<Option<Tensor>>,
    cut: Cut,
    x: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    if cut == Cut::Whole {
        return Ok(sums);
    }
    // A rank without a gradient still takes part: the others wait for it.
    let sums: Result<Vec<Tensor>> =
        sums.into_iter().map(|sum| sum.map_or_else(|| ranks.zeros_of_all(x), Ok)).collect();
    Ok(vec![Some(ranks.sum_to_owners(sums?, "input gradient")?)])
}

/// Input in pieces; whole output, the sum over virtual ranks.
fn row_parallel(ops: &TpOps, x: &Value, layers: &[Linear]) -> Result<Vec<Value>> {
    let inputs = x.pieces();
    let played = ops.pieces(Cut::Dim(1));
    if !x.is_split() || inputs.len() != played {
        let got = if x.is_split() { format!("{} pieces", inputs.len()) } else { "a whole value".to_owned() };
        let name = layers.first().map_or("?", |layer| ops.ranks.name(layer.weight));
        return Err(Error::internal(format!(
            "{name} is cut along its columns into {played} pieces and got {got}"
        )));
    }
    let precision = ops.ranks.precision();
    let saved = inputs.iter().map(|input| precision.operand(&input.detach()));
    let saved: Vec<Tensor> = saved.collect::<Result<_>>()?;
    let outputs = ops.deck.product(layers.len(), || {
        tch::no_grad(|| layers.iter().map(|layer| summed(&ops.ranks, layer, &saved)).collect())
    })?;
    let (ranks, sink, layers) = (Rc::clone(&ops.ranks), ops.sink(), layers.to_vec());
    node::attach(
        &outputs.iter().collect::<Vec<_>>(),
        &inputs.iter().collect::<Vec<_>>(),
        Box::new(move |grads| row_backward(&ranks, &sink, &layers, &saved, by_layer(grads, 1, precision)?)),
    )?;
    Ok(outputs.into_iter().map(Value::whole).collect())
}

fn summed(ranks: &Ranks, layer: &Linear, inputs: &[Tensor]) -> Result<Tensor> {
    let weights = ranks.stored_weight(layer.weight, inputs.len())?;
    let products = inputs.iter().zip(&weights).map(|(x, weight)| ranks.products().output(x, weight));
    let products = products.collect::<Result<Vec<_>>>()?;
    drop(weights);
    let sum = ranks.sum_to_owners(products, "output")?;
    // Not in place: what came over a group may be others' to read.
    let sum = match layer.bias {
        Some(bias) => sum.f_add(&ranks.whole_weight(bias)?)?,
        None => sum,
    };
    ranks.precision().rounded(sum)
}

fn row_backward(
    ranks: &Ranks,
    sink: &Sink,
    layers: &[Linear],
    inputs: &[Tensor],
    grads: Vec<Vec<Option<Tensor>>>,
) -> Result<Vec<Option<Tensor>>> {
    let own = |grad: Option<Tensor>| grad.map(|grad| Rows::own(ranks, grad));
    let grads: Vec<Option<Rows>> = grads.into_iter().flatten().map(own).collect();
    let mut sums: Vec<Option<Tensor>> = inputs.iter().map(|_| None).collect();
    for (layer, grad) in layers.iter().zip(&grads).rev() {
        let grad = grad.as_ref().map(|grad| grad.get(ranks)).transpose()?;
        let weights = ranks.stored_weight(layer.weight, inputs.len())?;
        for (sum, weight) in sums.iter_mut().zip(&weights) {
            accumulate(ranks.products(), sum, grad.as_ref(), weight)?;
        }
    }
    for (layer, dy) in layers.iter().zip(grads) {
        let Some(dy) = dy else { continue };
        queue_bias(sink, layer.bias, std::slice::from_ref(&dy));
        let piece = |x: &Tensor| Piece::Product { x: Rows::all(x.shallow_clone()), dy: dy.clone() };
        sink.push(layer.weight, inputs.iter().map(piece).collect());
    }
    let precision = ranks.precision();
    sums.into_iter().map(|sum| sum.map(|sum| precision.rounded(sum)).transpose()).collect()
}
