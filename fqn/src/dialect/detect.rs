//! Which dialect a registry speaks, by the share of its names that each covers.

use std::{fmt, sync::LazyLock};

use serde::Serialize;

use super::{Dialect, Family, llama};
use crate::{Registry, pattern::Pattern};

/// How well a dialect fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Detection {
    /// Family of the dialect.
    pub family: String,
    /// Its name.
    pub dialect: String,
    /// Model tensors whose names it covers.
    pub matched: usize,
    /// Model tensors there are.
    pub total: usize,
}

impl fmt::Display for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {} of {} names", self.dialect, self.family, self.matched, self.total)
    }
}

impl Dialect {
    /// The dialect of the Llama family that covers most model names of `registry`; `None` where none covers half.
    #[must_use]
    pub fn detect(registry: &Registry) -> Option<Detection> {
        llama().detect(registry)
    }
}

impl Family {
    /// The dialect that covers most model names of `registry`; `None` where none covers at least half.
    #[must_use]
    pub fn detect(&self, registry: &Registry) -> Option<Detection> {
        let names: Vec<&str> =
            registry.entries().iter().filter(|e| e.role.is_model()).map(|e| e.fqn.as_str()).collect();
        let covered = |at: usize| names.iter().filter(|name| self.covers(name, at)).count();
        let scores = (0..self.dialects.len()).map(|at| (covered(at), std::cmp::Reverse(at)));
        let (matched, std::cmp::Reverse(best)) = scores.max()?;
        (matched > 0 && matched * 2 >= names.len()).then(|| Detection {
            family: self.name.clone(),
            dialect: self.dialects.get(best).map(|d| d.name.clone()).unwrap_or_default(),
            matched,
            total: names.len(),
        })
    }

    fn covers(&self, name: &str, dialect: usize) -> bool {
        self.rows.iter().any(|row| row.captures(name, dialect).is_some())
    }

    /// Whether any dialect of the family has the name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        (0..self.dialects.len()).any(|at| self.covers(name, at))
    }
}

/// Whether `name` is a whole name of a model family that this crate knows, in any dialect.
#[must_use]
pub fn is_known_name(name: &str) -> bool {
    /// Names of families that have no dialect data yet, enough to recognise them by.
    static OTHERS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
        let texts = [
            "{transformer.,}{wte,wpe,ln_f}.*",
            "{transformer.,}h.*.{attn,mlp,ln_1,ln_2}.**",
            "model.layers.*.{self_attn,mlp,block_sparse_moe,input_layernorm,post_attention_layernorm}.**",
            "layers.*.{attention,feed_forward,attention_norm,ffn_norm,moe}.**",
            "gpt_neox.layers.*.{attention,mlp,input_layernorm,post_attention_layernorm}.**",
        ];
        texts.iter().filter_map(|text| Pattern::new(text).ok()).collect()
    });
    llama().knows(name) || OTHERS.iter().any(|pattern| pattern.matches(name))
}
