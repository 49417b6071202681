//! Reading files into layers: flat lists of dotted keys, each with its value and the line where it stands.
//!
//! `include = ["base.toml"]` at the top of a file puts other files, relative to it, under it: what the file itself says
//! wins over what it includes, and what is included later wins over what is included earlier.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use super::{ConfigError, Override};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// Computed from other values, which it names.
    Derived(&'static str),
    /// A line of a file.
    File {
        /// Path as given.
        path: String,
        /// From 1.
        line: usize,
    },
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived(from) => write!(f, "from {from}"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A key as it was written, with its value.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) key: String,
    pub(super) value: toml::Value,
    pub(super) origin: Origin,
}

/// One source of values: a file, or the command line.
pub(super) type Layer = Vec<Leaf>;

/// Deepest chain of includes.
const DEPTH: usize = 8;

/// The layers of `path`, what it includes first.
pub(super) fn read(path: &Path) -> Result<Vec<Layer>, ConfigError> {
    let mut layers = Vec::new();
    read_into(path, &mut Vec::new(), &mut layers)?;
    Ok(layers)
}

fn read_into(path: &Path, chain: &mut Vec<PathBuf>, layers: &mut Vec<Layer>) -> Result<(), ConfigError> {
    let shown = path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: shown.clone(), source })?;
    let mut layer = parse(&shown, &text)?;
    chain.push(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    for leaf in layer.extract_if(.., |leaf| leaf.key == "include") {
        for name in included(&leaf)? {
            let other = path.parent().unwrap_or(Path::new("")).join(&name);
            let same = fs::canonicalize(&other).unwrap_or_else(|_| other.clone());
            if chain.len() >= DEPTH || chain.contains(&same) {
                return Err(ConfigError::Circle { at: leaf.origin, path: name, depth: DEPTH });
            }
            read_into(&other, chain, layers)?;
        }
    }
    chain.pop();
    layers.push(layer);
    Ok(())
}

fn included(leaf: &Leaf) -> Result<Vec<String>, ConfigError> {
    let names = leaf
        .value
        .as_array()
        .map(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
    names.flatten().ok_or_else(|| ConfigError::WrongValue {
        at: leaf.origin.clone(),
        key: leaf.key.clone(),
        found: leaf.value.to_string(),
        expected: "a list of paths, such as [\"base.toml\"]".to_owned(),
    })
}

/// The leaves of one file.
pub(super) fn parse(path: &str, text: &str) -> Result<Layer, ConfigError> {
    let syntax = |error: &toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        line: line(text, error.span().map_or(0, |span| span.start)),
        message: error.message().lines().collect::<Vec<_>>().join(" "),
    };
    // The parser gives values or places; both are wanted, and a configuration is short enough to be read twice.
    let values: toml::Table = text.parse().map_err(|error| syntax(&error))?;
    let places = DeTable::parse(text).map_err(|error| syntax(&error))?;
    let mut layer = Layer::new();
    flatten("", &values, places.get_ref(), &mut |key, value, at| {
        let origin = Origin::File { path: path.to_owned(), line: line(text, at) };
        layer.push(Leaf { key, value: value.clone(), origin });
    });
    Ok(layer)
}

fn flatten(
    prefix: &str,
    values: &toml::Table,
    places: &DeTable<'_>,
    visit: &mut dyn FnMut(String, &toml::Value, usize),
) {
    for (name, place) in places {
        let Some(value) = values.get(name.get_ref().as_ref()) else { continue };
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        match (value, place.get_ref()) {
            (toml::Value::Table(inner), DeValue::Table(inside)) => flatten(&key, inner, inside, visit),
            _ => visit(key, value, name.span().start),
        }
    }
}

/// The line, from 1, of a byte of the text.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// The layer of the command line. Text is TOML where it can be read as such, else it is the text itself.
pub(super) fn overridden(overrides: &[Override]) -> Layer {
    let leaf = |given: &Override| {
        let parsed = format!("v = {}", given.value).parse::<toml::Table>().ok();
        let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("v"));
        let value = match (parsed, given.is_text()) {
            (Some(toml::Value::String(text)), _) => toml::Value::String(text),
            (Some(value), false) => value,
            _ => toml::Value::String(given.value.clone()),
        };
        Leaf { key: given.key.clone(), value, origin: Origin::CommandLine }
    };
    overrides.iter().map(leaf).collect()
}
