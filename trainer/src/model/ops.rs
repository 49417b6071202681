//! [`Ops`]: the operations that touch parameters. A model calls them; the runtime gives them their parallel meaning by
//! the placement rules of the parameters ([`crate::parallel`]).
//!
//! Invariant: a whole value may hold some of a microbatch's tokens only, as long as it is between linears. So what a model does
//! there by itself is done to each token alone; what looks at other tokens is done to the pieces that a linear gave, which
//! have all of them.

use tch::Tensor;

use super::{Param, Value};
use crate::Result;

/// A linear layer: weight `[out, in]`, and maybe a bias `[out]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// The weight.
    pub weight: Param,
    /// The bias.
    pub bias: Option<Param>,
}

/// A normalisation over the last dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// Root mean square, with this epsilon; no bias.
    Rms(f64),
    /// Layer normalisation, with this epsilon.
    Layer(f64),
}

/// Entries of a table, one for each token.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Which: any shape, i64.
    pub ids: &'a Tensor,
    /// `[entries, width]`.
    pub table: Param,
}

/// Operations that touch parameters.
pub trait Ops {
    /// Products of one input with several weights: `x` is `[tokens, in]`, results are `[tokens, out]`. The gradient of
    /// `x` is summed from the last layer to the first, as autograd does for uses in this order.
    ///
    /// A weight cut by rows takes a whole `x` and gives a value in pieces; one cut by columns takes pieces and gives a
    /// whole value (the sum); one that is not cut takes and gives whole values.
    ///
    /// # Errors
    /// What the runtime and libtorch refuse; a peer that does not answer.
    fn linear(&self, x: &Value, layers: &[Linear]) -> Result<Vec<Value>>;

    /// The sum of what each token has in several tables, in their order: `[tokens, width]`, whole.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    fn embed(&self, lookups: &[Lookup<'_>]) -> Result<Value>;

    /// Normalises a whole `x` over its last dimension, then scales (and shifts) it.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    fn norm(&self, x: &Value, norm: Norm, weight: Param, bias: Option<Param>) -> Result<Value>;

    /// Cross entropy of logits (whole, or cut by vocabulary) against `targets` (flat, -100 is not counted), summed over
    /// tokens: a scalar.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    fn loss(&self, logits: &Value, targets: &Tensor) -> Result<Tensor>;

    /// A value made whole: its pieces side by side. Not differentiated.
    ///
    /// # Errors
    /// As [`Ops::linear`].
    fn assemble(&self, value: &Value) -> Result<Tensor>;
}
