//! [`Batch`]: global = M × micro × dp, in both directions; and how many stages and microbatches to begin with.

use serde::Serialize;

use crate::{Error, Result};

/// How a step's sequences are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// Sequences of a step.
    pub global: u64,
    /// Sequences of a microbatch.
    pub micro: u64,
    /// Microbatches of a replica.
    pub microbatches: u64,
}

impl Batch {
    /// The microbatches of `global` sequences over `dp` replicas.
    ///
    /// # Errors
    /// `Config` where they do not divide, with the nearest that do.
    pub fn of(global: u64, micro: u64, dp: u64) -> Result<Self> {
        let one = micro.saturating_mul(dp);
        if one == 0 || global == 0 {
            return Err(Error::config("a batch, a microbatch or a mesh of size 0"));
        }
        if !global.is_multiple_of(one) {
            let below = global / one * one;
            let near = if below == 0 { one.to_string() } else { format!("{below} or {}", below + one) };
            return Err(Error::config(format!(
                "a global batch of {global} is no multiple of micro-batch {micro} x dp {dp} = {one}"
            ))
            .hint(format!("global batches of {near} would do: global = microbatches x micro-batch x dp")));
        }
        Ok(Self { global, micro, microbatches: global / one })
    }
}

/// Stages to take: no more than needed, so that each holds what fits on one card.
#[must_use]
pub const fn choose_stages(layers: u64, fit_on_one: u64) -> u64 {
    layers.div_ceil(if fit_on_one == 0 { 1 } else { fit_on_one })
}

/// Microbatches to begin with, the second article's and the first's: 4·P, and at least 2·P.
#[must_use]
pub const fn choose_microbatches(stages: u64) -> (u64, u64) {
    if stages < 2 { (1, 1) } else { (4 * stages, 2 * stages) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_articles_batch_has_32_microbatches_and_others_are_refused_with_the_nearest() {
        assert_eq!(Batch::of(256, 4, 2).unwrap().microbatches, 32);
        assert_eq!(Batch::of(64, 4, 1).unwrap().microbatches, 16);
        let error = Batch::of(250, 4, 2).unwrap_err();
        assert!(error.to_string().contains("250 is no multiple of micro-batch 4 x dp 2 = 8"), "{error}");
        assert!(error.hint_text().unwrap().contains("248 or 256"));
        assert!(Batch::of(3, 4, 2).unwrap_err().hint_text().unwrap().contains("of 8 would do"));
    }

    #[test]
    fn thirty_two_layers_of_which_eight_fit_take_four_stages_and_sixteen_microbatches() {
        assert_eq!(choose_stages(32, 8), 4);
        assert_eq!(choose_microbatches(4), (16, 8));
        assert_eq!(choose_stages(33, 8), 5);
    }
}
