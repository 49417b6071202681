//! [`Moves`]: target regions of one tensor as intersections with its source chunks, derived region by region.
//!
//! Invariant: the moves of a region cover it exactly; a region that the source doesn't cover, or covers twice, is an
//! error and never a partial answer.

use crate::{
    Region,
    coverage::{CoverageError, Index, check},
};

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
    index: Index,
}

impl<'a> Moves<'a> {
    /// Arranges `sources`.
    #[must_use]
    pub fn new(sources: &'a [Region]) -> Self {
        Self { sources, index: Index::new(sources) }
    }

    /// The moves that make `target`, in order of their sources; none for an empty region.
    ///
    /// # Errors
    /// Elements of it that no source holds, or two do.
    pub fn of(&self, target: &Region) -> Result<Vec<Move>, MoveError> {
        let met = self.index.meeting(target).into_iter().filter_map(|source| {
            let region = self.sources.get(source)?.intersect(target)?;
            Some(Move { source, region })
        });
        let moves: Vec<Move> = met.collect();
        match moves.as_slice() {
            [only] if only.region == *target => {}
            _ => covers(target, &moves)?,
        }
        Ok(moves)
    }
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
