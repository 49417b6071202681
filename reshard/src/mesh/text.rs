//! Spellings of a mesh: `4x2x8`, `dp=4,pp=2,tp=8`, `dp2,tp2`, `dp2xtp2`, and what `Display` prints.
//!
//! Bare numbers stand for dp; dp and tp; dp, pp and tp. A text names only axes that are known, since a mistyped
//! axis would silently replicate; a mesh read from a manifest may have others.

use std::str::FromStr;

use fqn::AxisName;

use super::{Mesh, MeshError};

impl FromStr for Mesh {
    type Err = MeshError;
    fn from_str(text: &str) -> Result<Self, MeshError> {
        let parts: Vec<&str> = separated(text.trim()).collect();
        let bad = |why: String| MeshError::Text { text: text.escape_default().to_string(), why };
        let bare = parts.iter().filter(|part| part.bytes().all(|b| b.is_ascii_digit())).count();
        let axes: &[&str] = match (bare, parts.len()) {
            (0, _) => return named(&parts, bad),
            (1, 1) => &["dp"],
            (2, 2) => &["dp", "tp"],
            (3, 3) => &["dp", "pp", "tp"],
            (bare, all) if bare == all => {
                return Err(bad("more than three numbers need axis names".to_owned()));
            }
            _ => return Err(bad("some axes are named and some aren't".to_owned())),
        };
        let pairs = axes.iter().zip(&parts).map(|(axis, number)| pair(axis, number, bad));
        Self::new(pairs.collect::<Result<_, _>>()?)
    }
}

/// Parts between commas, blanks, or an `x` that follows a digit (no axis name has a digit).
fn separated(text: &str) -> impl Iterator<Item = &str> {
    let mut after_digit = false;
    let parts = text.split(move |c: char| {
        let ends = matches!(c, ',' | ' ') || (after_digit && c == 'x');
        after_digit = c.is_ascii_digit();
        ends
    });
    parts.filter(|part| !part.is_empty())
}

fn named(parts: &[&str], bad: impl Fn(String) -> MeshError + Copy) -> Result<Mesh, MeshError> {
    let pairs = parts.iter().map(|part| {
        let digits = part.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = part.get(digits.len()..).unwrap_or_default();
        pair(digits.strip_suffix('=').unwrap_or(digits), number, bad)
    });
    let axes = pairs.collect::<Result<Vec<_>, _>>()?;
    if axes.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    Mesh::new(axes)
}

fn pair(axis: &str, number: &str, bad: impl Fn(String) -> MeshError) -> Result<(AxisName, u64), MeshError> {
    let known = AxisName::KNOWN.contains(&axis).then(|| AxisName::new(axis).ok()).flatten();
    let shown = axis.escape_default().to_string();
    let name = known.ok_or_else(|| bad(format!("{shown:?} is no axis ({})", AxisName::KNOWN.join(", "))))?;
    if number.is_empty() {
        return Err(bad(format!("axis {name} has no number")));
    }
    let extent = number.parse().map_err(|_| bad(format!("{number} exceeds 64 bits")))?;
    Ok((name, extent))
}
