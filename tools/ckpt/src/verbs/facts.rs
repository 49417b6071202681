//! What the user says of names and of the model, and what a configuration says; and what of it a native store keeps, so that
//! it need not be said again.

use std::path::Path;

use dcp::formats::hf::EXTRA_CONFIG;
use dcp::ops::naming::NamingRequest;
use dcp::{Catalog, Error, Place, Result};
use fqn::preset::ModelFacts;
use serde_json::{Map, Value};

use super::open::text_of;
use crate::cli::Naming;

/// Name of a model's configuration in its folder.
const CONFIG: &str = "config.json";
/// Key of a model's numbers in [`Catalog::extra`].
const EXTRA_FACTS: &str = "model.facts";

/// The request that the options come to. Head counts that are given win over a configuration, `--config` over the one that
/// the checkpoint brings along.
///
/// # Errors
/// A file that is not there, or that is no JSON.
pub(super) fn naming(options: &Naming, catalog: &Catalog) -> Result<NamingRequest> {
    let mut facts = match given(options)?.as_ref().or_else(|| catalog.extra.get(EXTRA_CONFIG)) {
        Some(config) => ModelFacts::from_config(config),
        None => recorded(catalog),
    };
    facts.heads = options.heads.or(facts.heads);
    facts.kv_heads = options.kv_heads.or(facts.kv_heads);
    Ok(NamingRequest {
        preset: options.preset.clone(),
        rules: options.rules.as_deref().map(text_of).transpose()?,
        place: options.place.clone(),
        facts,
        base: None,
    })
}

/// What a target keeps of the model's numbers: the configuration that was given, and head counts, which no shape tells.
///
/// # Errors
/// As [`naming`].
pub(super) fn to_keep(options: &Naming, facts: &ModelFacts, catalog: &Catalog) -> Result<Map<String, Value>> {
    let mut kept = Map::new();
    if let Some(config) = given(options)? {
        kept.insert(EXTRA_CONFIG.to_owned(), config);
    } else if !catalog.extra.contains_key(EXTRA_CONFIG) && facts.heads.is_some() {
        let facts = serde_json::to_value(facts).map_err(|e| Error::internal(e.to_string()))?;
        kept.insert(EXTRA_FACTS.to_owned(), facts);
    }
    Ok(kept)
}

/// Head counts that an earlier command kept; a checkpoint that states them otherwise is none of ours.
fn recorded(catalog: &Catalog) -> ModelFacts {
    let facts = catalog.extra.get(EXTRA_FACTS).cloned();
    facts.and_then(|facts| serde_json::from_value(facts).ok()).unwrap_or_default()
}

fn given(options: &Naming) -> Result<Option<Value>> {
    options.config.as_deref().map(config).transpose()
}

fn config(folder: &Path) -> Result<Value> {
    let file = if folder.is_dir() { folder.join(CONFIG) } else { folder.to_owned() };
    let text = text_of(&file)?;
    let parsed = serde_json::from_str(&text).map_err(|e| {
        Error::incompatible(format!("not JSON: {e}"))
            .caused_by(e)
            .hint("--config takes a folder with a config.json")
    });
    parsed.place(file.display())
}
