//! [`Pattern`]: globs over FQNs, and [`Template`]: names made from what a pattern captured.
//!
//! - `*` stands for any run of characters within a segment, `**` for any number of segments, none included;
//! - `{wq,wk}` gives alternatives, which may hold dots; `{0..3,7}` is a set of indices and fills a segment, so that
//!   what [`fold`](crate::fold) prints is itself a pattern;
//! - `{layer}` and `{expert}` capture a segment of digits, any other `{name}` a segment, `{**name}` one or more.
//!
//! Invariants: a pattern is checked when made; matching never allocates except for captures, and takes at most
//! (pattern × name) steps, so that a hostile rule cannot stall.

use std::{fmt, str::FromStr};

use smallvec::SmallVec;

use crate::fold::IndexSet;

mod glob;
mod parse;
mod progress;
#[cfg(test)]
mod tests;

pub use parse::{MAX_ALTERNATIVES, PatternError};
pub(crate) use progress::Progress;

/// A checked glob over names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    alternatives: Vec<Alternative>,
}

/// One expansion of a pattern's alternatives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Alternative {
    segments: Vec<Segment>,
    /// Literal text that every match ends with: rejects most names with one comparison.
    suffix: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    /// Literal pieces with `*` between them.
    Glob(Vec<Box<str>>),
    Indices(IndexSet),
    Capture {
        name: Box<str>,
        digits: bool,
    },
    /// `**`, or `{**name}`, which takes at least one segment.
    Many(Option<Box<str>>),
}

/// What a pattern's captures stood for, in order of appearance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Captures<'n>(SmallVec<[(Box<str>, &'n str); 2]>);

/// Name with holes that captures fill: `layers.{layer}.attention.wq.weight`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Literal(Box<str>),
    Hole(Box<str>),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Unbalanced braces, empty segments, a capture that shares its segment, more than [`MAX_ALTERNATIVES`].
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Ok(Self { text: text.into(), alternatives: parse::pattern(text)? })
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `name` matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.captures(name).is_some()
    }

    /// What the captures stand for in `name`; `None` where it does not match.
    #[must_use]
    pub fn captures<'n>(&self, name: &'n str) -> Option<Captures<'n>> {
        self.alternatives.iter().find_map(|alternative| glob::captures(alternative, name))
    }

    /// Names of the captures that every match fills.
    #[must_use]
    pub fn capture_names(&self) -> Vec<&str> {
        let names = |a: &Alternative| -> Vec<String> { a.names().map(str::to_owned).collect() };
        let Some((first, rest)) = self.alternatives.split_first() else { return Vec::new() };
        let rest: Vec<_> = rest.iter().map(names).collect();
        first.names().filter(|name| rest.iter().all(|other| other.iter().any(|o| o == name))).collect()
    }
}

impl Alternative {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Capture { name, .. } | Segment::Many(Some(name)) => Some(&**name),
            _ => None,
        })
    }
}

impl Captures<'_> {
    /// What the capture `name` stood for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| &**n == name).map(|&(_, value)| value)
    }

    /// The capture `name` as a number.
    #[must_use]
    pub fn index(&self, name: &str) -> Option<u32> {
        self.get(name)?.parse().ok()
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Unbalanced or empty braces.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Ok(Self { text: text.into(), parts: parse::template(text)? })
    }

    /// The template as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Names of its holes.
    pub fn holes(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Hole(name) => Some(&**name),
            TemplatePart::Literal(_) => None,
        })
    }

    /// The name with every hole filled; `None` where `captures` lacks one.
    #[must_use]
    pub fn fill(&self, captures: &Captures<'_>) -> Option<String> {
        self.filled(|hole| captures.get(hole))
    }

    /// The name with every hole filled, one of them by a value of its own.
    pub(crate) fn fill_with(&self, captures: &Captures<'_>, own: &str, value: &str) -> Option<String> {
        self.filled(|hole| if hole == own { Some(value) } else { captures.get(hole) })
    }

    pub(crate) fn filled<'c>(&self, of: impl Fn(&str) -> Option<&'c str>) -> Option<String> {
        self.parts.iter().try_fold(String::new(), |mut name, part| {
            name.push_str(match part {
                TemplatePart::Literal(text) => text,
                TemplatePart::Hole(hole) => of(hole)?,
            });
            Some(name)
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Pattern {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::new(text)
    }
}
