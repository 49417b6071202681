//! libtorch's fused AdamW: the same update as its single-tensor form in one pass over memory, with other roundings.
//!
//! Invariant: tensors outlive the call, which keeps nothing of them.

#![expect(unsafe_code, reason = "the shim's function is C++")]

use std::ffi::{c_char, c_int};

use tch::Tensor;
use torch_sys::C_tensor;

use super::shim;
use crate::Result;

/// Scalars of a step.
#[derive(Debug, Clone, Copy)]
pub struct Scalars {
    /// Number of the step, from 1.
    pub step: f64,
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first and of the second moment.
    pub betas: [f64; 2],
    /// Weight decay.
    pub decay: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// One update in place of weights and moments `[param, exp_avg, exp_avg_sq]`, f32 of one shape.
///
/// # Errors
/// `Internal`, with what libtorch refuses.
pub fn fused_adamw(state: [&Tensor; 3], grad: &Tensor, scalars: Scalars) -> Result<()> {
    let [param, exp_avg, exp_avg_sq] = state.map(Tensor::as_ptr);
    let Scalars { step, rate, betas: [beta1, beta2], decay, eps } = scalars;
    shim(|text, room| {
        // SAFETY: the pointers are of live tensors; the text has the room that is said.
        unsafe {
            ckpt_fused_adamw(
                param,
                grad.as_ptr(),
                exp_avg,
                exp_avg_sq,
                step,
                rate,
                beta1,
                beta2,
                decay,
                eps,
                text,
                room,
            )
        }
    })
}

unsafe extern "C" {
    fn ckpt_fused_adamw(
        param: *const C_tensor,
        grad: *const C_tensor,
        exp_avg: *const C_tensor,
        exp_avg_sq: *const C_tensor,
        step: f64,
        rate: f64,
        beta1: f64,
        beta2: f64,
        decay: f64,
        eps: f64,
        text: *mut c_char,
        room: c_int,
    ) -> c_int;
}
