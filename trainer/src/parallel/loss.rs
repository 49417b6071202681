//! Cross entropy of logits that may be cut by vocabulary.
//!
//! Invariants: the maximum is exact in any order; the sums of exponentials and the logits of the targets are summed over
//! virtual ranks like everything else; backward needs no communication.

use tch::{Kind, Reduction, Tensor};

use super::{TpOps, embed::within, ranks::Ranks};
use crate::{Error, Result, model::Value, torch::node};

/// A target that is not counted.
const IGNORED: i64 = -100;

/// See [`crate::model::Ops::loss`].
pub(super) fn loss(ops: &TpOps, logits: &Value, targets: &Tensor) -> Result<Tensor> {
    let targets = targets.f_reshape([-1])?;
    if !logits.is_split() {
        let logits = logits.tensor()?;
        within(&targets, columns(logits)?, Some(IGNORED), "the vocabulary")?;
        let none = None::<&Tensor>;
        return Ok(logits.f_cross_entropy_loss(&targets, none, Reduction::Sum, IGNORED, 0.0)?);
    }
    let split = tch::no_grad(|| Split::new(&ops.ranks, logits.pieces(), &targets))?;
    let (total, exponentials, sum) = tch::no_grad(|| split.forward(&ops.ranks))?;
    let (local, counted) = (split.local, split.counted);
    let backward = move |grads: Vec<Option<Tensor>>| {
        let Some(grad) = grads.into_iter().next().flatten() else {
            return Ok(local.iter().map(|_| None).collect());
        };
        let scale = counted.f_to_kind(sum.kind())?.f_mul(&grad)?.f_unsqueeze(-1)?;
        let sum = sum.f_unsqueeze(-1)?;
        let gradient = |(mut soft, (at, mine)): (Tensor, (Tensor, Tensor))| -> Result<_> {
            let mut soft = soft.f_div_(&sum)?;
            let hit = mine.f_to_kind(soft.kind())?.f_neg()?;
            if columns(&soft)? > 0 {
                let _ = soft.f_scatter_add_(1, &at, &hit)?;
            }
            Ok(Some(soft.f_mul_(&scale)?))
        };
        exponentials.into_iter().zip(local).map(gradient).collect()
    };
    let pieces: Vec<&Tensor> = logits.pieces().iter().collect();
    node::attach(&[&total], &pieces, Box::new(backward))?;
    Ok(total)
}

/// Logits in pieces, and where the targets are in each.
struct Split {
    pieces: Vec<Tensor>,
    /// The largest logit of each token.
    max: Tensor,
    /// For each piece: the target's column within it (0 where it is elsewhere), and whether it is here; `[tokens, 1]`.
    local: Vec<(Tensor, Tensor)>,
    counted: Tensor,
}

impl Split {
    fn new(ranks: &Ranks, pieces: &[Tensor], targets: &Tensor) -> Result<Self> {
        let pieces: Vec<Tensor> = pieces.iter().map(Tensor::detach).collect();
        let (max, starts, total) = maximum(ranks, &pieces, targets)?;
        within(targets, total, Some(IGNORED), "the vocabulary")?;
        let column = targets.f_unsqueeze(-1)?;
        let place = |(piece, start): (&Tensor, &i64)| -> Result<_> {
            let width = columns(piece)?;
            let mine = column.f_ge(*start)?.f_logical_and(&column.f_lt(start + width)?)?;
            let at = column.f_sub_scalar(*start)?.f_masked_fill(&mine.f_logical_not()?, 0)?;
            Ok((at, mine))
        };
        Ok(Self {
            local: pieces.iter().zip(&starts).map(place).collect::<Result<_>>()?,
            pieces,
            max,
            counted: targets.f_ne(IGNORED)?,
        })
    }

    /// The loss; the exponentials of each piece; their sum over all.
    fn forward(&self, ranks: &Ranks) -> Result<(Tensor, Vec<Tensor>, Tensor)> {
        let column = self.max.f_unsqueeze(-1)?;
        let shifted = |piece: &Tensor| Ok(piece.f_sub(&column)?);
        let mut shifted = self.pieces.iter().map(shifted).collect::<Result<Vec<Tensor>>>()?;
        let picked = shifted.iter().zip(&self.local).map(|(piece, (at, mine))| picked(piece, at, mine));
        let picked = picked.collect::<Result<Vec<_>>>()?;
        for piece in &mut shifted {
            let _ = piece.f_exp_()?;
        }
        let sums =
            shifted.iter().map(|piece| Ok(piece.f_sum_dim_intlist([1_i64].as_slice(), false, None)?));
        let both = |(sum, picked): (Result<Tensor>, Tensor)| Ok(Tensor::f_stack(&[sum?, picked], 0)?);
        let sums = sums.zip(picked).map(both).collect::<Result<Vec<_>>>()?;
        let both = ranks.sum(sums, "loss")?;
        let (sum, picked) = (both.f_select(0, 0)?, both.f_select(0, 1)?);
        let each = sum.f_log()?.f_sub(&picked)?.f_masked_fill(&self.counted.f_logical_not()?, 0.0)?;
        Ok((each.f_sum(each.kind())?, shifted, sum))
    }
}

/// The largest logit of each token, the first column of each piece played here, and the number of all columns.
fn maximum(ranks: &Ranks, pieces: &[Tensor], targets: &Tensor) -> Result<(Tensor, Vec<i64>, i64)> {
    let widths = pieces.iter().map(columns).collect::<Result<Vec<_>>>()?;
    let filled = pieces.iter().filter(|piece| piece.numel() > 0);
    let mut rows: Vec<Tensor> =
        filled.map(|piece| Ok(piece.f_amax([1_i64].as_slice(), false)?)).collect::<Result<_>>()?;
    if rows.is_empty() {
        rows.push(targets.f_to_kind(Kind::Float)?.f_fill(f64::NEG_INFINITY)?);
    }
    let mine = Tensor::f_stack(&rows, 0)?.f_amax([0_i64].as_slice(), false)?;
    // The widths travel along; they are exact in f32.
    let width = Tensor::f_full([1], widths.iter().sum::<i64>(), (mine.kind(), mine.device()))?;
    let all = Tensor::f_stack(&ranks.gather(&Tensor::f_cat(&[&mine, &width], 0)?, "loss maximum")?, 0)?;
    let tokens = mine.size().first().copied().unwrap_or_default();
    let max = all.f_narrow(1, 0, tokens)?.f_amax([0_i64].as_slice(), false)?;
    let of_ranks = Vec::<i64>::try_from(all.f_select(1, tokens)?.f_to_kind(Kind::Int64)?)?;
    let before = of_ranks.iter().take(ranks.index()).sum::<i64>();
    let total = of_ranks.iter().sum();
    let starts = widths.iter().scan(before, |start, width| Some(std::mem::replace(start, *start + width)));
    Ok((max, starts.collect(), total))
}

fn picked(piece: &Tensor, at: &Tensor, mine: &Tensor) -> Result<Tensor> {
    if columns(piece)? == 0 {
        return Ok(mine.f_squeeze_dim(-1)?.f_to_kind(piece.kind())?.f_zero()?);
    }
    let found = piece.f_gather(1, at, false)?;
    Ok(found.f_masked_fill(&mine.f_logical_not()?, 0.0)?.f_squeeze_dim(-1)?)
}

/// See [`crate::model::Ops::assemble`].
pub(super) fn assemble(ops: &TpOps, value: &Value) -> Result<Tensor> {
    let _untracked = tch::no_grad_guard();
    if !value.is_split() {
        return Ok(value.tensor()?.detach());
    }
    let pieces: Vec<Tensor> = value.pieces().iter().map(Tensor::detach).collect();
    ops.ranks.side_by_side(&pieces)
}

fn columns(tensor: &Tensor) -> Result<i64> {
    match tensor.size().as_slice() {
        [_, columns] => Ok(*columns),
        other => Err(Error::internal(format!("logits of shape {other:?} where rows of columns are needed"))),
    }
}
