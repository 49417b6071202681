//! A Hugging Face folder: `config.json`, tokenizer files and safetensors shards with an index.
//!
//! ```text
//!  config.json                     what the model is; the only place of head counts and RoPE base
//!  model.safetensors               all tensors, or
//!  model-00001-of-0000N.safetensors + model.safetensors.index.json   {metadata: {total_size}, weight_map: name → file}
//!  tokenizer.json, …               passed through untouched
//! ```
//!
//! Source: `transformers` and `huggingface_hub` (their index and shard naming). The index is believed only as far as
//! the shards' own headers agree; a folder that torch's `HuggingFaceStorageWriter` saved without one is read from
//! the headers alone.

mod audit;
mod config;
mod folder;
mod index;
mod shards;
mod sink;
mod source;

pub use config::{ModelFacts, derive as derive_config};
pub use folder::{Folder, Weights};
#[cfg(any(test, feature = "testing"))]
pub(crate) use index::is_index;
pub use sink::{HfOptions, HfSink};
pub use source::HfSource;

/// Name of the model's description.
pub(crate) const CONFIG: &str = "config.json";
/// Name of the index of sharded safetensors.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Name of the one file of an unsharded model.
pub(crate) const SINGLE: &str = "model.safetensors";
/// Key of the parsed `config.json` in [`crate::Catalog::extra`].
pub const EXTRA_CONFIG: &str = "hf.config";
/// Key of the absolute path of the folder that files can be passed through from.
pub const EXTRA_FOLDER: &str = "hf.folder";
/// Key of the names of those files.
pub const EXTRA_FILES: &str = "hf.files";
