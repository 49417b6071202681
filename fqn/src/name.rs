//! [`Fqn`]: a checked name.
//!
//! Names come from files, so they are hostile until read: no control or bidirectional-override character
//! (terminal injection), no empty name, a bounded length. Dots separate segments; a segment is otherwise free.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name accepted, in bytes. Real ones stay under 200.
pub const MAX_NAME_BYTES: usize = 2048;

/// Fully qualified name of a tensor: the state-dict key of the unsplit model. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fqn(Arc<str>);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has no characters.
    #[error("empty name")]
    Empty,
    /// The text is longer than [`MAX_NAME_BYTES`].
    #[error("name of {0} bytes is longer than {MAX_NAME_BYTES}: {1}…")]
    TooLong(usize, String),
    /// A character that could steer a terminal or hide text.
    #[error("name holds the control character U+{code:04X} at byte {at}: {escaped}")]
    Control {
        /// Code point of the character.
        code: u32,
        /// Byte offset of the character.
        at: usize,
        /// The whole name, escaped.
        escaped: String,
    },
}

impl Fqn {
    /// Checks `text` and makes it a name.
    ///
    /// # Errors
    /// Empty, too long, or holding control or bidirectional-override characters.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        check(text)?;
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Dot-separated segments.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('.')
    }
}

/// Checks a text by the rules of names without making one: keys of non-tensor state obey them too.
///
/// # Errors
/// As [`Fqn::new`].
pub fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| is_steering(*c)) {
        let escaped = text.chars().take(200).flat_map(char::escape_default).collect();
        return Err(NameError::Control { code: u32::from(c), at, escaped });
    }
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(text.len(), text.chars().take(60).collect()));
    }
    Ok(())
}

/// Control characters, and the bidirectional overrides that let a name look like another.
fn is_steering(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for Fqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Fqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fqn({})", self.0)
    }
}

impl FromStr for Fqn {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        Self::new(s)
    }
}

impl AsRef<str> for Fqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Fqn {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for Fqn {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Fqn {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_steer_a_terminal_is_refused_and_shown_escaped() {
        let refused = Fqn::new("layers.\u{1b}[31m0").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "name holds the control character U+001B at byte 7: layers.\\u{1b}[31m0"
        );
        assert!(matches!(Fqn::new("a\u{202e}b"), Err(NameError::Control { code: 0x202e, .. })));
    }

    #[test]
    fn a_name_keeps_its_text_and_yields_its_segments() {
        let name = Fqn::new("layers.0.attention.wq.weight").unwrap();
        assert_eq!(name.segments().collect::<Vec<_>>(), ["layers", "0", "attention", "wq", "weight"]);
        assert_eq!(name.as_str(), "layers.0.attention.wq.weight");
    }

    #[test]
    fn empty_and_endless_names_are_refused() {
        assert_eq!(Fqn::new(""), Err(NameError::Empty));
        assert!(matches!(Fqn::new("x".repeat(MAX_NAME_BYTES + 1)), Err(NameError::TooLong(..))));
    }
}
