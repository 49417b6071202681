//! [`Recompute`]: how much of each part's forward stays until its backward, and what is computed again there
//! (activation checkpointing).
//!
//! | mode        | of a layer stays                                | in backward                                         |
//! | ----------- | ----------------------------------------------- | --------------------------------------------------- |
//! | none        | everything that autograd and the nodes save      | nothing is computed again                           |
//! | full        | its inputs                                       | the whole forward                                   |
//! | selective n | its inputs, of every n-th layer; else everything | the whole forward of every n-th layer               |
//! | selective op | its inputs and what its products gave           | norms, attention, element-wise work: no product and |
//! |             |                                                 | no message between ranks                            |
//!
//! Layers are counted over the whole model, so that which are computed again does not depend on where stages are cut.
//! Embedding and head are never computed again: the one keeps nothing but ids, and the other's backward follows at once.
//!
//! Why `op` keeps products: they are what is dear in a layer, and with tensor parallelism each ends in a message; their outputs
//! are about half of what a layer saves (5 widths and 2 feed-forward widths, of 9 and 4 in a Llama; a test counts the bytes).
//! TorchTitan keeps every second one and the outputs of attention; here attention is one node, whose forward is cheap beside
//! the products at the lengths that fit one processor.
//!
//! A split backward (I, W) of a part that is computed again would have to keep the inputs of its linear layers from I to W:
//! just what was not to be kept. So I computes the weight gradients too, W has nothing to do there (its share is 0), and the
//! schedule works as one with full backwards; unless `queue` says that the memory may be had.
//!
//! Invariant: losses and gradients have the bits of keeping everything: the same operations run on the same inputs.

use crate::model::Model;

/// What stays of a part's forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// Everything that backward needs.
    #[default]
    All,
    /// Inputs, and what the products gave.
    Products,
    /// Inputs alone.
    Inputs,
}

/// Which layers are computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// None.
    #[default]
    None,
    /// All.
    Full,
    /// Every so many-th, counted from 1.
    Every(u64),
    /// All, but for their products.
    ByOperation,
}

/// What stays of every part's forward.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recompute {
    keep: Vec<Keep>,
    queue: bool,
}

impl Recompute {
    /// For the parts of `model`; `queue`: whether I of a part that is computed again leaves its weight gradients to W, and
    /// keeps what they are made of so long.
    #[must_use]
    pub fn new(model: &dyn Model, which: Which, queue: bool) -> Self {
        let keep = |layer: Option<u32>| match (which, layer) {
            (Which::None, _) | (_, None) => Keep::All,
            (Which::Full, Some(_)) => Keep::Inputs,
            (Which::ByOperation, Some(_)) => Keep::Products,
            (Which::Every(every), Some(layer)) if (u64::from(layer) + 1).is_multiple_of(every) => {
                Keep::Inputs
            }
            (Which::Every(_), Some(_)) => Keep::All,
        };
        Self { keep: model.parts().iter().map(|part| keep(part.layer)).collect(), queue }
    }

    /// What stays of `part`'s.
    #[must_use]
    pub fn of(&self, part: usize) -> Keep {
        self.keep.get(part).copied().unwrap_or_default()
    }

    /// Whether a split backward of `part` leaves its weight gradients to W.
    #[must_use]
    pub fn splits(&self, part: usize) -> bool {
        self.queue || self.of(part) == Keep::All
    }
}
