//! Names in records: checked when they are made, and when they are read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that cannot be such a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be the name of {what}: {rule}")]
pub struct InvalidName {
    name: String,
    what: &'static str,
    rule: &'static str,
}

/// A directory right below the root: the one of an attempt, such as `step-00001000-<nonce>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DirName(String);

/// The name of a run or of a tag.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

const LONGEST: usize = 128;
const DIR_RULE: &str = "up to 128 of `a-z A-Z 0-9 . _ -`, the first a letter or a digit, and not `commits`";
const LABEL_RULE: &str = "up to 128 of `a-z A-Z 0-9 . _ - / + @ : =`, the first a letter or a digit";

fn plain(text: &str, others: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.len() <= LONGEST
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

fn invalid(text: &str, what: &'static str, rule: &'static str) -> InvalidName {
    InvalidName { name: text.chars().take(LONGEST + 1).collect(), what, rule }
}

impl FromStr for DirName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let good = plain(text, "._-") && text != "commits";
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(invalid(text, "a checkpoint's directory", DIR_RULE))
        }
    }
}

impl FromStr for Label {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if plain(text, "._-/+@:=") {
            Ok(Self(text.to_owned()))
        } else {
            Err(invalid(text, "a run or a tag", LABEL_RULE))
        }
    }
}

macro_rules! name {
    ($name:ident) => {
        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name!(DirName);
name!(Label);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        for bad in
            ["", ".", "..", ".hidden", "a/b", "/a", "a\0", "a b", "commits", "-x", "ä", &"x".repeat(129)]
        {
            assert!(bad.parse::<DirName>().is_err(), "{bad:?}");
            assert!(serde_json::from_value::<DirName>(bad.into()).is_err(), "{bad:?}");
        }
        for bad in ["", ".x", "/a", "a\n", "a b", "a\"b", &"x".repeat(129)] {
            assert!(bad.parse::<Label>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn usual_names_are_taken() {
        assert!("step-00001000-0123456789abcdef".parse::<DirName>().is_ok());
        assert!("llama-8b/lr=3e-4@v2".parse::<Label>().is_ok());
    }
}
