//! [`Moves`]: target regions of one tensor as intersections with its source chunks, derived region by region.
//!
//! Invariant: the moves of a region cover it exactly; a region that the source doesn't cover, or covers twice, is an
//! error and never a partial answer.

use crate::{
    Region,
    coverage::{CoverageError, Grid, Index, check},
};

/// Most parts that are compared pair by pair.
const FEW: usize = 12;

/// A box to copy from one source chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Position of the chunk among the sources.
    pub source: usize,
    /// What to copy, in global coordinates.
    pub region: Region,
}

/// Why a region can't be made from the sources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// Elements that no source holds.
    #[error("target region {target} needs {region}, which no source chunk holds")]
    Gap {
        /// The region to make.
        target: Region,
        /// What is missing.
        region: Region,
    },
    /// Elements that two sources hold.
    #[error("target region {target}: source chunks {first} and {second} both hold {region}")]
    Overlap {
        /// The region to make.
        target: Region,
        /// One source.
        first: usize,
        /// The other.
        second: usize,
        /// What both hold of it.
        region: Region,
    },
}

/// Source chunks of one tensor, ready to be asked.
#[derive(Debug, Clone)]
pub struct Moves<'a> {
    sources: &'a [Region],
    arranged: Arranged,
}

/// Straight cuts make a grid, which is searched faster than a tree, and of which it is known that it has no gap.
#[derive(Debug, Clone)]
enum Arranged {
    Grid(Grid),
    Tree(Index),
}

impl<'a> Moves<'a> {
    /// Arranges `sources`.
    #[must_use]
    pub fn new(sources: &'a [Region]) -> Self {
        let grid = Grid::new(&sources.iter()).map(Arranged::Grid);
        Self { sources, arranged: grid.unwrap_or_else(|| Arranged::Tree(Index::new(sources))) }
    }

    /// The moves that make `target`, in order of their sources; none for an empty region.
    ///
    /// # Errors
    /// Elements of it that no source holds, or two do.
    pub fn of(&self, target: &Region) -> Result<Vec<Move>, MoveError> {
        if target.is_empty() {
            return Ok(Vec::new());
        }
        match &self.arranged {
            Arranged::Grid(grid) if grid.spans(target) => {
                let met = grid.meeting(target).into_iter();
                let mut moves: Vec<Move> = met.map(|(source, region)| Move { source, region }).collect();
                if !moves.is_sorted_by_key(|part| part.source) {
                    moves.sort_unstable_by_key(|part| part.source);
                }
                Ok(moves)
            }
            Arranged::Grid(_) => self.checked(target, 0..self.sources.len()),
            Arranged::Tree(index) => self.checked(target, index.meeting(target)),
        }
    }

    /// What `candidates` share with the target, if that is all of it, once.
    fn checked(
        &self,
        target: &Region,
        candidates: impl IntoIterator<Item = usize>,
    ) -> Result<Vec<Move>, MoveError> {
        let met = candidates.into_iter().filter_map(|source| {
            let region = self.sources.get(source)?.intersect(target)?;
            Some(Move { source, region })
        });
        let moves: Vec<Move> = met.collect();
        if !few_that_tile(target, &moves) {
            covers(target, &moves)?;
        }
        Ok(moves)
    }
}

/// Whether a handful of parts, all of them within the target, tile it: as many elements and no two that share one.
fn few_that_tile(target: &Region, moves: &[Move]) -> bool {
    let elements = moves.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.region.elements()));
    let apart = |(at, part): (usize, &Move)| {
        moves.iter().skip(at + 1).all(|other| !meet(&part.region, &other.region))
    };
    moves.len() <= FEW && elements == Some(target.elements()) && moves.iter().enumerate().all(apart)
}

fn meet(a: &Region, b: &Region) -> bool {
    let ends = |region: &Region, dim: usize| {
        let place = region.offsets().get(dim).zip(region.extents().get(dim));
        place.map_or((0, 0), |(offset, extent)| (*offset, offset.saturating_add(*extent)))
    };
    (0..a.rank()).all(|dim| {
        let ((start, end), (other, other_end)) = (ends(a, dim), ends(b, dim));
        start < other_end && other < end
    })
}

fn covers(target: &Region, moves: &[Move]) -> Result<(), MoveError> {
    let shape = target.extents().iter().copied().collect();
    let parts: Vec<Region> = moves.iter().filter_map(|part| part.region.relative_to(target)).collect();
    let source = |at: usize| moves.get(at).map_or(at, |part| part.source);
    check(&shape, &parts).map_err(|defect| match defect {
        CoverageError::Overlap { first, second, .. } => {
            let both =
                moves.get(first).zip(moves.get(second)).and_then(|(a, b)| a.region.intersect(&b.region));
            let region = both.unwrap_or_else(|| target.clone());
            MoveError::Overlap {
                target: target.clone(),
                first: source(first),
                second: source(second),
                region,
            }
        }
        CoverageError::Gap { region } => {
            MoveError::Gap { target: target.clone(), region: shifted(&region, target) }
        }
        // Parts are intersections with the target, so they lie in it; what can't be checked counts as missing.
        _ => MoveError::Gap { target: target.clone(), region: target.clone() },
    })
}

fn shifted(region: &Region, origin: &Region) -> Region {
    let offsets: Vec<u64> = region.offsets().iter().zip(origin.offsets()).map(|(a, b)| a + b).collect();
    Region::new(&offsets, region.extents()).unwrap_or_else(|_| origin.clone())
}
