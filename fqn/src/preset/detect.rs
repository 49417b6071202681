//! The presets that come with the crate, and which of them fits a registry.

use std::{fmt, sync::LazyLock};

use serde::Serialize;

use super::Rules;
use crate::Registry;

const EMBEDDED: [&str; 7] = [
    include_str!("../../data/preset-llama-hf.toml"),
    include_str!("../../data/preset-llama-torchtitan.toml"),
    include_str!("../../data/preset-gpt2.toml"),
    include_str!("../../data/preset-gpt-neox-hf.toml"),
    include_str!("../../data/preset-mixtral-hf.toml"),
    include_str!("../../data/preset-deepseek-hf.toml"),
    include_str!("../../data/preset-deepseek-torchtitan.toml"),
];

/// How well a preset fits a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// Short name of the preset.
    pub preset: String,
    /// Model tensors that its rules cover.
    pub matched: usize,
    /// Model tensors there are.
    pub total: usize,
    /// Patterns that it needs and that occur nowhere.
    pub lacks: Vec<String>,
}

/// All presets.
#[must_use]
pub fn presets() -> &'static [Rules] {
    static PRESETS: LazyLock<Vec<Rules>> = LazyLock::new(|| {
        let read = |text: &&str| {
            #[expect(clippy::expect_used, reason = "the data is part of this crate; a test reads it")]
            Rules::from_toml(text).expect("embedded presets are valid")
        };
        EMBEDDED.iter().map(read).collect()
    });
    &PRESETS
}

/// The preset called `name`.
#[must_use]
pub fn named(name: &str) -> Option<&'static Rules> {
    presets().iter().find(|rules| rules.preset.as_ref().is_some_and(|p| p.name == name))
}

/// The preset that has what it needs and covers most model names, with the score of every preset. A preset that
/// leaves names uncovered is still chosen: applying it names them.
#[must_use]
pub fn detect(registry: &Registry) -> (Option<&'static Rules>, Vec<Fit>) {
    let fits: Vec<Fit> = presets().iter().map(|rules| rules.fit(registry)).collect();
    let best = presets().iter().zip(&fits).filter(|(_, fit)| fit.fits()).max_by_key(|(_, fit)| fit.matched);
    (best.map(|(rules, _)| rules), fits)
}

impl Rules {
    fn fit(&self, registry: &Registry) -> Fit {
        let names: Vec<&str> =
            registry.entries().iter().filter(|e| e.role.is_model()).map(|e| e.fqn.as_str()).collect();
        let needs = self.preset.iter().flat_map(|p| &p.needs);
        let lacks = needs.filter(|need| !names.iter().any(|name| need.matches(name)));
        Fit {
            preset: self.preset.as_ref().map(|p| p.name.clone()).unwrap_or_default(),
            matched: names.iter().filter(|name| self.rule_for(name).is_some()).count(),
            total: names.len(),
            lacks: lacks.map(ToString::to_string).collect(),
        }
    }
}

impl Fit {
    /// Whether the preset has all it needs.
    #[must_use]
    pub const fn fits(&self) -> bool {
        self.lacks.is_empty() && self.matched > 0
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: its rules cover {} of {} names", self.preset, self.matched, self.total)?;
        match self.lacks.first() {
            Some(first) => write!(f, "; no name matches {first}"),
            None => Ok(()),
        }
    }
}
