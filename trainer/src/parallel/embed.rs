//! Embedding: rows of a table that is not cut, or cut by vocabulary.
//!
//! Invariants: a virtual rank gives zeros for the ids that are not its own, so the sum over virtual ranks has exact
//! values in any order; backward needs no weights. Rows are f32, whatever the table is stored in.

use tch::{Device, Kind, Tensor};

use super::{Cut, TpOps, queue::Piece, wide};
use crate::{
    Error, ErrorKind, Result,
    model::{Param, Value},
    torch::node,
};

/// See [`crate::model::Ops::embed`].
pub(super) fn embed(ops: &TpOps, ids: &Tensor, table: Param) -> Result<Value> {
    let cut = ops.cut(table, &[Cut::Whole, Cut::Dim(0)])?;
    let ids = ids.f_reshape([-1])?;
    let entries = ops.ranks.entries(table)?;
    within(&ids, entries, None, ops.ranks.name(table))?;
    let lookups = lookups(ops, table, cut, &ids)?;
    let rows = tch::no_grad(|| -> Result<Tensor> {
        let rows = lookups.iter().map(Lookup::rows).collect::<Result<_>>()?;
        if cut == Cut::Whole { crate::exact::sum(rows) } else { ops.ranks.sum(rows, "embedding") }
    })?;
    let keys: Vec<(Tensor, i64)> = lookups.into_iter().map(|it| (it.ids, it.entries)).collect();
    let sink = ops.sink();
    let backward = move |grads: Vec<Option<Tensor>>| {
        if let Some(dy) = grads.into_iter().next().flatten() {
            let dy = dy.contiguous();
            let piece = |(ids, entries)| Piece::Table { ids, dy: dy.shallow_clone(), entries };
            sink.push(table, keys.into_iter().map(piece).collect());
        }
        Ok(vec![])
    };
    node::attach(&[&rows], &[], Box::new(backward))?;
    Ok(Value::whole(rows))
}

/// One piece of a table, and the ids within it; -1 for those of others.
struct Lookup {
    weight: Tensor,
    ids: Tensor,
    entries: i64,
    all: bool,
}

fn lookups(ops: &TpOps, table: Param, cut: Cut, ids: &Tensor) -> Result<Vec<Lookup>> {
    let weights = ops.ranks.stored_weight(table, ops.pieces(cut))?;
    let total = ops.ranks.entries(table)?;
    let lookup = |(at, weight): (usize, Tensor)| {
        let entries = weight.size().first().copied().unwrap_or_default();
        if entries == total {
            return Ok(Lookup { weight, ids: ids.shallow_clone(), entries, all: true });
        }
        let local = ids.f_sub_scalar(ops.ranks.first_row(table, at)?)?;
        let foreign = local.f_lt(0)?.f_logical_or(&local.f_ge(entries)?)?;
        Ok(Lookup { weight, ids: local.f_masked_fill(&foreign, -1)?, entries, all: false })
    };
    weights.into_iter().enumerate().map(lookup).collect()
}

impl Lookup {
    fn rows(&self) -> Result<Tensor> {
        if self.all {
            return wide(&Tensor::f_embedding(&self.weight, &self.ids, -1, false, false)?);
        }
        if self.entries == 0 {
            let width = self.weight.size().get(1).copied().unwrap_or_default();
            let kind = (Kind::Float, self.weight.device());
            return Ok(Tensor::f_zeros([self.ids.size().iter().product(), width], kind)?);
        }
        let rows = Tensor::f_embedding(&self.weight, &self.ids.f_clamp_min(0)?, -1, false, false)?;
        Ok(wide(&rows)?.f_masked_fill(&self.ids.f_lt(0)?.f_unsqueeze(-1)?, 0.0)?)
    }
}

/// Refuses ids outside `0..entries`; `besides` is fine.
pub(super) fn within(ids: &Tensor, entries: i64, besides: Option<i64>, what: &str) -> Result<()> {
    let _untracked = tch::no_grad_guard();
    let mut outside = ids.f_lt(0)?.f_logical_or(&ids.f_ge(entries)?)?;
    if let Some(besides) = besides {
        outside = outside.f_logical_and(&ids.f_ne(besides)?)?;
    }
    if outside.f_any()?.f_int64_value(&[])? == 0 {
        return Ok(());
    }
    let bad = ids.f_masked_select(&outside)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Int64)?;
    let first = bad.f_int64_value(&[0])?;
    Err(Error::new(ErrorKind::Data, format!("id {first} is none of the {entries} entries of {what}"))
        .hint("the data was made with another vocabulary, or is damaged"))
}
