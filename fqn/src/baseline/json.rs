//! Reading and writing `fqn.baseline/1`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Dtype, Entry, Registry, RegistryError, fold};

/// Name of the schema, with its version.
pub const SCHEMA: &str = "fqn.baseline/1";

/// Why a text is no baseline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaselineError {
    /// Not JSON.
    #[error("baseline is not JSON: {0}")]
    Json(String),
    /// Neither a list of tensors nor an object of the schema.
    #[error(
        "baseline is {found}, expected a list of tensors or an object with \"schema\": {SCHEMA:?} and \"tensors\""
    )]
    Form {
        /// What it is instead.
        found: &'static str,
    },
    /// Another schema.
    #[error("baseline has schema {0:?}, this version reads {SCHEMA:?}")]
    Schema(String),
    /// An entry that is none.
    #[error("tensor {at} of the baseline{}: {why}", name.as_ref().map_or_else(String::new, |n| format!(" ({n})")))]
    Entry {
        /// Position in the list.
        at: usize,
        /// Its name, where it has one.
        name: Option<String>,
        /// What is wrong.
        why: String,
    },
    /// One tensor twice.
    #[error("baseline: {0}")]
    Duplicate(#[from] RegistryError),
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    tensors: &'a Registry,
}

/// The registry as a baseline, ending with a line feed.
///
/// # Errors
/// Never for a registry made by this crate; the serialiser's error otherwise.
pub fn write(registry: &Registry) -> Result<String, BaselineError> {
    let document = Document { schema: SCHEMA, tensors: registry };
    let text = serde_json::to_string_pretty(&document).map_err(|e| BaselineError::Json(e.to_string()))?;
    Ok(text + "\n")
}

/// Reads a baseline, whole or minimal. Layer and expert are read from names where an entry doesn't say.
///
/// # Errors
/// Anything that is not exactly a baseline; an entry is named by position and FQN.
pub fn read(text: &str) -> Result<Registry, BaselineError> {
    let value: Value = serde_json::from_str(text).map_err(|e| BaselineError::Json(e.to_string()))?;
    let mut registry = Registry::new();
    for (at, tensor) in tensors(value)?.into_iter().enumerate() {
        let name = tensor.get("fqn").and_then(Value::as_str).map(|n| n.escape_default().to_string());
        registry.push(entry(tensor).map_err(|why| BaselineError::Entry { at, name, why })?)?;
    }
    Ok(registry)
}

fn tensors(value: Value) -> Result<Vec<Value>, BaselineError> {
    let mut document = match value {
        Value::Array(list) => return Ok(list),
        Value::Object(document) => document,
        Value::Null => return Err(BaselineError::Form { found: "null" }),
        _ => return Err(BaselineError::Form { found: "a single value" }),
    };
    match document.get("schema").map(|schema| schema.as_str().unwrap_or_default()) {
        Some(SCHEMA) => {}
        Some(other) => return Err(BaselineError::Schema(other.to_owned())),
        None => return Err(BaselineError::Form { found: "an object without a schema" }),
    }
    if let Some(key) = document.keys().find(|key| !matches!(key.as_str(), "schema" | "tensors")) {
        return Err(BaselineError::Json(format!("unknown key {key:?} beside \"schema\" and \"tensors\"")));
    }
    match document.remove("tensors") {
        Some(Value::Array(list)) => Ok(list),
        _ => Err(BaselineError::Form { found: "an object without a list of tensors" }),
    }
}

fn entry(mut tensor: Value) -> Result<Entry, String> {
    let Some(fields) = tensor.as_object_mut() else { return Err("not an object".to_owned()) };
    if let Some(Value::String(text)) = fields.get("dtype") {
        let dtype = dtype(text).ok_or_else(|| format!("unknown dtype {text:?}"))?;
        fields.insert("dtype".to_owned(), dtype.name().into());
    }
    fields.entry("role").or_insert_with(|| "param".into());
    let mut entry = Entry::deserialize(tensor).map_err(|e| e.to_string())?;
    entry.layer = entry.layer.or_else(|| fold::layer_of(entry.fqn.as_str()));
    entry.expert = entry.expert.or_else(|| fold::expert_of(entry.fqn.as_str()));
    Ok(entry)
}

/// An element type in our spelling, torch's (`torch.float32`, `float32`) or that of safetensors (`F32`).
fn dtype(text: &str) -> Option<Dtype> {
    let torch = text.strip_prefix("torch.").unwrap_or(text);
    text.parse().ok().or_else(|| Dtype::from_torch_name(torch)).or_else(|| Dtype::from_safetensors_name(text))
}
