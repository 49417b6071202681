//! Embedding: rows of tables that are not cut, or cut by vocabulary.
//!
//! Invariants: a virtual rank gives zeros for the ids that are not its own, so the sum over virtual ranks has exact
//! values in any order; backward needs no weights. Rows are f32, whatever the table is stored in. Where tokens are cut over ranks, a
//! table that is cut gives each rank the sums of its own tokens, and of one that is not cut each rank looks up its own alone;
//! gradients are made of all tokens' rows in any case, so that they are the same on all ranks where the table is.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::{Cut, TpOps, queue::Piece, rows::Rows, wide};
use crate::{
    Error, ErrorKind, Result,
    model::{Lookup, Param, Value},
    torch::node,
};

/// See [`crate::model::Ops::embed`].
pub(super) fn embed(ops: &TpOps, lookups: &[Lookup<'_>]) -> Result<Value> {
    let found = tch::no_grad(|| lookups.iter().map(|it| Found::of(ops, it)).collect::<Result<Vec<_>>>())?;
    let mut sum: Option<Tensor> = None;
    let mut keys = Vec::new();
    for Found { rows, table, pieces } in found {
        sum = Some(match sum {
            // Not in place: what came over a group may be others' to read.
            Some(sum) => tch::no_grad(|| sum.f_add(&rows))?,
            None => rows,
        });
        keys.push((table, pieces));
    }
    let rows = sum.ok_or_else(|| Error::internal("an embedding of no tables"))?;
    let (ranks, sink) = (Rc::clone(&ops.ranks), ops.sink());
    let backward = move |grads: Vec<Option<Tensor>>| {
        if let Some(dy) = grads.into_iter().next().flatten() {
            let dy = Rows::own(&ranks, dy.contiguous());
            for (table, pieces) in keys {
                let piece = |(ids, entries)| Piece::Table { ids, dy: dy.clone(), entries };
                sink.push(table, pieces.into_iter().map(piece).collect());
            }
        }
        Ok(vec![])
    };
    node::attach(&[&rows], &[], Box::new(backward))?;
    Ok(Value::whole(rows))
}

/// What the tokens have in one table.
struct Found {
    /// Of the tokens that this rank keeps.
    rows: Tensor,
    table: Param,
    /// For each piece of the table: the ids of all tokens within it (-1 for those of others), and its entries.
    pieces: Vec<(Tensor, i64)>,
}

impl Found {
    fn of(ops: &TpOps, Lookup { ids, table }: &Lookup<'_>) -> Result<Self> {
        let (ranks, table) = (&ops.ranks, *table);
        let cut = ops.cut(table, &[Cut::Whole, Cut::Dim(0)])?;
        let ids = ids.f_reshape([-1])?;
        within(&ids, ranks.entries(table)?, None, ranks.name(table))?;
        let pieces = pieces(ops, table, cut, &ids)?;
        let rows = match (cut, pieces.as_slice()) {
            (Cut::Whole, [whole]) => whole.rows_of(&ranks.own_tokens(&whole.ids)?)?,
            _ => {
                let rows = pieces.iter().map(|piece| piece.rows_of(&piece.ids)).collect::<Result<_>>()?;
                ranks.sum_to_owners(rows, "embedding")?
            }
        };
        Ok(Self { rows, table, pieces: pieces.into_iter().map(|it| (it.ids, it.entries)).collect() })
    }
}

/// One piece of a table, and the ids of all tokens within it; -1 for those of others.
struct TablePiece {
    weight: Tensor,
    ids: Tensor,
    entries: i64,
    all: bool,
}

fn pieces(ops: &TpOps, table: Param, cut: Cut, ids: &Tensor) -> Result<Vec<TablePiece>> {
    let weights = ops.ranks.stored_weight(table, ops.pieces(cut))?;
    let total = ops.ranks.entries(table)?;
    let piece = |(at, weight): (usize, Tensor)| {
        let entries = weight.size().first().copied().unwrap_or_default();
        if entries == total {
            return Ok(TablePiece { weight, ids: ids.shallow_clone(), entries, all: true });
        }
        let local = ids.f_sub_scalar(ops.ranks.first_row(table, at)?)?;
        let foreign = local.f_lt(0)?.f_logical_or(&local.f_ge(entries)?)?;
        Ok(TablePiece { weight, ids: local.f_masked_fill(&foreign, -1)?, entries, all: false })
    };
    weights.into_iter().enumerate().map(piece).collect()
}

impl TablePiece {
    /// Its rows for some of the ids, zeros for those of others.
    fn rows_of(&self, ids: &Tensor) -> Result<Tensor> {
        if self.all {
            return wide(&Tensor::f_embedding(&self.weight, ids, -1, false, false)?);
        }
        if self.entries == 0 {
            let width = self.weight.size().get(1).copied().unwrap_or_default();
            let kind = (Kind::Float, self.weight.device());
            return Ok(Tensor::f_zeros([ids.size().iter().product(), width], kind)?);
        }
        let rows = Tensor::f_embedding(&self.weight, &ids.f_clamp_min(0)?, -1, false, false)?;
        Ok(wide(&rows)?.f_masked_fill(&ids.f_lt(0)?.f_unsqueeze(-1)?, 0.0)?)
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
