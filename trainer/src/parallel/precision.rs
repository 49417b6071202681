//! [`Precision`]: what weights are gathered in, what the operands of products are, and what the parts of a model give each other.
//!
//! In bf16 the operands of a product (weights, inputs, gradients of outputs) have bf16 values, and its result is rounded to one; so has
//! what a part gives the next one, and the gradient of that on the way back, whether a stage ends there or not. The product itself is
//! f32, and so is everything else within a part: norms, attention, the sums of the residual stream, the loss, weight gradients and
//! their sums. What is kept for backward, and what goes from stage to stage, takes half the bytes.
//!
//! In fast mode, where the processor has instructions for bf16 and no sum goes over tensor-parallel ranks, outputs and input gradients are
//! bf16 products of libtorch's: on one thread of a Zen 4 they take 0.4 of the time of f32 ones. Without such instructions they take 2.3
//! times as long with AVX-512, and up to 25 times (input gradients) with AVX2: there, and in exact mode, products are f32.
//!
//! Invariants: rounding follows sums over virtual tensor-parallel ranks, never goes before them, and does not depend on where stages
//! are cut, so that bits do not depend on either; what operations give is f32; weight gradients are f32 products.

use tch::{Kind, Tensor};

use crate::{Result, exact::Sums};

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

/// How the products of operands are computed that are rounded to operands again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// On f32, whatever operands are kept as.
    Wide,
    /// On bf16 as it is: summed in f32, in the processor's own order, and rounded once.
    Native,
}

impl Products {
    /// For operands of `precision`; `alone`: without sums over tensor-parallel ranks.
    pub(super) fn chosen(precision: Precision, sums: Sums, alone: bool) -> Self {
        let native = precision == Precision::Bfloat16 && sums == Sums::Fast && alone;
        if native && has_bf16_instructions() { Self::Native } else { Self::Wide }
    }

    /// An operand as they take it, for several of them.
    pub(super) fn operand(self, kept: &Tensor) -> Result<Tensor> {
        match self {
            Self::Wide => wide(kept),
            Self::Native => Ok(kept.shallow_clone()),
        }
    }

    /// `x · weightᵀ`, to be rounded.
    pub(super) fn output(self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Wide => wide(x)?.f_mm(&wide(weight)?.f_tr()?)?,
            Self::Native => x.f_mm(&weight.f_tr()?)?,
        })
    }

    /// `dy · weight`, to be rounded.
    pub(super) fn input_gradient(self, dy: &Tensor, weight: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Wide => wide(dy)?.f_mm(&wide(weight)?)?,
            Self::Native => dy.f_mm(weight)?,
        })
    }
}

/// Whether the processor multiplies bf16 by instructions of its own, which libtorch's products then use.
fn has_bf16_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
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

    #[test]
    fn products_in_bf16_are_those_in_f32_but_for_the_order_of_sums() {
        let of = |salt: i64, shape: [i64; 2]| {
            let count = shape.iter().product::<i64>();
            let values = (0..count).map(|at| ((at * 37 + salt) % 101 - 50) as f32 / 64.0);
            let values = Tensor::from_slice(&values.collect::<Vec<_>>()).reshape(shape);
            Precision::Bfloat16.operand(&values).unwrap()
        };
        let (x, weight, dy) = (of(1, [24, 48]), of(2, [40, 48]), of(3, [24, 40]));
        let both = |products: Products| {
            let (y, dx) =
                (products.output(&x, &weight).unwrap(), products.input_gradient(&dy, &weight).unwrap());
            [y, dx].map(|it| Precision::Bfloat16.rounded(it).unwrap())
        };
        for (native, wide) in both(Products::Native).into_iter().zip(both(Products::Wide)) {
            assert_eq!((native.size(), native.kind()), (wide.size(), Kind::Float));
            let (apart, most) = ((&native - &wide).abs().max(), wide.abs().max());
            let (apart, most) = (apart.double_value(&[]), most.double_value(&[]));
            assert!(apart <= most * 2_f64.powi(-8), "{apart} of {most}");
        }
    }

    #[test]
    fn exact_mode_f32_and_sums_over_ranks_have_products_in_f32_on_every_processor() {
        for (precision, sums, alone) in [
            (Precision::Bfloat16, Sums::Exact, true),
            (Precision::Float32, Sums::Fast, true),
            (Precision::Bfloat16, Sums::Fast, false),
        ] {
            assert_eq!(Products::chosen(precision, sums, alone), Products::Wide);
        }
    }
}
