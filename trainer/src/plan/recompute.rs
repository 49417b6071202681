//! [`Recompute`]: what is computed again on the way back, and what that saves and costs.

use std::{fmt, str::FromStr};

use serde::Serialize;

/// What is computed again on the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Attention's scores.
    Selective,
    /// All but what products gave: no product and no message twice.
    Products,
    /// Every so many-th layer: its inputs are all that is stored of it.
    Every(u64),
    /// Whole layers: their inputs are all that is stored.
    Full,
}

impl Recompute {
    /// What the products of a layer give, as a share of all that it stores: 5 widths and 2 feed-forward widths of 9 and 4 in a Llama.
    pub(super) const OF_PRODUCTS: f64 = 0.5;

    /// Share of the layers whose forward, products included, is computed a second time.
    pub(super) fn layers_again(self) -> f64 {
        match self {
            Self::None | Self::Selective | Self::Products => 0.0,
            Self::Every(each) => 1.0 / each.max(1) as f64,
            Self::Full => 1.0,
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is none of none, selective, op, full, or a number n for every n-th layer");
        match text {
            "none" => Ok(Self::None),
            "selective" => Ok(Self::Selective),
            "op" => Ok(Self::Products),
            "full" => Ok(Self::Full),
            number => number.parse().ok().filter(|each| *each > 0).map(Self::Every).ok_or_else(wrong),
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nothing"),
            Self::Selective => f.write_str("attention's scores"),
            Self::Products => f.write_str("all but products"),
            Self::Every(each) => write!(f, "one layer in {each}"),
            Self::Full => f.write_str("all layers"),
        }
    }
}
