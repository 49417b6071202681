//! The variables that say where a bucket is and who asks. They come in as a value, so that a test can give its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Variables: those of this process, unless others were given.
#[derive(Clone, Default)]
pub(in super::super) struct Environment(Option<Arc<BTreeMap<String, String>>>);

impl Environment {
    pub(in super::super) fn of<K: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self(Some(Arc::new(variables.into_iter().map(|(key, value)| (key.into(), value.into())).collect())))
    }

    /// A variable, unless it is empty.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let value = match &self.0 {
            Some(given) => given.get(key).cloned(),
            None => std::env::var(key).ok(),
        };
        value.filter(|value| !value.is_empty())
    }

    /// Whether a variable says yes.
    pub(super) fn says_yes(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| {
            ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
        })
    }

    /// All variables that begin so, with names in lower case, as `object_store` calls its settings.
    pub(super) fn settings(&self, prefix: &str) -> Vec<(String, String)> {
        let all: Vec<(String, String)> = match &self.0 {
            Some(given) => given.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            None => std::env::vars_os()
                .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
        };
        let wanted = all.into_iter().filter(|(key, value)| key.starts_with(prefix) && !value.is_empty());
        wanted.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are secrets.
        f.debug_list().entries(self.0.iter().flat_map(|given| given.keys())).finish()
    }
}
