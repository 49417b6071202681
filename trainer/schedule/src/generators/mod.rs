//! Generators of schedules, by name. Each has a file (which those of one kind share) and a line in [`REGISTRY`]; nothing else
//! names them.

mod advice;
mod dualpipe_v;
mod filled;
mod gpipe;
mod interleaved;
mod looped_bfs;
mod one_f_one_b;
mod paired;
mod shape;
mod v_block;
mod v_row;
mod zb_h1;
mod zb_h2;
mod zbv;

pub use advice::{Advice, advice};
pub use shape::Shape;

use std::{fmt::Debug, ops::RangeInclusive};

use super::{Action, Placement, ScheduleError, Table, validate};

static REGISTRY: &[&dyn Generator] = &[
    &gpipe::GPipe,
    &one_f_one_b::OneFOneB,
    &looped_bfs::LoopedBfs { reversed: false },
    &looped_bfs::LoopedBfs { reversed: true },
    &interleaved::Interleaved1F1B,
    &zb_h1::ZbH1,
    &zb_h2::ZbH2,
    &interleaved::InterleavedZeroBubble,
    &zbv::Zbv,
    &v_block::VMin,
    &v_block::VHalf,
    &dualpipe_v::DualPipeV,
];

/// A kind of schedule.
pub trait Generator: Debug + Sync {
    /// Its name, as it is written; any case is understood, with or without hyphens and underscores.
    fn name(&self) -> &'static str;

    /// Other names that are understood.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// How many stages a rank can have.
    fn stages_per_rank(&self) -> RangeInclusive<usize>;

    /// The schedule to take with one stage on each rank, of those that need several.
    fn with_one_stage(&self) -> Option<&'static str> {
        None
    }

    /// Checks numbers of microbatches, once those of stages and ranks are known to fit.
    ///
    /// # Errors
    /// A number that it can't be made for: why, and the nearest that it can.
    fn check(&self, shape: Shape) -> Result<(), ScheduleError> {
        let _ = shape;
        Ok(())
    }

    /// What is wasteful about numbers that work, beyond what is so for every schedule.
    fn advice(&self, shape: Shape) -> Vec<Advice> {
        let _ = shape;
        Vec::new()
    }

    /// Where stages lie.
    ///
    /// # Errors
    /// Numbers that don't fit.
    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::looped(shape.stages, shape.ranks)
    }

    /// What each rank does: F, I, W and B.
    fn rows(&self, shape: Shape) -> Vec<Vec<Action>> {
        (0..shape.ranks).map(|rank| self.row(shape, rank)).collect()
    }

    /// What `rank` does, where that can be told without the other ranks; [`Generator::rows`] asks for nothing else.
    fn row(&self, shape: Shape, rank: usize) -> Vec<Action> {
        let _ = (shape, rank);
        Vec::new()
    }
}

/// Names of all.
#[must_use]
pub fn known() -> Vec<&'static str> {
    REGISTRY.iter().map(|it| it.name()).collect()
}

/// The generator called `name`, or known by it elsewhere: in any case, with or without hyphens and underscores. Its
/// [`Generator::name`] is the canonical form.
///
/// # Errors
/// None is called so; the nearest is named.
pub fn named(name: &str) -> Result<&'static dyn Generator, ScheduleError> {
    let wanted = plain(name);
    let found = REGISTRY.iter().find(|it| names(**it).any(|known| plain(known) == wanted));
    found.copied().ok_or_else(|| ScheduleError::Unknown {
        name: name.escape_default().to_string(),
        nearest: nearest(&wanted),
        known: known(),
    })
}

/// The table of `generator`, validated.
///
/// # Errors
/// Numbers that don't fit the generator; whatever [`validate()`] refuses.
pub fn generate(generator: &dyn Generator, shape: Shape) -> Result<Table, ScheduleError> {
    shape.check(generator)?;
    generator.check(shape)?;
    let placement = generator.placement(shape)?;
    let ranks = generator.rows(shape);
    let table = Table { placement, microbatches: shape.microbatches, ranks };
    validate(&table)?;
    Ok(table)
}

fn names(generator: &dyn Generator) -> impl Iterator<Item = &'static str> {
    [generator.name()].into_iter().chain(generator.aliases().iter().copied())
}

fn plain(name: &str) -> String {
    let kept = |c: &char| !matches!(c, '-' | '_' | ' ');
    name.trim().chars().filter(kept).map(|c| c.to_ascii_lowercase()).collect()
}

fn nearest(wanted: &str) -> &'static str {
    let distance = |it: &&&dyn Generator| {
        names(**it).map(|name| strsim::damerau_levenshtein(wanted, &plain(name))).min().unwrap_or(usize::MAX)
    };
    REGISTRY.iter().min_by_key(distance).map_or("", |it| it.name())
}

#[cfg(test)]
mod tests;
