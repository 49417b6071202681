//! Generators of schedules, by name. Each has a file of its own and a line in [`REGISTRY`]; nothing else names them.

mod gpipe;
mod one_f_one_b;
mod shape;

pub use shape::Shape;

use std::{fmt::Debug, ops::RangeInclusive};

use super::{Action, Placement, ScheduleError, Table, validate};

static REGISTRY: &[&dyn Generator] = &[&gpipe::GPipe, &one_f_one_b::OneFOneB];

/// A kind of schedule.
pub trait Generator: Debug + Sync {
    /// Its name, as it is written; any case is understood.
    fn name(&self) -> &'static str;

    /// How many stages a rank can have.
    fn stages_per_rank(&self) -> RangeInclusive<usize>;

    /// Where stages lie.
    ///
    /// # Errors
    /// Numbers that don't fit.
    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::looped(shape.stages, shape.ranks)
    }

    /// What `rank` does: F, I, W and B.
    fn row(&self, shape: Shape, rank: usize) -> Vec<Action>;
}

/// Names of all.
#[must_use]
pub fn known() -> Vec<&'static str> {
    REGISTRY.iter().map(|it| it.name()).collect()
}

/// The generator called `name`, in any case.
///
/// # Errors
/// None is called so; the nearest is named.
pub fn named(name: &str) -> Result<&'static dyn Generator, ScheduleError> {
    let found = REGISTRY.iter().find(|it| it.name().eq_ignore_ascii_case(name.trim()));
    found.copied().ok_or_else(|| ScheduleError::Unknown {
        name: name.escape_default().to_string(),
        nearest: nearest(name),
        known: known(),
    })
}

/// The table of `generator`, validated.
///
/// # Errors
/// Numbers that don't fit the generator; whatever [`validate()`] refuses.
pub fn generate(generator: &dyn Generator, shape: Shape) -> Result<Table, ScheduleError> {
    shape.check(generator.name(), &generator.stages_per_rank())?;
    let placement = generator.placement(shape)?;
    let ranks = (0..shape.ranks).map(|rank| generator.row(shape, rank)).collect();
    let table = Table { placement, microbatches: shape.microbatches, ranks };
    validate(&table)?;
    Ok(table)
}

fn nearest(name: &str) -> &'static str {
    let wanted = name.trim().to_ascii_lowercase();
    let distance = |known: &&'static str| strsim::damerau_levenshtein(&wanted, &known.to_ascii_lowercase());
    known().into_iter().min_by_key(distance).unwrap_or_default()
}

#[cfg(test)]
mod tests;
