//! Which dialect a file is in, from what its cells can mean.
//!
//! I is written by the newer dialect only, BW by the older one only. Without both: a W needs the gradient of the inputs
//! that goes before it, which only the older dialect writes without I, as B; and a B without any W is a whole backward,
//! which only the newer dialect writes so. What fits neither is refused, with the cells that speak against each other.

use std::collections::HashMap;

use super::dialect::{Dialect, letters};

/// A cell that is not empty, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    /// From 1.
    pub row: usize,
    /// From 1.
    pub column: usize,
    pub text: &'a str,
}

/// The dialect of `cells`; `Err` is why that is not certain.
pub(super) fn dialect(cells: &[Cell<'_>]) -> Result<Dialect, String> {
    let atoms: Vec<_> = cells.iter().flat_map(atoms).collect();
    let first = |wanted: &str| atoms.iter().find(|it| letters(it.text) == wanted);
    match (first("I"), first("BW")) {
        (Some(one), Some(other)) => Err(contradiction(*one, *other)),
        (Some(_), None) => Ok(Dialect::Newer),
        (None, Some(_)) => Ok(Dialect::Older),
        (None, None) => by_pairs(&atoms),
    }
}

/// Whether every B goes with a W.
fn by_pairs(atoms: &[Cell<'_>]) -> Result<Dialect, String> {
    let of = |wanted: &'static str| {
        let those = atoms.iter().filter(move |it| letters(it.text) == wanted);
        those.filter_map(move |it| Some((it.text.split_once(wanted)?, *it)))
    };
    let (inputs, weights): (HashMap<_, _>, HashMap<_, _>) = (of("B").collect(), of("W").collect());
    if weights.is_empty() {
        return Ok(Dialect::Newer);
    }
    let alone = of("B").find(|(place, _)| !weights.contains_key(place));
    let stray = of("W").find(|(place, _)| !inputs.contains_key(place));
    match (alone, stray) {
        (None, None) => Ok(Dialect::Older),
        (_, Some((_, cell))) => Err(format!(
            "{cell} has no I of its microbatch, as in the newer dialect, and no B, as in the older one"
        )),
        (Some((_, cell)), None) => match of("W").next() {
            Some((_, weight)) => Err(contradiction(cell, weight)),
            None => Ok(Dialect::Newer),
        },
    }
}

fn contradiction(one: Cell<'_>, other: Cell<'_>) -> String {
    format!("{one} is of the newer dialect (I, W, B = both) and {other} of the older one (B, W, BW = both)")
}

/// The parts of a composite, else the cell.
fn atoms<'a>(cell: &Cell<'a>) -> impl Iterator<Item = Cell<'a>> {
    let Cell { row, column, text } = *cell;
    let parts = text.strip_prefix('(').and_then(|text| text.split_once(')')).map_or(text, |(parts, _)| parts);
    parts.split(';').map(move |text| Cell { row, column, text })
}

impl std::fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (row {}, column {})", self.text.escape_default(), self.row, self.column)
    }
}
