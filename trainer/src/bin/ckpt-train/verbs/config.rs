//! `ckpt-train config`: the resolved configuration, and all keys.

use trainer::{
    Error, Result,
    config::{Config as Values, KEYS},
};

use crate::cli::{Config, ConfigVerb};

pub(super) fn run(options: &Config) -> Result<u8> {
    if let Some(ConfigVerb::Keys) = options.verb {
        return super::print(&keys()?);
    }
    let resolved = options.source.resolve()?;
    if !options.json {
        return super::print(&resolved.to_toml()?);
    }
    let failed = |error: serde_json::Error| Error::internal(error.to_string()).caused_by(error);
    let text = serde_json::to_string_pretty(&resolved.config.to_json()?).map_err(failed)?;
    super::print(&(text + "\n"))
}

fn keys() -> Result<String> {
    let defaults = Values::default().values()?;
    let text = KEYS.iter().map(|key| {
        let default = defaults.iter().find(|(name, _)| name == key.path).map(|(_, value)| value.as_str());
        // 0 and empty stand for "left out" where the key does not take them.
        let default = default
            .filter(|value| *value != "\"\"" && (*value != "0" || key.kind.to_string() == "a whole number"));
        let default = default.map_or_else(String::new, |value| format!("; default {value}"));
        format!("{}\n    {}\n    takes {}{default}\n", key.path, key.meaning, key.kind)
    });
    Ok(text.collect())
}
