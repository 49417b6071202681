//! [`Queue`]: the weight gradients that backward has left to do, by part and microbatch, with what they need.
//!
//! Invariants: draining needs no weights, and no communication unless tokens are cut over ranks: then it gathers what operands lack
//! ([`Rows`]) and sums, once for each part, the gradients that each rank has of its own tokens alone (norms); each gradient is one
//! fresh product in autograd's own orientation, never added into an accumulator, so that it has the same bits as autograd's and the
//! caller decides on the order of sums. What a gradient needed is freed before the next one is made.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::Rc,
};

use tch::Tensor;

use super::{ranks::Ranks, rows::Rows, wide};
use crate::{Error, Result, model::Param};

/// Weight gradients to be computed.
#[derive(Default)]
pub(super) struct Queue {
    /// By microbatch and part.
    jobs: RefCell<BTreeMap<(usize, usize), VecDeque<Job>>>,
}

/// The end of the queue where the nodes of one microbatch put theirs.
pub(super) struct Sink {
    queue: Rc<Queue>,
    microbatch: usize,
}

/// One use of a parameter, by pieces.
struct Job {
    param: Param,
    pieces: Vec<Piece>,
    of: Of,
}

/// What the pieces of a gradient are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Gradients of the parameter's pieces: one for each virtual rank, or one.
    Pieces,
    /// Of the whole parameter, from each virtual rank's tokens: their sum over all virtual ranks is the gradient.
    Tokens,
}

/// What the gradient of one piece is made of.
pub(super) enum Piece {
    /// Of a linear layer: `dyᵀ x`.
    Product { x: Rows, dy: Rows },
    /// Of a bias: the rows of `dy`, added up.
    Rows { dy: Rows },
    /// Of a scale: the rows of `x · dy`, added up.
    Scale { x: Tensor, dy: Tensor },
    /// Of a table of `entries`: each row of `dy` goes to the entry of its id; an id of -1 goes nowhere.
    Table { ids: Tensor, dy: Rows, entries: i64 },
}

impl Queue {
    /// How many gradients are left to do.
    pub(super) fn len(&self) -> usize {
        self.jobs.borrow().values().map(VecDeque::len).sum()
    }

    /// Computes those of `microbatch` in `parts`, and gives each to the parameters; what is left after a failure stays.
    pub(super) fn drain(&self, ranks: &Ranks, parts: Range<usize>, microbatch: usize) -> Result<()> {
        let _untracked = tch::no_grad_guard();
        let params = ranks.params();
        for part in parts {
            let mut of_tokens = Vec::new();
            while let Some(Job { param, pieces, of }) = self.next((microbatch, part)) {
                let gradient =
                    pieces.into_iter().map(|piece| piece.gradient(ranks)).collect::<Result<_>>()?;
                match of {
                    Of::Pieces => params.gradient(param, microbatch, gradient)?,
                    Of::Tokens => of_tokens.push((param, gradient)),
                }
            }
            for (param, gradient) in over_tokens(ranks, of_tokens)? {
                params.gradient(param, microbatch, vec![gradient])?;
            }
            self.jobs.borrow_mut().remove(&(microbatch, part));
        }
        Ok(())
    }

    /// Those of `microbatch` in `parts` have to wait: nothing is held for them that can be gathered again.
    pub(super) fn slim(&self, parts: Range<usize>, microbatch: usize) {
        let jobs = self.jobs.borrow();
        let waiting = jobs.range((microbatch, parts.start)..(microbatch, parts.end));
        waiting.flat_map(|(_, jobs)| jobs).flat_map(|job| &job.pieces).for_each(Piece::slim);
    }

    fn next(&self, of: (usize, usize)) -> Option<Job> {
        self.jobs.borrow_mut().get_mut(&of)?.pop_front()
    }
}

/// Gradients of whole parameters from those of each virtual rank's tokens, with one message for all.
fn over_tokens(ranks: &Ranks, jobs: Vec<(Param, Vec<Tensor>)>) -> Result<Vec<(Param, Tensor)>> {
    let Some(played) = jobs.first().map(|(_, pieces)| pieces.len()) else { return Ok(Vec::new()) };
    let size = |pieces: &Vec<Tensor>| pieces.first().map_or(0, Tensor::numel);
    let sizes: Vec<i64> =
        jobs.iter().map(|(_, pieces)| i64::try_from(size(pieces)).unwrap_or(i64::MAX)).collect();
    let flat = |at: usize| {
        let pieces: Vec<&Tensor> = jobs.iter().filter_map(|(_, pieces)| pieces.get(at)).collect();
        Ok(Tensor::f_cat(&pieces, 0)?)
    };
    let sum = ranks.sum((0..played).map(flat).collect::<Result<_>>()?, "gradients of tokens")?;
    // What came over a group may be others' to read, and who takes a gradient may add to it.
    let each = sum.f_split_with_sizes(sizes.as_slice(), 0)?;
    let pairs = jobs.into_iter().zip(each);
    pairs.map(|((param, _), gradient)| Ok((param, gradient.f_detach_copy()?))).collect()
}

impl Sink {
    pub(super) fn new(queue: &Rc<Queue>, microbatch: usize) -> Self {
        Self { queue: Rc::clone(queue), microbatch }
    }

    /// The gradient of a parameter, by its pieces.
    pub(super) fn push(&self, param: Param, pieces: Vec<Piece>) {
        self.put(Job { param, pieces, of: Of::Pieces });
    }

    /// The gradient of a whole parameter as a sum over tokens, by virtual ranks that each have their own; by one, which has all,
    /// where tokens are not cut.
    pub(super) fn push_tokens(&self, ranks: &Ranks, param: Param, pieces: Vec<Piece>) {
        self.put(Job { param, pieces, of: if ranks.cuts_tokens() { Of::Tokens } else { Of::Pieces } });
    }

    fn put(&self, job: Job) {
        let mut jobs = self.queue.jobs.borrow_mut();
        jobs.entry((self.microbatch, job.param.part)).or_default().push_back(job);
    }
}

impl Piece {
    fn gradient(self, ranks: &Ranks) -> Result<Tensor> {
        Ok(match self {
            Self::Product { x, dy } => wide(&dy.get(ranks)?)?.f_tr()?.f_mm(&wide(&x.get(ranks)?)?)?,
            Self::Rows { dy } => wide(&dy.get(ranks)?)?.f_sum_dim_intlist([0_i64].as_slice(), false, None)?,
            Self::Scale { x, dy } => (x.f_mul(&dy)?).f_sum_dim_intlist([0_i64].as_slice(), false, None)?,
            Self::Table { ids, dy, entries } => table(&ids, &dy.get(ranks)?, entries)?,
        })
    }

    fn slim(&self) {
        match self {
            Self::Product { x, dy } => {
                x.slim();
                dy.slim();
            }
            Self::Rows { dy } | Self::Table { dy, .. } => dy.slim(),
            Self::Scale { .. } => {}
        }
    }
}

fn table(ids: &Tensor, dy: &Tensor, entries: i64) -> Result<Tensor> {
    if entries > 0 {
        return Ok(Tensor::f_embedding_dense_backward(dy, ids, entries, -1, false)?);
    }
    let width = dy.size().last().copied();
    let width = width.ok_or_else(|| Error::internal("a gradient without dimensions"))?;
    Ok(dy.f_new_zeros([0, width], (dy.kind(), dy.device()))?)
}
