//! Parsing of patterns: alternatives are expanded first, then each expansion is cut into segments.

use super::{Alternative, Segment, TemplatePart};
use crate::fold::IndexSet;

/// Most expansions that the alternatives of one pattern may have.
pub const MAX_ALTERNATIVES: usize = 256;

/// Why a text is no pattern or template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A brace without its partner, or braces within braces.
    #[error("unbalanced or nested braces in {0:?}")]
    Braces(String),
    /// Nothing between two dots.
    #[error("empty segment in {0:?}: write `*` for any one segment, `**` for any number")]
    EmptySegment(String),
    /// A capture or an index set that does not fill its segment.
    #[error("{part} in {text:?} must fill a whole segment, between dots")]
    Partial {
        /// The brace.
        part: String,
        /// The whole pattern.
        text: String,
    },
    /// A capture's name that is no name.
    #[error("capture {{{name}}} in {text:?} is not lower-case letters, digits and `_`")]
    CaptureName {
        /// The name.
        name: String,
        /// The whole pattern.
        text: String,
    },
    /// One capture used twice.
    #[error("capture {{{name}}} appears twice in {text:?}")]
    Twice {
        /// The name.
        name: String,
        /// The whole pattern.
        text: String,
    },
    /// The alternatives multiply to too many.
    #[error("alternatives of {0:?} multiply to more than {MAX_ALTERNATIVES}: split the rule")]
    TooMany(String),
    /// `**` glued to other text.
    #[error("`**` in {0:?} must fill a whole segment, between dots")]
    PartialMany(String),
}

pub(super) fn pattern(text: &str) -> Result<Vec<Alternative>, PatternError> {
    expand(text)?.iter().map(|one| alternative(one, text)).collect()
}

pub(super) fn template(text: &str) -> Result<Vec<TemplatePart>, PatternError> {
    let parts = pieces(text)?.into_iter().map(|piece| match piece {
        Piece::Text(literal) => Ok(TemplatePart::Literal(literal.into())),
        Piece::Brace(name) => Ok(TemplatePart::Hole(capture_name(name, text)?)),
    });
    parts.collect()
}

enum Piece<'t> {
    Text(&'t str),
    Brace(&'t str),
}

fn pieces(text: &str) -> Result<Vec<Piece<'_>>, PatternError> {
    let unbalanced = || PatternError::Braces(text.to_owned());
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, next) = after.split_once('}').ok_or_else(unbalanced)?;
        if before.contains('}') || inside.contains('{') {
            return Err(unbalanced());
        }
        found.extend([Piece::Text(before), Piece::Brace(inside)]);
        rest = next;
    }
    if rest.contains('}') {
        return Err(unbalanced());
    }
    found.push(Piece::Text(rest));
    Ok(found)
}

/// Every expansion of the alternatives; captures and index sets stay in their braces.
fn expand(text: &str) -> Result<Vec<String>, PatternError> {
    let mut found = vec![String::new()];
    for piece in pieces(text)? {
        match piece {
            Piece::Text(literal) => found.iter_mut().for_each(|one| one.push_str(literal)),
            Piece::Brace(inside) if inside.contains(',') && IndexSet::parse(inside).is_none() => {
                if found.len() * inside.split(',').count() > MAX_ALTERNATIVES {
                    return Err(PatternError::TooMany(text.to_owned()));
                }
                let each = |one: &String| -> Vec<String> {
                    inside.split(',').map(|choice| format!("{one}{}", choice.trim())).collect()
                };
                found = found.iter().flat_map(each).collect();
            }
            Piece::Brace(inside) => found.iter_mut().for_each(|one| *one = format!("{one}{{{inside}}}")),
        }
    }
    Ok(found)
}

fn alternative(expanded: &str, text: &str) -> Result<Alternative, PatternError> {
    let segments = split(expanded).map(|s| segment(s, text)).collect::<Result<Vec<_>, _>>()?;
    let mut suffix = String::new();
    for segment in segments.iter().rev() {
        let Segment::Literal(literal) = segment else { break };
        let dot = if suffix.is_empty() { "" } else { "." };
        suffix = format!("{literal}{dot}{suffix}");
    }
    let made = Alternative { segments, suffix: suffix.into() };
    let names: Vec<_> = made.names().collect();
    if let Some((_, name)) =
        names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|n| n == *name))
    {
        return Err(PatternError::Twice { name: (*name).to_owned(), text: text.to_owned() });
    }
    Ok(made)
}

/// Splits at dots outside braces: `{0..3}` holds dots of its own.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        inside = (inside || c == '{') && c != '}';
        c == '.' && !inside
    })
}

fn segment(part: &str, text: &str) -> Result<Segment, PatternError> {
    if part.is_empty() {
        return Err(PatternError::EmptySegment(text.to_owned()));
    }
    if part == "**" {
        return Ok(Segment::Many(None));
    }
    if let Some(inside) = part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
        return brace(inside, text);
    }
    if part.contains('{') {
        return Err(PatternError::Partial { part: part.to_owned(), text: text.to_owned() });
    }
    if part.contains("**") {
        return Err(PatternError::PartialMany(text.to_owned()));
    }
    if part.contains('*') {
        return Ok(Segment::Glob(part.split('*').map(Into::into).collect()));
    }
    Ok(Segment::Literal(part.into()))
}

fn brace(inside: &str, text: &str) -> Result<Segment, PatternError> {
    if let Some(set) = IndexSet::parse(inside) {
        return Ok(Segment::Indices(set));
    }
    if let Some(name) = inside.strip_prefix("**") {
        return Ok(Segment::Many(Some(capture_name(name, text)?)));
    }
    let digits = matches!(inside, "layer" | "expert");
    Ok(Segment::Capture { name: capture_name(inside, text)?, digits })
}

fn capture_name(name: &str, text: &str) -> Result<Box<str>, PatternError> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || !name.bytes().all(fits) {
        return Err(PatternError::CaptureName { name: name.to_owned(), text: text.to_owned() });
    }
    Ok(name.into())
}
