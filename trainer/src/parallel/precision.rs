//! [`Precision`]: what weights are gathered in, what the operands of products are, and what the parts of a model give each other.
//!
//! In bf16 the operands of a product (weights, inputs, gradients of outputs) have bf16 values, and its result is rounded to one; so has
//! what a part gives the next one, and the gradient of that on the way back, whether a stage ends there or not. The product itself is
//! f32, and so is everything else within a part: norms, attention, the sums of the residual stream, the loss, weight gradients and
//! their sums. What is kept for backward, and what goes from stage to stage, takes half the bytes. The processor's own bf16 products are many times slower than those in f32 where
//! an operand is not laid out as they want it, and they sum in an order of their own.
//!
//! Invariants: rounding follows sums over virtual tensor-parallel ranks, never goes before them, and does not depend on where stages
//! are cut, so that bits do not depend on either; what operations give is f32.

use tch::{Kind, Tensor};

use crate::Result;

/// What weights are gathered in, what the operands of products are, and what parts give each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32.
    #[default]
    Float32,
    /// bf16: the upper half of f32.
    Bfloat16,
}

impl Precision {
    /// What tensors of it consist of.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Float32 => Kind::Float,
            Self::Bfloat16 => Kind::BFloat16,
        }
    }

    /// A tensor as an operand, or as it is given to another part: what is kept of it for backward.
    pub(crate) fn operand(self, tensor: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Float32 => tensor.shallow_clone(),
            Self::Bfloat16 => tensor.f_to_kind(self.kind())?,
        })
    }

    /// An f32 result, rounded to a value of this precision; f32 still.
    pub(crate) fn rounded(self, tensor: Tensor) -> Result<Tensor> {
        match self {
            Self::Float32 => Ok(tensor),
            Self::Bfloat16 => wide(&tensor.f_to_kind(Kind::BFloat16)?),
        }
    }
}

/// An operand in f32, as products take it; itself if it is.
pub(crate) fn wide(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.f_to_kind(Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_keeps_eight_bits_of_a_mantissa_and_rounds_to_even() {
        // Neighbours of 1 in bf16 are 2^-7 apart above: halfway goes to the even one.
        let step = 2_f32.powi(-7);
        let values = [1.0, 1.0 + step / 2.0, 1.0 + 1.5 * step, 1.0 + 0.51 * step, -3.0e38];
        let found = Precision::Bfloat16.rounded(Tensor::from_slice(&values)).unwrap();
        let found = Vec::<f32>::try_from(found).unwrap();
        assert_eq!(found[..4], [1.0, 1.0, 1.0 + 2.0 * step, 1.0 + step]);
        assert!(found[4].is_finite());
        let same = Precision::Float32.rounded(Tensor::from_slice(&values)).unwrap();
        assert_eq!(Vec::<f32>::try_from(same).unwrap(), values);
    }
}
