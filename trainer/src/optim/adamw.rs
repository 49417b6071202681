//! [`AdamW`]: decoupled weight decay, ATen's operations in the order of torch's single-tensor form.
//!
//! Vector kernels treat the last few elements of a range by other instructions, which may round differently (with and
//! without fused multiply-add), and split long ranges among threads at any element. So buffers are padded to
//! [`ALIGNMENT`] elements and walked in blocks short enough to stay on one thread, and in cache: no element that counts
//! ever meets the scalar end of a loop, whatever the shard it lies in.
//!
//! The fused form is libtorch's own: one pass over memory, whose roundings differ a little (within 1e-6 of the values); it is
//! element by element too, so that it has the same bits on every mesh.

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use crate::{
    Error, Result,
    torch::optim::{Scalars, fused_adamw},
};

/// Every range that is updated begins and ends at a multiple of this many elements: more than any kernel takes at once.
pub(crate) const ALIGNMENT: i64 = 64;
/// ATen gives less than 32,768 elements to one thread.
const BLOCK: i64 = 16_384;

/// Hyper-parameters that do not change from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdamW {
    /// Of the first moment.
    pub beta1: f64,
    /// Of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay, of the parameters that have one.
    pub decay: f64,
    /// libtorch's fused form instead of its single-tensor one.
    pub fused: bool,
}

/// What one call updates: flat f32 ranges of equal, aligned length.
#[derive(Debug)]
pub struct Slices<'a> {
    /// Weights.
    pub param: &'a Tensor,
    /// First moments.
    pub exp_avg: &'a Tensor,
    /// Second moments.
    pub exp_avg_sq: &'a Tensor,
    /// Gradients.
    pub grad: &'a Tensor,
}

/// Scalars of one step.
struct Factors {
    shrink: Option<f64>,
    step_size: f64,
    root: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, fused: false }
    }
}

impl AdamW {
    /// Checks the ranges of the hyper-parameters.
    ///
    /// # Errors
    /// `Config`.
    pub fn check(&self) -> Result<()> {
        let Self { beta1, beta2, eps, decay, .. } = *self;
        let beta = |value: f64| (0.0..1.0).contains(&value);
        let positive = |value: f64| value.is_finite() && value >= 0.0;
        if beta(beta1) && beta(beta2) && positive(eps) && positive(decay) {
            return Ok(());
        }
        Err(Error::config(format!("optimizer: beta1 {beta1}, beta2 {beta2}, eps {eps}, decay {decay}"))
            .hint("betas lie in [0, 1), eps and decay are finite and not negative"))
    }

    /// One update in place. Steps count from 1; `decayed` says whether these parameters have weight decay.
    ///
    /// # Errors
    /// `Internal` for ranges that are not aligned; what libtorch refuses.
    pub fn update(&self, slices: &Slices<'_>, step: u64, rate: f64, decayed: bool) -> Result<()> {
        let length = i64::try_from(slices.param.numel()).unwrap_or(i64::MAX);
        let same = |tensor: &Tensor| tensor.size1().is_ok_and(|size| size == length);
        let Slices { param, exp_avg, exp_avg_sq, grad } = *slices;
        if length % ALIGNMENT != 0 || ![param, exp_avg, exp_avg_sq, grad].into_iter().all(same) {
            return Err(Error::internal(format!(
                "an optimizer step over ranges of {length} elements, not flat, equal and in units of {ALIGNMENT}"
            )));
        }
        let factors = self.factors(step, rate, decayed);
        let block = if param.device() == Device::Cpu { BLOCK } else { length.max(1) };
        let mut start = 0;
        while start < length {
            let part = |tensor: &Tensor| tensor.f_narrow(0, start, block.min(length - start));
            let mut state = [part(param)?, part(exp_avg)?, part(exp_avg_sq)?];
            if self.fused {
                let [param, exp_avg, exp_avg_sq] = &state;
                fused_adamw([param, exp_avg, exp_avg_sq], &part(grad)?, self.scalars(step, rate, decayed))?;
            } else {
                self.block(&mut state, &part(grad)?, &factors)?;
            }
            start += block;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
    const fn scalars(&self, step: u64, rate: f64, decayed: bool) -> Scalars {
        let Self { beta1, beta2, eps, decay, .. } = *self;
        let decay = if decayed { decay } else { 0.0 };
        Scalars { step: step as f64, rate, betas: [beta1, beta2], decay, eps }
    }

    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
    fn factors(&self, step: u64, rate: f64, decayed: bool) -> Factors {
        // `powf`, also for the root: Python's `**` is C's pow.
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Factors {
            shrink: (decayed && self.decay != 0.0).then_some(1.0 - rate * self.decay),
            step_size: rate / correction(self.beta1),
            root: correction(self.beta2).powf(0.5),
        }
    }

    /// The bindings lack `value` of addcmul and addcdiv, whose kernels multiply their first operand by it before
    /// anything else: so does this, with the same bits.
    fn block(&self, state: &mut [Tensor; 3], grad: &Tensor, factors: &Factors) -> Result<()> {
        let [param, exp_avg, exp_avg_sq] = state;
        if let Some(shrink) = factors.shrink {
            let _ = param.f_mul_scalar_(shrink)?;
        }
        let _ = exp_avg.f_lerp_(grad, 1.0 - self.beta1)?;
        let weighted = grad.f_mul_scalar(1.0 - self.beta2)?;
        let _ = exp_avg_sq.f_mul_scalar_(self.beta2)?;
        let _ = exp_avg_sq.f_addcmul_(&weighted, grad)?;
        let denominator = exp_avg_sq.f_sqrt()?.f_div_scalar_(factors.root)?.f_add_scalar_(self.eps)?;
        let _ = param.f_addcdiv_(&exp_avg.f_mul_scalar(-factors.step_size)?, &denominator)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
