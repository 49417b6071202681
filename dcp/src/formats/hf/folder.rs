//! What a folder holds, by names alone: which files are weights, which are passed through.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{INDEX, SINGLE};
use crate::{Error, Place, Result};

/// Largest file that is passed through; tokenizers stay far below.
const MOST_PASSED: u64 = 256 << 20;

/// A folder and what its names say.
#[derive(Debug, Clone)]
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// How the weights are kept; `None` when there are none.
    pub weights: Option<Weights>,
    /// Every `*.safetensors` file, sorted.
    pub safetensors: Vec<String>,
    /// Files to pass through: tokenizer, configs; sorted.
    pub passed: Vec<String>,
}

/// How a folder keeps its weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// Shards with an index, by the index's name.
    Indexed(String),
    /// One file with the usual name.
    Single,
    /// safetensors files without an index.
    Loose,
    /// `torch.save` archives: the index, or the one file.
    TorchBin(String),
}

impl Folder {
    /// Lists the folder at `path`; links to files count as files, as in a hub cache.
    ///
    /// # Errors
    /// What the system says.
    pub fn list(path: &Path) -> Result<Self> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path).place(path.display())? {
            let entry = entry.place(path.display())?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let regular = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file);
            names.extend(regular.map(|found| (name, found.len())));
        }
        names.sort();
        let with = |end: &str| {
            names.iter().map(|(name, _)| name).filter(|name| name.ends_with(end)).cloned().collect()
        };
        let safetensors: Vec<String> = with(".safetensors");
        let weights =
            weights(&with(".index.json"), &safetensors, &names).map_err(|error| error.at(path.display()))?;
        let passed = names.iter().filter(|(name, size)| is_passed(name) && *size <= MOST_PASSED);
        let passed = passed.map(|(name, _)| name.clone()).collect();
        Ok(Self { path: path.to_path_buf(), weights, safetensors, passed })
    }
}

fn weights(indices: &[String], safetensors: &[String], names: &[(String, u64)]) -> Result<Option<Weights>> {
    let has = |wanted: &str| names.iter().any(|(name, _)| name == wanted);
    let of_safetensors: Vec<&String> =
        indices.iter().filter(|name| name.ends_with(".safetensors.index.json")).collect();
    Ok(match of_safetensors.as_slice() {
        _ if has(INDEX) => Some(Weights::Indexed(INDEX.to_owned())),
        // A diffusion model's, or another of one name.
        [one] => Some(Weights::Indexed((*one).clone())),
        [a, b, ..] => {
            return Err(Error::incompatible(format!("two indices, {a} and {b}, and none is {INDEX}"))
                .hint("give the path of one safetensors file, or move one index away"));
        }
        [] if has(SINGLE) => Some(Weights::Single),
        [] if !safetensors.is_empty() => Some(Weights::Loose),
        [] => ["pytorch_model.bin.index.json", "pytorch_model.bin"]
            .into_iter()
            .find(|name| has(name))
            .map(|name| Weights::TorchBin(name.to_owned())),
    })
}

fn is_passed(name: &str) -> bool {
    let is_index = name.ends_with(".index.json");
    let kept =
        [".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"].iter().any(|end| name.ends_with(end));
    let is_plain = !name.starts_with('.') && crate::formats::path::check_file_name(name).is_ok();
    is_plain && !is_index && (kept || ["README.md", "LICENSE"].contains(&name))
}
