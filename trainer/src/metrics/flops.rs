//! [`Flops`]: floating-point operations of a token, and what share of the cards' rate a run reaches (MFU).

/// How a token's operations are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formula {
    /// 6 for each parameter that is no table of embeddings, and attention's 12·L·h·q·s: PaLM's (arXiv 2204.02311, appendix
    /// B), which TorchTitan prints.
    Palm,
    /// 6 for each parameter.
    SixN,
}

/// What a model's step is worth, and what the cards could do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flops {
    /// Operations of one token, forward and backward.
    pub per_token: f64,
    /// Operations a second of one rank's card; `None` where nobody said.
    pub peak: Option<f64>,
    /// Ranks.
    pub ranks: usize,
}

/// The sizes that the formulas need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// All parameters.
    pub params: u64,
    /// Of these, tables of embeddings that are only looked up.
    pub tables: u64,
    /// Layers x query heads x width of a head x tokens of a sequence.
    pub attention: u64,
}

impl Formula {
    /// Operations of a token.
    #[must_use]
    pub const fn per_token(self, counted: Counted) -> f64 {
        match self {
            Self::Palm => {
                6.0 * counted.params.saturating_sub(counted.tables) as f64 + 12.0 * counted.attention as f64
            }
            Self::SixN => 6.0 * counted.params as f64,
        }
    }
}

impl Flops {
    /// Tera-operations a second of one rank, at so many tokens a second of all.
    #[must_use]
    pub fn tera(&self, tokens_per_second: f64) -> f64 {
        self.per_token * tokens_per_second / self.ranks.max(1) as f64 / 1e12
    }

    /// The share of the cards' rate, from 0 to 1, where that is known.
    #[must_use]
    pub fn mfu(&self, tokens_per_second: f64) -> Option<f64> {
        self.peak.filter(|peak| *peak > 0.0).map(|peak| 1e12 * self.tera(tokens_per_second) / peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_model_has_the_known_operations() {
        // Llama 3 8B at 8,192 tokens as TorchTitan counts it: 6 x (8.03e9 - 0.525e9) + 12 x 32 x 32 x 128 x 8192.
        let counted = Counted { params: 8_030_261_248, tables: 525_336_576, attention: 32 * 32 * 128 * 8192 };
        let per_token = Formula::Palm.per_token(counted);
        assert!((per_token - 5.791_444_992e10).abs() < 1e3, "{per_token}");
        let flops = Flops { per_token, peak: Some(989e12), ranks: 8 };
        assert!((flops.tera(8.0 * 7_000.0) - 405.4).abs() < 0.1);
        assert!((flops.mfu(8.0 * 7_000.0).unwrap() - 0.4099).abs() < 1e-3);
        assert_eq!(Flops { peak: None, ..flops }.mfu(1.0), None);
        assert!((Formula::SixN.per_token(counted) - 6.0 * 8_030_261_248.0).abs() < 1.0);
    }
}
