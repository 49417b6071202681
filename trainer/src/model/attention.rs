//! Causal self-attention, and rotary positions.
//!
//! Invariants: head counts come from shapes; fewer key and value heads than query heads means that each serves as many
//! neighbouring query heads.

use std::sync::{Mutex, PoisonError};

use tch::Tensor;

use crate::{Error, Result, torch::attention::causal};

/// Sizes that attention cannot see in shapes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) rows: i64,
    pub(super) length: i64,
    pub(super) head_dim: i64,
}

impl Heads {
    /// Attends over `[tokens, heads * head_dim]` values; gives the same of the queries' width.
    pub(super) fn attend(
        self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        rotary: Option<&Rotary>,
    ) -> Result<Tensor> {
        let turns = rotary.map(|rotary| rotary.turns(self.length)).transpose()?;
        let mixed = causal(&self.heads(q)?, &self.heads(k)?, &self.heads(v)?, turns.as_ref())?;
        Ok(mixed.f_reshape([self.rows * self.length, -1])?)
    }

    /// `[rows, length, heads, head_dim]`
    fn heads(self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_view([self.rows, self.length, -1, self.head_dim])?)
    }
}

/// Rotary positions: each pair of neighbouring elements of a head is a complex number, turned by an angle that grows with
/// the position.
#[derive(Debug)]
pub(super) struct Rotary {
    /// `[max_length, 1, head_dim / 2, 2]`: cosines and sines. A tensor may be read from many threads, but its handle may
    /// not.
    turns: Mutex<Tensor>,
    longest: i64,
}

impl Rotary {
    pub(super) fn new(head_dim: i64, max_length: i64, theta: f64) -> Result<Self> {
        let _untracked = tch::no_grad_guard();
        let exponents = counted(head_dim, 2).f_div_scalar(head_dim as f64)?;
        let frequencies = Tensor::f_pow_scalar(theta, &exponents)?.f_reciprocal()?;
        let angles = counted(max_length, 1).f_outer(&frequencies)?;
        let turns = Tensor::f_polar(&angles.f_ones_like()?, &angles)?.f_unsqueeze(1)?.f_view_as_real()?;
        Ok(Self { turns: Mutex::new(turns), longest: max_length })
    }

    /// Cosines and sines of the first `length` positions.
    fn turns(&self, length: i64) -> Result<Tensor> {
        if length > self.longest {
            return Err(Error::config(format!(
                "a sequence of {length} tokens; the model knows {}",
                self.longest
            ))
            .hint("raise the model's max_length"));
        }
        Ok(self.turns.lock().unwrap_or_else(PoisonError::into_inner).f_narrow(0, 0, length)?)
    }
}

/// 0, `step`, … below `end`.
fn counted(end: i64, step: usize) -> Tensor {
    Tensor::from_slice(&(0..end).step_by(step).map(|at| at as f32).collect::<Vec<_>>())
}
