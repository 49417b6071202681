//! [`Queue`]: the weight gradients that backward has left to do, by part and microbatch, with what they need.
//!
//! Invariants: draining needs no weights and no communication; each gradient is one fresh product in autograd's own
//! orientation, never added into an accumulator, so that it has the same bits as autograd's and the caller decides on the
//! order of sums. What a gradient needed is freed before the next one is made.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    ops::Range,
    rc::Rc,
};

use tch::Tensor;

use super::{Params, wide};
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

/// One use of a parameter, by pieces (one for each virtual rank, or one).
struct Job {
    param: Param,
    pieces: Vec<Piece>,
}

/// What the gradient of one piece is made of.
pub(super) enum Piece {
    /// Of a linear layer: `dyᵀ x`.
    Product { x: Tensor, dy: Tensor },
    /// Of a bias: the rows of `dy`, added up.
    Rows { dy: Tensor },
    /// Of a scale: the rows of `x · dy`, added up.
    Scale { x: Tensor, dy: Tensor },
    /// Of a table of `entries`: each row of `dy` goes to the entry of its id; an id of -1 goes nowhere.
    Table { ids: Tensor, dy: Tensor, entries: i64 },
}

impl Queue {
    /// How many gradients are left to do.
    pub(super) fn len(&self) -> usize {
        self.jobs.borrow().values().map(VecDeque::len).sum()
    }

    /// Computes those of `microbatch` in `parts`, and gives each to `params`; what is left after a failure stays.
    pub(super) fn drain(&self, params: &dyn Params, parts: Range<usize>, microbatch: usize) -> Result<()> {
        let _untracked = tch::no_grad_guard();
        for part in parts {
            while let Some(job) = self.next((microbatch, part)) {
                let gradient = job.pieces.into_iter().map(Piece::gradient).collect::<Result<_>>()?;
                params.gradient(job.param, microbatch, gradient)?;
            }
            self.jobs.borrow_mut().remove(&(microbatch, part));
        }
        Ok(())
    }

    fn next(&self, of: (usize, usize)) -> Option<Job> {
        self.jobs.borrow_mut().get_mut(&of)?.pop_front()
    }
}

impl Sink {
    pub(super) fn new(queue: &Rc<Queue>, microbatch: usize) -> Self {
        Self { queue: Rc::clone(queue), microbatch }
    }

    pub(super) fn push(&self, param: Param, pieces: Vec<Piece>) {
        let mut jobs = self.queue.jobs.borrow_mut();
        jobs.entry((self.microbatch, param.part)).or_default().push_back(Job { param, pieces });
    }
}

impl Piece {
    fn gradient(self) -> Result<Tensor> {
        Ok(match self {
            Self::Product { x, dy } => wide(&dy)?.f_tr()?.f_mm(&wide(&x)?)?,
            Self::Rows { dy } => wide(&dy)?.f_sum_dim_intlist([0_i64].as_slice(), false, None)?,
            Self::Scale { x, dy } => (x.f_mul(&dy)?).f_sum_dim_intlist([0_i64].as_slice(), false, None)?,
            Self::Table { dy, entries: 0, .. } => {
                dy.f_new_zeros([0, last(&dy)?], (dy.kind(), dy.device()))?
            }
            Self::Table { ids, dy, entries } => {
                Tensor::f_embedding_dense_backward(&dy, &ids, entries, -1, false)?
            }
        })
    }
}

fn last(tensor: &Tensor) -> Result<i64> {
    tensor.size().last().copied().ok_or_else(|| Error::internal("a gradient without dimensions"))
}
