//! From layers to a resolved configuration: names made canonical, keys and types checked, missing values derived.

use std::{collections::BTreeMap, path::Path};

use super::{
    Batches, Config, ConfigError, Kind, ModelSizes, Origin, Override, Sharding, alias, check, keys,
    layer::{self, Layer, Leaf},
};
use crate::{
    Result,
    mesh::{Axis, DataSplit, MeshShape},
};

/// A configuration in which everything is decided, checked, and known by its origin.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// What follows from them: how a step's batch is shared out.
    pub batches: Batches,
    /// What follows from them: how the weights are.
    pub sharding: Sharding,
    origins: BTreeMap<String, Origin>,
    written: BTreeMap<String, String>,
}

/// Reads `file`, if any, and what it includes; puts `overrides` over it; checks everything.
///
/// # Errors
/// `Config`, with the key, where it stands and what would do.
pub fn resolve(file: Option<&Path>, overrides: &[Override]) -> Result<Resolved> {
    let mut layers = file.map(layer::read).transpose()?.unwrap_or_default();
    layers.push(layer::overridden(overrides));
    let mut merged = Merged::default();
    for layer in layers {
        merged.put(layer)?;
    }
    merged.finish()
}

/// Values so far, by canonical key.
#[derive(Default)]
struct Merged {
    values: BTreeMap<String, (toml::Value, Origin)>,
    /// By canonical key: names and words from elsewhere, as they stand where the value comes from.
    written: BTreeMap<String, String>,
    /// Whether anything said how many data-parallel ranks there are.
    has_dp: bool,
}

const MESH: &str = "parallelism.mesh";
/// The sizes whose product is dp, and the strategy that they ask for.
const REPLICATE: &str = "parallelism.dp_replicate";
const SHARD: &str = "parallelism.dp_shard";
const STRATEGY: &str = "fsdp.strategy";

impl Merged {
    /// Puts a layer over what is there. Degrees of single axes change the mesh of lower layers; beside a mesh of the
    /// same layer they must say the same.
    fn put(&mut self, layer: Layer) -> Result<(), ConfigError> {
        let mut degrees = Vec::new();
        let mut own_mesh = false;
        for leaf in layer {
            let written = (leaf.key.clone(), leaf.value.clone());
            let leaf = alias::renamed(leaf);
            self.remember(&leaf, &written);
            match alias::degree(&leaf) {
                Some(found) => degrees.push((found?, leaf)),
                None => {
                    own_mesh |= leaf.key == MESH;
                    let (key, value) = checked(&leaf)?;
                    self.values.insert(key, (value, leaf.origin));
                }
            }
        }
        self.has_dp |= own_mesh || degrees.iter().any(|((axis, _), _)| *axis == Axis::Dp);
        degrees.into_iter().try_for_each(|((axis, size), leaf)| self.set_degree(axis, size, &leaf, own_mesh))
    }

    /// How a value was written, where that is not the canonical form.
    fn remember(&mut self, leaf: &Leaf, (key, value): &(String, toml::Value)) {
        let degree = alias::degree(leaf).is_some();
        let canonical = if degree { MESH } else { &leaf.key };
        if !degree {
            self.written.remove(canonical);
        }
        if key != canonical || *value != leaf.value {
            let text = self.written.entry(canonical.to_owned()).or_default();
            text.push_str(if text.is_empty() { "" } else { ", " });
            text.push_str(&format!("{key} = {value}"));
        }
    }

    fn set_degree(
        &mut self,
        axis: Axis,
        size: usize,
        leaf: &Leaf,
        own_mesh: bool,
    ) -> Result<(), ConfigError> {
        let now = self.values.get(MESH).and_then(|(value, _)| value.as_str()?.parse().ok());
        let mesh: MeshShape = now.unwrap_or(MeshShape { dp: 1, pp: 1, tp: 1 });
        if own_mesh && mesh.size(axis) != size {
            let said = format!("{}: `{}` is {size}, but `{MESH}` beside it is {mesh}", leaf.origin, leaf.key);
            return Err(ConfigError::Contradiction(said, "give the mesh or the degrees, not both"));
        }
        let mesh = alias::with(mesh, axis, size).to_string();
        self.values.insert(MESH.to_owned(), (mesh.into(), leaf.origin.clone()));
        Ok(())
    }

    fn finish(self) -> Result<Resolved> {
        let mut table = toml::Table::new();
        let mut origins = BTreeMap::new();
        for (path, (value, origin)) in self.values {
            let (section, name) = path.split_once('.').unwrap_or((&path, ""));
            let inner = table.entry(section).or_insert_with(|| toml::Table::new().into());
            if let toml::Value::Table(inner) = inner {
                inner.insert(name.to_owned(), value);
            }
            origins.insert(path, origin);
        }
        let mut config: Config = table.try_into().map_err(|error: toml::de::Error| {
            crate::Error::internal(format!("a checked configuration was refused: {}", error.message()))
        })?;
        if !self.has_dp {
            let sizes = [config.parallelism.dp_replicate, config.parallelism.dp_shard];
            let dp = sizes.into_iter().fold(1_u64, |dp, size| dp.saturating_mul(size.max(1)));
            if dp > 1 {
                config.parallelism.mesh.dp = usize::try_from(dp).unwrap_or(usize::MAX);
                origins.insert(MESH.to_owned(), Origin::Derived("parallelism.dp_replicate and dp_shard"));
            }
        }
        derived(config, origins, self.written)
    }
}

/// The canonical key and value of a leaf, if the key is known and takes the value.
fn checked(leaf: &Leaf) -> Result<(String, toml::Value), ConfigError> {
    let key = keys::key(&leaf.key).ok_or_else(|| unknown(leaf))?;
    let value = key.kind.take(&leaf.value).ok_or_else(|| wrong(leaf, key.kind))?;
    Ok((leaf.key.clone(), value))
}

fn unknown(leaf: &Leaf) -> ConfigError {
    if let Some(section) = keys::sections().find(|section| *section == leaf.key) {
        let expected = format!("a table: [{section}]");
        let found = leaf.value.to_string();
        return ConfigError::WrongValue { at: leaf.origin.clone(), key: leaf.key.clone(), found, expected };
    }
    let known = keys::KEYS.iter().map(|key| key.path).chain(alias::names());
    let nearest = keys::nearest(&leaf.key, known).map(|name| alias::canonical(name).to_owned());
    ConfigError::UnknownKey { at: leaf.origin.clone(), key: leaf.key.clone(), nearest }
}

fn wrong(leaf: &Leaf, kind: Kind) -> ConfigError {
    let mut expected = kind.to_string();
    if let (Kind::Choice(words), Some(text)) = (kind, leaf.value.as_str())
        && let Some(word) = keys::nearest(text, words.iter().copied())
    {
        expected = format!("{expected}; did you mean {word:?}?");
    }
    if let (Kind::Mesh, Some(text)) = (kind, leaf.value.as_str())
        && let Err(why) = text.parse::<MeshShape>()
    {
        expected = format!("{expected} ({why})");
    }
    ConfigError::WrongValue {
        at: leaf.origin.clone(),
        key: leaf.key.clone(),
        found: leaf.value.to_string(),
        expected,
    }
}

/// Fills in what follows from other values, and checks that all fit together.
fn derived(
    mut config: Config,
    mut origins: BTreeMap<String, Origin>,
    written: BTreeMap<String, String>,
) -> Result<Resolved> {
    check::required(&config)?;
    let strategy = origins.contains_key(STRATEGY).then_some(config.fsdp.strategy);
    let mut fill = |value: &mut u64, key: &str, found: u64, from: &'static str| {
        if *value == 0 {
            *value = found;
            origins.insert(key.to_owned(), Origin::Derived(from));
        }
    };
    let (mesh, steps) = (config.parallelism.mesh, config.training.steps);
    fill(&mut config.lr_scheduler.decay_steps, "lr_scheduler.decay_steps", steps, "training.steps");
    fill(&mut config.exact.virtual_tp, "exact.virtual_tp", mesh.tp as u64, "parallelism.mesh");
    let stages = check::own_stages(&config.parallelism);
    fill(
        &mut config.parallelism.stages_per_rank,
        "parallelism.stages_per_rank",
        stages,
        "parallelism.schedule",
    );
    let sharding = Sharding::of(&config.parallelism, &config.fsdp, strategy, config.training.mode)?;
    let DataSplit { replicate, shard } = sharding.data;
    let batches = Batches::of(&config.training, mesh)?;
    let count = batches.microbatches;
    fill(
        &mut config.training.microbatches,
        "training.microbatches",
        count,
        "global_batch, micro_batch and dp",
    );
    fill(
        &mut config.parallelism.dp_replicate,
        REPLICATE,
        replicate as u64,
        "parallelism.mesh and fsdp.strategy",
    );
    fill(&mut config.parallelism.dp_shard, SHARD, shard as u64, "parallelism.mesh and fsdp.strategy");
    if strategy.is_none() {
        config.fsdp.strategy = sharding.strategy;
        origins.insert(STRATEGY.to_owned(), Origin::Derived("parallelism.dp_replicate and dp_shard"));
    }
    for (name, from) in config.model.fill(config.training.seq_len) {
        origins.insert(format!("model.{name}"), Origin::Derived(from));
    }
    check::together(&config)?;
    check::check_model(&config, &ModelSizes::of(&config.model, config.training.seq_len)?)?;
    Ok(Resolved { config, batches, sharding, origins, written })
}

impl Resolved {
    /// How a value was written there, if under a name or with a word from elsewhere.
    #[must_use]
    pub fn written(&self, key: &str) -> Option<&str> {
        self.written.get(key).map(String::as_str)
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }
}
