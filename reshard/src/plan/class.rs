//! [`Classes`]: tensors that are cut alike on both sides are counted once.
//!
//! A model of a hundred layers has a hundred tensors of one shape, one rule and the same boxes in the source; what it takes
//! to move one is what it takes to move any. Boxes are compared, never names.

use std::borrow::Cow;

use crate::{Mesh, MoveError, Moves, Region, TensorLayout, flat::run_count};

/// Most classes that are remembered; the oldest one goes when another comes.
const MOST: usize = 64;

/// What it takes to make one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) bytes: u64,
    pub(super) moves: u64,
    /// Contiguous stretches of source chunks.
    pub(super) reads: u64,
}

/// What has been counted of which boxes.
#[derive(Debug, Default)]
pub(super) struct Classes<'a, 't> {
    known: Vec<(Cow<'a, [Region]>, &'t TensorLayout, Counted)>,
}

impl<'a, 't> Classes<'a, 't> {
    /// Counts what makes `tensor` on `mesh` out of `sources`, or finds it counted.
    pub(super) fn count(
        &mut self,
        sources: Cow<'a, [Region]>,
        tensor: &'t TensorLayout,
        mesh: &Mesh,
    ) -> Result<Counted, MoveError> {
        let alike = |(other, of, _): &&(Cow<'a, [Region]>, &TensorLayout, Counted)| {
            of.is_cut_like(tensor) && *other == sources
        };
        if let Some((_, _, counted)) = self.known.iter().find(alike) {
            return Ok(*counted);
        }
        let counted = count(&sources, tensor, mesh)?;
        if self.known.len() == MOST {
            self.known.remove(0);
        }
        self.known.push((sources, tensor, counted));
        Ok(counted)
    }
}

fn count(sources: &[Region], tensor: &TensorLayout, mesh: &Mesh) -> Result<Counted, MoveError> {
    let moves = Moves::new(sources);
    let mut counted = Counted { bytes: 0, moves: 0, reads: 0 };
    for shard in tensor.shards(mesh) {
        let parts = moves.of(&shard.region)?;
        counted.moves += parts.len() as u64;
        counted.bytes = counted.bytes.saturating_add(tensor.bytes(&shard.region));
        let reads = parts.iter().filter_map(|part| Some(run_count(&part.region, sources.get(part.source)?)));
        counted.reads += reads.sum::<u64>();
    }
    Ok(counted)
}
