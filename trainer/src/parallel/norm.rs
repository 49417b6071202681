//! Normalisation: the weight-free part is autograd's, scale and shift are a node that holds handles.
//!
//! Invariant: each token is normalised by itself, so that a rank which keeps its own tokens alone gives them the bits that they have
//! among all; gradients of scale and shift, which are sums over tokens, are then made by virtual rank.

use std::rc::Rc;

use tch::Tensor;

use super::{Cut, TpOps, queue::Piece, rows::Rows};
use crate::{
    Error, Result,
    model::{Norm, Param, Value},
    torch::node,
};

/// See [`crate::model::Ops::norm`].
pub(super) fn norm(ops: &TpOps, x: &Value, norm: Norm, weight: Param, bias: Option<Param>) -> Result<Value> {
    ops.cut(weight, &[Cut::Whole])?;
    if let Some(bias) = bias {
        ops.cut(bias, &[Cut::Whole])?;
    }
    let normal = normalised(x.tensor()?, norm)?;
    let saved = normal.detach();
    let y = tch::no_grad(|| -> Result<Tensor> {
        let scaled = saved.f_mul(&ops.ranks.whole_weight(weight)?)?;
        match bias {
            Some(bias) => Ok({ scaled }.f_add_(&ops.ranks.whole_weight(bias)?)?),
            None => Ok(scaled),
        }
    })?;
    let (ranks, sink) = (Rc::clone(&ops.ranks), ops.sink());
    let backward = move |grads: Vec<Option<Tensor>>| {
        let Some(dy) = grads.into_iter().next().flatten() else { return Ok(vec![None]) };
        let dx = dy.f_mul(&ranks.whole_weight(weight)?)?;
        let dys = ranks.by_virtual_rank(&dy)?;
        if let Some(bias) = bias {
            let piece = |dy: &Tensor| Piece::Rows { dy: Rows::all(dy.shallow_clone()) };
            sink.push_tokens(&ranks, bias, dys.iter().map(piece).collect());
        }
        let pairs = ranks.by_virtual_rank(&saved)?.into_iter().zip(dys);
        sink.push_tokens(&ranks, weight, pairs.map(|(x, dy)| Piece::Scale { x, dy }).collect());
        Ok(vec![Some(dx)])
    };
    node::attach(&[&y], &[&normal], Box::new(backward))?;
    Ok(Value::whole(y))
}

fn normalised(x: &Tensor, norm: Norm) -> Result<Tensor> {
    let width = *x.size().last().ok_or_else(|| Error::internal("a scalar cannot be normalised"))?;
    let none = None::<&Tensor>;
    Ok(match norm {
        Norm::Rms(eps) => x.f_rms_norm([width], none, eps)?,
        Norm::Layer(eps) => x.f_layer_norm([width], none, none, eps, false)?,
    })
}
