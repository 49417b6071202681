//! [`HfSink`]: a folder that `transformers` opens: config, passed files, safetensors shards and their index.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    CONFIG, EXTRA_CONFIG, EXTRA_FILES, EXTRA_FOLDER, Folder, INDEX, ModelFacts, SINGLE, derive_config,
    shards::shards,
};
use crate::{
    Error, Needs, Piece, Place, Result, Sink, TargetFile, TargetLayout, TargetSpec,
    formats::{
        blobs::read_small,
        path,
        safetensors::{HeaderBuilder, add_file, carried_metadata},
        staged::{Staged, delegate_staging},
    },
    staging::TargetKind,
};

/// Largest file that is passed through.
const MOST_PASSED: u64 = 256 << 20;

/// How a folder is written.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HfOptions {
    /// Bytes of tensors in one shard, at most, unless a single tensor is larger: then there are as few shards as that
    /// takes. `None` leaves their number to their total, see the module `shards`.
    pub max_shard_bytes: Option<u64>,
    /// Folder with the model's own `config.json` and tokenizer files, which go before the source's.
    pub config_folder: Option<PathBuf>,
    /// Facts for a config that must be made.
    pub facts: ModelFacts,
}

impl HfOptions {
    /// Shards of 5 GB at most; config from the source, or derived.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Writes a folder.
#[derive(Debug)]
pub struct HfSink {
    staged: Staged,
    options: HfOptions,
}

impl HfSink {
    /// A folder at `target`, which must not exist.
    #[must_use]
    pub fn new(target: &Path, options: HfOptions) -> Self {
        Self { staged: Staged::new(target, TargetKind::Folder), options }
    }
}

impl Sink for HfSink {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        refuse_what_does_not_belong(spec)?;
        let config = config(spec, &self.options)?;
        let mut layout = TargetLayout::default();
        let shards = shards(spec, self.options.max_shard_bytes)?;
        let (mut weight_map, mut total) = (BTreeMap::new(), 0_u64);
        for (at, shard) in shards.iter().enumerate() {
            let name = shard_name(at, shards.len());
            let mut header = HeaderBuilder::new();
            for (key, value) in carried_metadata(spec) {
                header.metadata(key, value);
            }
            for tensor in shard.iter().filter_map(|at| spec.tensors.get(*at)) {
                let fqn = tensor.entry.fqn.as_str();
                header.tensor(fqn, tensor.entry.dtype, &tensor.entry.shape)?;
                weight_map.insert(fqn.to_owned(), name.clone());
                total = total.saturating_add(tensor.entry.bytes().unwrap_or(0));
            }
            add_file(&mut layout, name, spec, shard, &header.finish()?)?;
        }
        if shards.len() > 1 {
            let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
            layout.files.push(small(INDEX, pretty(&index)?));
        }
        layout.files.push(small(CONFIG, config));
        for (name, bytes) in passed(spec, &self.options)? {
            layout.files.push(small(&name, bytes));
        }
        self.staged.begin(&spec.plan_digest, &layout)?;
        Ok(layout)
    }

    delegate_staging!();
}

fn refuse_what_does_not_belong(spec: &TargetSpec) -> Result<()> {
    let foreign = spec
        .tensors
        .iter()
        .find(|tensor| !tensor.entry.role.is_model())
        .map(|tensor| tensor.entry.id().to_string());
    let foreign = foreign.or_else(|| spec.objects.first().map(|object| object.key.clone()));
    match foreign {
        Some(name) => {
            Err(Error::incompatible(format!("{name}: a Hugging Face folder holds the model's tensors only")))
        }
        None if spec.tensors.is_empty() => Err(Error::incompatible("there is no tensor of a model to write")),
        None => Ok(()),
    }
}

fn shard_name(at: usize, of: usize) -> String {
    if of == 1 {
        SINGLE.to_owned()
    } else {
        format!("model-{:05}-of-{of:05}.safetensors", at.saturating_add(1))
    }
}

fn small(path: &str, bytes: Bytes) -> TargetFile {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    TargetFile { path: path.to_owned(), size, head: vec![Piece { offset: 0, bytes }] }
}

fn pretty(value: &Value) -> Result<Bytes> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::internal(error.to_string()))?;
    Ok(Bytes::from(text + "\n"))
}

/// The config that was given, else the source's own, else one made from shapes and facts.
fn config(spec: &TargetSpec, options: &HfOptions) -> Result<Bytes> {
    if let Some(folder) = &options.config_folder {
        let path = folder.join(CONFIG);
        let bytes = read_small(&path, &path.display().to_string(), MOST_PASSED)?;
        let given = serde_json::from_slice::<Map<String, Value>>(&bytes);
        let given = given
            .map_err(|error| Error::incompatible(format!("{}: no JSON object: {error}", path.display())))?;
        check_vocabulary(spec, &given).place(path.display())?;
        return Ok(Bytes::from(bytes));
    }
    if let Some(Value::Object(config)) = spec.extra.get(EXTRA_CONFIG) {
        return pretty(&Value::Object(with_dtype(config, spec)));
    }
    let tensors = spec
        .tensors
        .iter()
        .map(|tensor| (tensor.entry.fqn.as_str(), tensor.entry.dtype, &tensor.entry.shape));
    pretty(&Value::Object(derive_config(tensors, &options.facts)?))
}

/// A config of another model is found out by the two numbers that every config has.
fn check_vocabulary(spec: &TargetSpec, config: &Map<String, Value>) -> Result<()> {
    let embedding = spec.tensors.iter().find(|tensor| super::audit::is_embedding(tensor.entry.fqn.as_str()));
    let Some([rows, columns]) = embedding.map(|tensor| &*tensor.entry.shape) else { return Ok(()) };
    for (key, have) in [("vocab_size", rows), ("hidden_size", columns)] {
        if let Some(want) = config.get(key).and_then(Value::as_u64).filter(|want| want != have) {
            return Err(Error::incompatible(format!(
                "{key} is {want}, but the embedding has {have}: the config of another model"
            )));
        }
    }
    Ok(())
}

/// A cast on the way changes the dtype that the config states: that of most bytes.
fn with_dtype(config: &Map<String, Value>, spec: &TargetSpec) -> Map<String, Value> {
    let mut config = config.clone();
    let mut bytes: BTreeMap<fqn::Dtype, u64> = BTreeMap::new();
    for tensor in &spec.tensors {
        let sum = bytes.entry(tensor.entry.dtype).or_default();
        *sum = sum.saturating_add(tensor.entry.bytes().unwrap_or(0));
    }
    let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
    let dtype = most.and_then(|(dtype, _)| dtype.torch_name());
    for key in ["torch_dtype", "dtype"] {
        if let (Some(value), Some(dtype)) = (config.get_mut(key), dtype) {
            *value = dtype.into();
        }
    }
    config
}

/// Files to pass through, by name: those beside the config that was given, else those of the source.
fn passed(spec: &TargetSpec, options: &HfOptions) -> Result<Vec<(String, Bytes)>> {
    let (folder, names) = match &options.config_folder {
        Some(folder) => (folder.clone(), Folder::list(folder)?.passed),
        None => {
            let folder = spec.extra.get(EXTRA_FOLDER).and_then(Value::as_str).map(PathBuf::from);
            let names =
                spec.extra.get(EXTRA_FILES).and_then(|names| serde_json::from_value(names.clone()).ok());
            // A source that has gone since takes its tokenizer with it; its config is in the catalog.
            match (folder.filter(|folder| folder.is_dir()), names) {
                (Some(folder), Some(names)) => (folder, names),
                _ => return Ok(Vec::new()),
            }
        }
    };
    let mut files = Vec::new();
    for name in names.into_iter().filter(|name| name != CONFIG) {
        let file = folder.join(path::check_file_name(&name)?);
        if file.is_file() {
            files.push((name.clone(), Bytes::from(read_small(&file, &name, MOST_PASSED)?)));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_named_as_transformers_names_them() {
        assert_eq!(shard_name(0, 1), "model.safetensors");
        assert_eq!(shard_name(1, 12), "model-00002-of-00012.safetensors");
    }
}
