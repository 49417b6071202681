//! What can be wrong with a configuration. Every message names the key, where its value came from, and what would do.

use super::Origin;
use crate::Error;

/// What can be wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file that can't be read.
    #[error("cannot read configuration {path}")]
    Read {
        /// Path as given.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file that is no TOML.
    #[error("{path}:{line}: this is not TOML: {message}")]
    Syntax {
        /// Path as given.
        path: String,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// Files that include each other, or too deeply.
    #[error("{at}: {path} is included in a circle, or more than {depth} files deep")]
    Circle {
        /// Where the `include` is.
        at: Origin,
        /// What it includes.
        path: String,
        /// The limit.
        depth: usize,
    },
    /// A key that does not exist.
    #[error("{at}: unknown key `{key}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey {
        /// Where it stands.
        at: Origin,
        /// As it was written.
        key: String,
        /// The most similar key.
        nearest: Option<String>,
    },
    /// A value of the wrong type, or out of range.
    #[error("{at}: `{key}` is {found}, expected {expected}")]
    WrongValue {
        /// Where it stands.
        at: Origin,
        /// The key, as it was written.
        key: String,
        /// The value.
        found: String,
        /// What the key takes.
        expected: String,
    },
    /// An override that is none.
    #[error("override {0:?} is not of the form section.key=value")]
    Override(String),
    /// A required key without a value.
    #[error("`{key}` is not set: {meaning}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it means.
        meaning: &'static str,
    },
    /// Values that are fine alone but not together.
    #[error("{0}")]
    Contradiction(String, &'static str),
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        let hint = match &error {
            ConfigError::Read { .. } => "give the path of a TOML file with --config",
            ConfigError::Syntax { .. } => "https://toml.io shows the syntax",
            ConfigError::Circle { .. } => "include files that do not include this one",
            ConfigError::UnknownKey { .. } | ConfigError::WrongValue { .. } => {
                "`ckpt-train config keys` lists all keys, what they take and what they mean"
            }
            ConfigError::Override(_) => "write --training.steps=100 or --set training.steps=100",
            ConfigError::Missing { key, .. } if key.starts_with("model.") => {
                "sizes of a small one: --model.dim=128 --model.layers=8 --model.heads=16 --model.kv_heads=8 \
                 --model.ffn=352; trainer/examples/llama.toml and gpt2.toml are whole configurations to begin with"
            }
            ConfigError::Missing { .. } => {
                "set it in the file that --config names, or on the command line: --data.folder=text; \
                 trainer/examples/llama.toml is a whole configuration to begin with"
            }
            ConfigError::Contradiction(_, hint) => hint,
        };
        let message = match &error {
            ConfigError::Read { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Self::config(message).hint(hint).caused_by(error)
    }
}
