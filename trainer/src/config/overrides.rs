//! Values on the command line: `--training.steps=100`, `--training.steps 100`, `--set training.steps=100`.

use std::{ffi::OsString, str::FromStr};

use super::{ConfigError, alias, keys};

/// One value from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    pub(super) key: String,
    pub(super) value: String,
}

impl Override {
    /// Whether the key takes text as it stands, without quotes.
    pub(super) fn is_text(&self) -> bool {
        keys::key(alias::canonical(&self.key)).is_some_and(|key| key.kind.is_text())
    }
}

impl FromStr for Override {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refused = || ConfigError::Override(text.to_owned());
        let (key, value) = text.split_once('=').ok_or_else(refused)?;
        let key = key.trim();
        if !key.contains('.') || key.split('.').any(str::is_empty) {
            return Err(refused());
        }
        Ok(Self { key: key.to_owned(), value: value.trim().to_owned() })
    }
}

/// Rewrites `--section.key=value` and `--section.key value` into `--set=section.key=value`, which a parser of options
/// can be told of. What follows `--` is left alone. A dotted option without a value is left as it is, to be refused.
pub fn dotted(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut given = arguments.into_iter().peekable();
    let mut rewritten = Vec::new();
    while let Some(argument) = given.next() {
        if argument == "--" {
            rewritten.push(argument);
            rewritten.extend(given);
            break;
        }
        let Some(option) = argument.to_str().and_then(dotted_option) else {
            rewritten.push(argument);
            continue;
        };
        let next = given.peek().and_then(|next| next.to_str()).filter(|next| !next.starts_with("--"));
        match (option.contains('='), next.map(str::to_owned)) {
            (true, _) => rewritten.push(format!("--set={option}").into()),
            (false, Some(value)) => {
                rewritten.push(format!("--set={option}={value}").into());
                given.next();
            }
            (false, None) => rewritten.push(argument),
        }
    }
    rewritten
}

/// `section.key` or `section.key=value` of an argument that is a dotted option.
fn dotted_option(argument: &str) -> Option<&str> {
    let option = argument.strip_prefix("--")?;
    let key = option.split('=').next()?;
    let named = key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    (named && key.contains('.') && key.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(arguments: &[&str]) -> Vec<String> {
        let given = arguments.iter().map(OsString::from);
        dotted(given).into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn dotted_options_become_set_with_or_without_an_equals_sign() {
        assert_eq!(
            rewritten(&["train", "--training.steps=5", "--data.folder", "a b", "--config", "x.toml"]),
            ["train", "--set=training.steps=5", "--set=data.folder=a b", "--config", "x.toml"]
        );
    }

    #[test]
    fn what_is_no_dotted_option_or_stands_behind_a_double_dash_is_left_alone() {
        let same = ["--max-restarts", "3", "--training.steps", "--grace=1.5s", "--", "--training.steps=5"];
        assert_eq!(rewritten(&same), same);
        assert!("training=5".parse::<Override>().is_err());
        assert!("training.steps".parse::<Override>().is_err());
        assert!("training..steps=5".parse::<Override>().is_err());
    }
}
