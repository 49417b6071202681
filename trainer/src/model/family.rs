//! [`Family`]: the models there are, by the name that configurations use.

use std::{fmt, str::FromStr, sync::Arc};

use super::{Gpt2, Llama, Model};
use crate::{Error, Result};

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// [`Llama`].
    Llama,
    /// [`Gpt2`].
    Gpt2,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Gpt2];

    /// Its name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Gpt2 => "gpt2",
        }
    }

    /// The model of these sizes.
    ///
    /// # Errors
    /// `Config` for unknown or missing sizes, or such that do not go together.
    pub fn build(self, sizes: toml::Table) -> Result<Arc<dyn Model>> {
        let sizes = toml::Value::Table(sizes);
        Ok(match self {
            Self::Llama => Arc::new(Llama::new(sizes.try_into().map_err(|error| self.refused(&error))?)?),
            Self::Gpt2 => Arc::new(Gpt2::new(sizes.try_into().map_err(|error| self.refused(&error))?)?),
        })
    }

    fn refused(self, error: &toml::de::Error) -> Error {
        Error::config(format!("sizes of model {self}: {}", error.message()))
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| family.name() == text);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| Error::config(format!("model.kind is {text:?}; models are {}", known())))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
