//! [`ModelFacts`]: what planning needs of a model: its sizes, and how many parameters embedding, a layer and the head have.
//!
//! Invariant: the three counts add up to the model's parameters, a tied table once.

use serde::Serialize;

use crate::{Error, Result};

/// How the counts follow from the sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Gated feed-forward, RMS norms, no biases, rotary positions.
    Llama,
    /// Biases everywhere, layer norms, learnt positions, tied head.
    Gpt2,
}

/// The sizes that a mesh must divide and that costs follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Width of the residual stream.
    pub dim: u64,
    /// Layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Width of the feed-forward layer.
    pub ffn: u64,
    /// Vocabulary entries.
    pub vocab: u64,
    /// Positions that the model has parameters for (GPT-2); 0 where they cost none.
    pub positions: u64,
    /// Whether the head is the embedding's table.
    pub tied: bool,
}

/// A model, as planning sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFacts {
    /// For people.
    pub name: String,
    /// The sizes.
    pub sizes: Sizes,
    /// Parameters of the embedding.
    pub embedding: u64,
    /// Parameters of one layer.
    pub layer: u64,
    /// Parameters of the final norm and the head; a tied table is counted with the embedding.
    pub head: u64,
}

impl ModelFacts {
    /// Counted from the sizes.
    ///
    /// # Errors
    /// `Config` for sizes of 0, or so large that they can't be counted.
    pub fn counted(name: &str, family: Family, sizes: Sizes) -> Result<Self> {
        named(&sizes)?;
        let counts = match family {
            Family::Llama => llama(&sizes),
            Family::Gpt2 => gpt2(&sizes),
        };
        let [embedding, layer, head] = counts.ok_or_else(|| {
            Error::config(format!("model {name}: its parameters can't be counted in 64 bits"))
        })?;
        Ok(Self { name: name.to_owned(), sizes, embedding, layer, head })
    }

    /// With the total as given (`--params 70e9`): embedding and head as the sizes say, the rest in equal layers.
    ///
    /// # Errors
    /// `Config` when embedding and head alone are more.
    pub fn with_total(mut self, total: u64) -> Result<Self> {
        let ends = self.embedding + self.head;
        let rest = total.checked_sub(ends).filter(|rest| *rest >= self.sizes.layers);
        let rest = rest.ok_or_else(|| {
            Error::config(format!(
                "{total} parameters are fewer than embedding and head of model {} have alone: {ends}",
                self.name
            ))
            .hint("give another --params, or the sizes --vocab and --dim of the model that has so many")
        })?;
        self.layer = rest / self.sizes.layers;
        // What does not divide is with the head, so that the total is the given one.
        self.head += rest % self.sizes.layers;
        Ok(self)
    }

    /// All parameters.
    #[must_use]
    pub const fn params(&self) -> u64 {
        self.embedding + self.layer * self.sizes.layers + self.head
    }

    /// Parameters of each part in order: embedding, layers, head.
    #[must_use]
    pub fn parts(&self) -> Vec<u64> {
        let layers = (0..self.sizes.layers).map(|_| self.layer);
        std::iter::once(self.embedding).chain(layers).chain([self.head]).collect()
    }

    /// Parameters of a stage with so many layers.
    #[must_use]
    pub const fn stage(&self, layers: u64, first: bool, last: bool) -> u64 {
        let mut own = self.layer * layers;
        if first {
            own += self.embedding;
        }
        if last {
            own += self.head;
            // The last stage holds a copy of the table that both ends use.
            if self.sizes.tied && !first {
                own += self.sizes.vocab * self.sizes.dim;
            }
        }
        own
    }
}

fn named(sizes: &Sizes) -> Result<()> {
    let all = [
        ("dim", sizes.dim),
        ("layers", sizes.layers),
        ("heads", sizes.heads),
        ("kv-heads", sizes.kv_heads),
        ("ffn", sizes.ffn),
        ("vocab", sizes.vocab),
    ];
    match all.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => Err(Error::config(format!("the model's {name} is 0 or not given"))
            .hint("give a --preset, a configuration, or --dim --layers --heads --ffn --vocab")),
        None => Ok(()),
    }
}

/// Embedding, a layer, the head.
fn llama(sizes: &Sizes) -> Option<[u64; 3]> {
    let table = sizes.vocab.checked_mul(sizes.dim)?;
    let queries = sizes.heads.checked_mul(sizes.head_dim)?;
    let keys = sizes.kv_heads.checked_mul(sizes.head_dim)?;
    let attention = sizes.dim.checked_mul(queries.checked_add(keys)?)?.checked_mul(2)?;
    let feed_forward = sizes.dim.checked_mul(sizes.ffn)?.checked_mul(3)?;
    let layer = attention.checked_add(feed_forward)?.checked_add(2 * sizes.dim)?;
    layer.checked_mul(sizes.layers)?;
    Some([table, layer, if sizes.tied { sizes.dim } else { sizes.dim.checked_add(table)? }])
}

fn gpt2(sizes: &Sizes) -> Option<[u64; 3]> {
    let (dim, ffn) = (sizes.dim, sizes.ffn);
    let table = sizes.vocab.checked_add(sizes.positions)?.checked_mul(dim)?;
    let attention = dim.checked_mul(dim)?.checked_mul(4)?.checked_add(dim.checked_mul(4)?)?;
    let feed_forward = dim.checked_mul(ffn)?.checked_mul(2)?.checked_add(ffn)?.checked_add(dim)?;
    let layer = attention.checked_add(feed_forward)?.checked_add(dim.checked_mul(4)?)?;
    layer.checked_mul(sizes.layers)?;
    Some([table, layer, 2 * dim])
}

#[cfg(test)]
mod tests {
    use super::super::presets;

    #[test]
    fn known_models_have_the_parameters_that_their_publishers_count() {
        for (name, params) in [
            ("llama2-7b", 6_738_415_616),
            ("llama2-13b", 13_015_864_320),
            ("llama2-70b", 68_976_648_192),
            ("llama3-8b", 8_030_261_248),
            ("llama3-70b", 70_553_706_496),
            ("gpt2", 124_439_808),
        ] {
            let facts = presets::model(name).unwrap();
            assert_eq!(facts.params(), params, "{name}");
            assert_eq!(facts.parts().iter().sum::<u64>(), params);
        }
    }

    #[test]
    fn a_given_total_is_kept_to_the_last_parameter_and_one_below_the_ends_is_refused() {
        let facts = presets::model("llama2-70b").unwrap().with_total(70_000_000_001).unwrap();
        assert_eq!(facts.params(), 70_000_000_001);
        let error = presets::model("llama2-70b").unwrap().with_total(1_000).unwrap_err();
        assert!(error.to_string().contains("embedding and head"), "{error}");
    }

    #[test]
    fn a_tied_table_is_counted_once_but_held_at_both_ends() {
        let facts = presets::model("gpt2").unwrap();
        let (first, last) = (facts.stage(6, true, false), facts.stage(6, false, true));
        assert_eq!(first + last, facts.params() + 50_257 * 768);
        assert_eq!(facts.stage(12, true, true), facts.params());
    }
}
