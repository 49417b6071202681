//! A resolved configuration as text: TOML with the origin of each value and the digest, JSON for checkpoints, and the
//! differences between two.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{Config, KEYS, Resolved, keys};
use crate::{Error, Result};

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// In the first, as TOML.
    pub before: Option<String>,
    /// In the second.
    pub after: Option<String>,
}

impl Config {
    /// All keys with their values as TOML, in the order of [`KEYS`].
    ///
    /// # Errors
    /// `Internal` where values can't be written as TOML.
    pub fn values(&self) -> Result<Vec<(String, String)>> {
        let failed =
            |error: toml::ser::Error| Error::internal(format!("configuration: {error}")).caused_by(error);
        let mut table = toml::Table::try_from(self).map_err(failed)?;
        let mut values = Vec::new();
        for key in KEYS {
            let Some((section, name)) = key.path.split_once('.') else { continue };
            let Some(toml::Value::Table(inner)) = table.get_mut(section) else { continue };
            if let Some(value) = inner.remove(name) {
                values.push((key.path.to_owned(), value.to_string()));
            }
        }
        if let Some(toml::Value::Table(others)) = table.remove("model") {
            values
                .extend(others.into_iter().map(|(name, value)| (format!("model.{name}"), value.to_string())));
        }
        Ok(values)
    }

    /// SHA-256 over the values, in hexadecimal.
    ///
    /// # Errors
    /// As [`Config::values`].
    pub fn sha256(&self) -> Result<String> {
        let mut digest = Sha256::new();
        for (key, value) in self.values()? {
            digest.update(format!("{key} = {value}\n"));
        }
        Ok(digest.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// What a checkpoint stores.
    ///
    /// # Errors
    /// `Internal` where values can't be written as JSON.
    pub fn to_json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::internal(format!("configuration: {error}")).caused_by(error))
    }

    /// What a checkpoint stored. Keys that it lacks have their defaults.
    ///
    /// # Errors
    /// `Incompatible` for what is no configuration of ours.
    pub fn from_json(json: &serde_json::Value) -> Result<Self> {
        serde_json::from_value(json.clone()).map_err(|error| {
            let said = format!("the configuration stored in the checkpoint cannot be read: {error}");
            Error::new(crate::ErrorKind::Incompatible, said).caused_by(error)
        })
    }
}

/// Keys whose values differ between two configurations.
///
/// # Errors
/// As [`Config::values`].
pub fn differences(before: &Config, after: &Config) -> Result<Vec<Difference>> {
    let (old, new) = (before.values()?, after.values()?);
    let find = |values: &[(String, String)], key: &str| {
        values.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    };
    let mut names: Vec<&String> = old.iter().map(|(key, _)| key).collect();
    names.extend(new.iter().map(|(key, _)| key).filter(|key| old.iter().all(|(name, _)| name != *key)));
    let difference = |key: &String| {
        let (before, after) = (find(&old, key), find(&new, key));
        (before != after).then(|| Difference { key: key.clone(), before, after })
    };
    Ok(names.into_iter().filter_map(difference).collect())
}

impl Resolved {
    /// TOML that resolves to the same values, each with its origin.
    ///
    /// # Errors
    /// As [`Config::values`].
    pub fn to_toml(&self) -> Result<String> {
        let values = self.config.values()?;
        let mut text = format!("# sha256 {}\n", self.config.sha256()?);
        let line = |name: &str, value: &str| format!("{name} = {value}");
        for section in keys::sections() {
            let own: Vec<_> = values
                .iter()
                .filter_map(|(key, value)| Some((key, key.strip_prefix(section)?.strip_prefix('.')?, value)))
                .collect();
            let width =
                own.iter().map(|(_, name, value)| line(name, value).chars().count()).max().unwrap_or(0);
            let _ = writeln!(text, "\n[{section}]");
            for (key, name, value) in own {
                let written =
                    self.written(key).map_or_else(String::new, |written| format!(", written {written}"));
                let _ = writeln!(text, "{:width$}  # {}{written}", line(name, value), self.origin(key));
            }
        }
        Ok(text)
    }
}
