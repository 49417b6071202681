//! Known models and cards by name. Sizes of models are those of their published configurations; figures of cards those
//! of their data sheets: dense bf16 rate, memory, and one direction of the links within a node.

use super::{Family, ModelFacts, Sizes};
use crate::{Error, Result};

/// Names and sizes: dim, layers, heads, KV heads, feed-forward, vocabulary, learnt positions.
pub const MODELS: &[(&str, Family, [u64; 7])] = &[
    ("llama2-7b", Family::Llama, [4096, 32, 32, 32, 11_008, 32_000, 0]),
    ("llama2-13b", Family::Llama, [5120, 40, 40, 40, 13_824, 32_000, 0]),
    ("llama2-70b", Family::Llama, [8192, 80, 64, 8, 28_672, 32_000, 0]),
    ("llama3-8b", Family::Llama, [4096, 32, 32, 8, 14_336, 128_256, 0]),
    ("llama3-70b", Family::Llama, [8192, 80, 64, 8, 28_672, 128_256, 0]),
    ("llama3-405b", Family::Llama, [16_384, 126, 128, 8, 53_248, 128_256, 0]),
    ("gpt2", Family::Gpt2, [768, 12, 12, 12, 3072, 50_257, 1024]),
    ("gpt2-xl", Family::Gpt2, [1600, 48, 25, 25, 6400, 50_257, 1024]),
];

/// A card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// Its name.
    pub name: &'static str,
    /// Bytes of memory.
    pub memory: f64,
    /// Floating-point operations a second, dense, bf16.
    pub flops: f64,
    /// Bytes a second to another card of the node, one direction.
    pub intra: f64,
}

/// Cards.
pub const CARDS: &[Card] = &[
    Card { name: "v100-32g", memory: 32e9, flops: 125e12, intra: 150e9 },
    Card { name: "a100-40g", memory: 40e9, flops: 312e12, intra: 300e9 },
    Card { name: "a100-80g", memory: 80e9, flops: 312e12, intra: 300e9 },
    Card { name: "h100-80g", memory: 80e9, flops: 989e12, intra: 450e9 },
    Card { name: "h200-141g", memory: 141e9, flops: 989e12, intra: 450e9 },
];

/// The model called `name`.
///
/// # Errors
/// `Config`, with the nearest name.
pub fn model(name: &str) -> Result<ModelFacts> {
    let found = MODELS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
    let (name, family, [dim, layers, heads, kv_heads, ffn, vocab, positions]) =
        *found.ok_or_else(|| unknown("model", name, MODELS.iter().map(|(name, ..)| *name)))?;
    let tied = family == Family::Gpt2;
    let head_dim = dim / heads.max(1);
    ModelFacts::counted(
        name,
        family,
        Sizes { dim, layers, heads, kv_heads, head_dim, ffn, vocab, positions, tied },
    )
}

/// The card called `name`.
///
/// # Errors
/// `Config`, with the nearest name.
pub fn card(name: &str) -> Result<Card> {
    let found = CARDS.iter().find(|card| card.name.eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| unknown("card", name, CARDS.iter().map(|card| card.name)))
}

fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str> + Clone) -> Error {
    let like = |known: &&str| strsim::damerau_levenshtein(&name.to_ascii_lowercase(), known);
    let nearest = known.clone().min_by_key(like).unwrap_or_default();
    let all = known.collect::<Vec<_>>().join(", ");
    let name = name.escape_default();
    Error::config(format!("no {what} is called \"{name}\"; did you mean {nearest}?"))
        .hint(format!("known are {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        let error = model("llama-2-70b").unwrap_err();
        assert!(error.to_string().contains("did you mean llama2-70b?"), "{error}");
        assert!(error.hint_text().unwrap().contains("llama3-405b"));
        assert!(card("a100").unwrap_err().to_string().contains("did you mean a100-"));
    }
}
