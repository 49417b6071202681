//! The model section, whose keys are the model's own.

use serde::{Deserialize, Serialize};

/// The model section: its kind, and keys that the kind defines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelTable {
    /// `llama` or `gpt2`.
    pub kind: String,
    /// The kind's own keys.
    #[serde(flatten)]
    pub keys: toml::Table,
}

impl Default for ModelTable {
    fn default() -> Self {
        Self { kind: "llama".to_owned(), keys: toml::Table::new() }
    }
}

impl ModelTable {
    /// Fills in what follows from other sections; yields the keys and from what they follow.
    pub(in super::super) fn fill(&mut self, seq_len: u64) -> Vec<(&'static str, &'static str)> {
        let length = i64::try_from(seq_len).unwrap_or(i64::MAX);
        let derived = [("vocab", 256, "bytes as tokens"), ("max_length", length, "training.seq_len")];
        let missing = derived.into_iter().filter(|(name, ..)| !self.keys.contains_key(*name));
        let missing: Vec<_> = missing.collect();
        for (name, value, _) in &missing {
            self.keys.insert((*name).to_owned(), toml::Value::Integer(*value));
        }
        missing.into_iter().map(|(name, _, from)| (name, from)).collect()
    }

    /// The kind's own keys as the model's configuration type.
    ///
    /// # Errors
    /// `Config` for keys that the model does not have, and for missing ones.
    pub fn parsed<T: serde::de::DeserializeOwned>(&self) -> crate::Result<T> {
        toml::Value::Table(self.keys.clone()).try_into().map_err(|error: toml::de::Error| {
            crate::Error::config(format!("model.kind={}: {}", self.kind, error.message().trim_end()))
                .hint("`ckpt-train config keys` lists the keys of each model")
                .caused_by(error)
        })
    }
}
