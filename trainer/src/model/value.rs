//! [`Value`]: an activation as a model sees it. Head-wise and neuron-wise values may come in pieces, each to be treated
//! alike; a model says so with [`Value::each`] and never asks how many there are.

use tch::Tensor;

use crate::{Error, Result};

/// An activation, whole or in equal pieces along its last dimension.
#[derive(Debug)]
pub struct Value {
    pieces: Vec<Tensor>,
    split: bool,
}

impl Value {
    /// One tensor that is all of it.
    #[must_use]
    pub fn whole(tensor: Tensor) -> Self {
        Self { pieces: vec![tensor], split: false }
    }

    /// Pieces, in order.
    #[must_use]
    pub fn split(pieces: Vec<Tensor>) -> Self {
        Self { pieces, split: true }
    }

    /// Whether it comes in pieces.
    #[must_use]
    pub const fn is_split(&self) -> bool {
        self.split
    }

    /// The pieces; one, for a whole value.
    pub fn pieces(&self) -> &[Tensor] {
        &self.pieces
    }

    /// The tensor of a whole value.
    ///
    /// # Errors
    /// `Internal` for one in pieces: the model uses an operation in the wrong place.
    pub fn tensor(&self) -> Result<&Tensor> {
        match (self.split, self.pieces.as_slice()) {
            (false, [tensor]) => Ok(tensor),
            _ => Err(Error::internal(format!(
                "a value in {} pieces where a whole one is needed",
                self.pieces.len()
            ))),
        }
    }

    /// `f` of each piece; values must come in the same pieces.
    ///
    /// # Errors
    /// `Internal` for values that are cut differently; what `f` refuses.
    pub fn each(values: &[&Self], f: impl Fn(&[&Tensor]) -> Result<Tensor>) -> Result<Self> {
        let Some(first) = values.first() else { return Err(Error::internal("an operation on no values")) };
        if let Some(other) =
            values.iter().find(|it| it.split != first.split || it.pieces.len() != first.pieces.len())
        {
            let (a, b) = (first.pieces.len(), other.pieces.len());
            return Err(Error::internal(format!("values in {a} and in {b} pieces meet in one operation")));
        }
        let piece = |at: usize| f(&values.iter().filter_map(|it| it.pieces.get(at)).collect::<Vec<_>>());
        let pieces = (0..first.pieces.len()).map(piece).collect::<Result<_>>()?;
        Ok(Self { pieces, split: first.split })
    }
}
