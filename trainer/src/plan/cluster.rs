//! [`Cluster`]: the cards, how they stand in nodes, and the links between them.

use serde::Serialize;

use crate::{Error, Result};

/// The machines of a run. All cards are alike.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cluster {
    /// Ranks: one card each.
    pub ranks: u64,
    /// Cards of a node.
    pub per_node: u64,
    /// Bytes of a card's memory.
    pub memory: f64,
    /// Of these, kept for what is not counted: the context, communication buffers, the allocator's gaps.
    pub reserve: f64,
    /// Floating-point operations a second of a card, as its data sheet says.
    pub flops: f64,
    /// The share of them that the model's products reach.
    pub efficiency: f64,
    /// Bytes a second between two cards of a node, one direction.
    pub intra: f64,
    /// Bytes a second of one card to another node, one direction.
    pub inter: f64,
    /// The share of computing time behind which data-parallel traffic can hide.
    pub overlap: f64,
}

impl Cluster {
    /// Refuses numbers that no cluster has.
    ///
    /// # Errors
    /// `Config`, naming the number.
    pub fn check(&self) -> Result<()> {
        let refused = |said: String, hint: &str| Err(Error::config(said).hint(hint.to_owned()));
        if self.ranks == 0 || self.per_node == 0 {
            return refused(
                format!("{} ranks, {} a node: neither can be 0", self.ranks, self.per_node),
                "give --ranks and --per-node",
            );
        }
        for (name, value) in [
            ("--memory", self.memory),
            ("--tflops", self.flops),
            ("--intra", self.intra),
            ("--inter", self.inter),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return refused(
                    format!("{name} is {value}; it must be above 0"),
                    "give a --card, or the figure itself",
                );
            }
        }
        if self.reserve < 0.0 || self.reserve >= self.memory {
            return refused(
                format!("--reserve {} of a memory of {} bytes leaves nothing", self.reserve, self.memory),
                "reserve a few GB at most",
            );
        }
        for (name, value) in [("--efficiency", self.efficiency), ("--overlap", self.overlap)] {
            if !(0.0..=1.0).contains(&value) || (name == "--efficiency" && value == 0.0) {
                return refused(
                    format!("{name} is {value}; it is a share from 0 to 1"),
                    "0.4 to 0.6 are usual",
                );
            }
        }
        Ok(())
    }

    /// Number of nodes; the last may be partly used.
    #[must_use]
    pub const fn nodes(&self) -> u64 {
        self.ranks.div_ceil(if self.per_node == 0 { 1 } else { self.per_node })
    }

    /// The node of a rank.
    #[must_use]
    pub const fn node(&self, rank: u64) -> u64 {
        rank / if self.per_node == 0 { 1 } else { self.per_node }
    }

    /// Whether all these ranks are on one node.
    #[must_use]
    pub fn one_node(&self, ranks: &[u64]) -> bool {
        let mut nodes = ranks.iter().map(|rank| self.node(*rank));
        nodes.next().is_none_or(|first| nodes.all(|node| node == first))
    }

    /// Bytes a second among these ranks.
    #[must_use]
    pub fn rate(&self, ranks: &[u64]) -> f64 {
        if self.one_node(ranks) { self.intra } else { self.inter }
    }
}

/// So many A100 cards in nodes of eight, with nothing held back: what this module's tests reckon with.
#[cfg(test)]
pub(super) const fn a100s(ranks: u64) -> Cluster {
    Cluster {
        ranks,
        per_node: 8,
        memory: 80e9,
        reserve: 0.0,
        flops: 312e12,
        efficiency: 0.5,
        intra: 300e9,
        inter: 25e9,
        overlap: 0.5,
    }
}
