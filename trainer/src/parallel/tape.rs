//! [`Tape`]: what the products of a part gave, kept from its forward to its backward, so that the part can be run again
//! without them (selective activation checkpointing by kind of operation).
//!
//! Invariants: a product is taken from the tape once, in the order of recording, and only where it was recorded under the
//! same weights and inputs, so that its bits are those of computing it again; sums over tensor-parallel ranks are part of a
//! product, so that no message is sent twice.

use std::{cell::RefCell, collections::VecDeque};

use tch::Tensor;

use crate::{Error, Result};

/// What products gave, in their order; each has an output for every layer and virtual rank.
#[derive(Debug, Default)]
pub struct Tape {
    products: VecDeque<Vec<Tensor>>,
}

impl Tape {
    /// Bytes that it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let size = |tensor: &Tensor| tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64;
        self.products.iter().flatten().map(size).sum()
    }
}

/// What the operations do with products at the moment.
#[derive(Debug, Default)]
enum Mode {
    /// Computes them.
    #[default]
    Plain,
    /// Computes and remembers them.
    Recording(Tape),
    /// Takes them from the tape; computes all if it was empty from the beginning.
    Replaying(Tape),
}

/// Where the operations of one rank record and replay.
#[derive(Debug, Default)]
pub(super) struct Deck(RefCell<Mode>);

impl Deck {
    pub(super) fn record(&self) {
        self.0.replace(Mode::Recording(Tape::default()));
    }

    pub(super) fn recorded(&self) -> Tape {
        match self.0.take() {
            Mode::Recording(tape) => tape,
            Mode::Plain | Mode::Replaying(_) => Tape::default(),
        }
    }

    pub(super) fn replay(&self, tape: Tape) {
        self.0.replace(if tape.products.is_empty() { Mode::Plain } else { Mode::Replaying(tape) });
    }

    pub(super) fn replayed(&self) -> Result<()> {
        match self.0.take() {
            Mode::Replaying(tape) if !tape.products.is_empty() => Err(Error::internal(format!(
                "{} products were kept that the part did not ask for when it was run again",
                tape.products.len()
            ))),
            _ => Ok(()),
        }
    }

    /// The outputs of a product: `count` tensors, computed or taken.
    pub(super) fn product(
        &self,
        count: usize,
        compute: impl FnOnce() -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        if let Mode::Replaying(tape) = &mut *self.0.borrow_mut() {
            let kept = tape.products.pop_front().filter(|kept| kept.len() == count);
            return kept.ok_or_else(|| {
                Error::internal(format!(
                    "a product of {count} outputs that was not kept when the part ran first"
                ))
            });
        }
        let found = compute()?;
        if let Mode::Recording(tape) = &mut *self.0.borrow_mut() {
            tape.products.push_back(found.iter().map(Tensor::shallow_clone).collect());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: f32) -> Result<Vec<Tensor>> {
        Ok(vec![Tensor::from_slice(&[value])])
    }

    fn value(found: &[Tensor]) -> f32 {
        f32::try_from(&found[0]).unwrap()
    }

    #[test]
    fn products_are_given_again_in_their_order_without_being_computed() {
        let deck = Deck::default();
        assert_eq!(value(&deck.product(1, || one(1.0)).unwrap()), 1.0);
        deck.record();
        for at in [2.0, 3.0] {
            assert_eq!(value(&deck.product(1, || one(at)).unwrap()), at);
        }
        let tape = deck.recorded();
        assert_eq!(tape.bytes(), 8);
        deck.replay(tape);
        let never = || Err(Error::internal("computed again"));
        assert_eq!(value(&deck.product(1, never).unwrap()), 2.0);
        assert_eq!(value(&deck.product(1, never).unwrap()), 3.0);
        deck.replayed().unwrap();
        assert_eq!(value(&deck.product(1, || one(4.0)).unwrap()), 4.0);
    }

    #[test]
    fn a_part_that_does_something_else_is_told() {
        let deck = Deck::default();
        deck.record();
        for _ in 0..2 {
            deck.product(1, || one(1.0)).unwrap();
        }
        deck.replay(deck.recorded());
        assert!(deck.product(2, || one(0.0)).unwrap_err().to_string().contains("2 outputs"));
        assert!(deck.replayed().unwrap_err().to_string().contains("1 products were kept"));
        deck.replay(Tape::default());
        assert_eq!(value(&deck.product(1, || one(5.0)).unwrap()), 5.0);
        deck.replayed().unwrap();
    }
}
