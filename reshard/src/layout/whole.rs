//! [`Layout`]: a registry on a mesh: every tensor's shards, one writer for each, and what ranks hold and write.
//!
//! Replicas are written once. Their writer is the owner that has least to write so far, largest shards first, lowest
//! rank on a tie: so the choice is balanced and the same wherever it is made.

use std::collections::HashMap;

use fqn::{Entry, Fqn, Registry};
use serde::{Deserialize, Serialize};

use super::{LayoutError, Shard, StageSplit, Stages, TensorLayout};
use crate::{Mesh, Region};

/// What one rank holds and writes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutRank {
    /// Parameters and buffers held.
    pub model: u64,
    /// Optimizer state held.
    pub optimizer: u64,
    /// Everything else held.
    pub other: u64,
    /// Written by this rank, replicas once.
    pub written: u64,
}

/// A registry on a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    mesh: Mesh,
    split: StageSplit,
    stages: Stages,
    tensors: Vec<TensorLayout>,
    /// Writer of every shard, by tensor and in the order of [`TensorLayout::shards`].
    writers: Vec<Vec<u32>>,
    ranks: Vec<LayoutRank>,
}

impl Layout {
    /// Lays `registry` out on `mesh`, its layers split by `split`.
    ///
    /// # Errors
    /// A tensor without a rule or with one that doesn't fit it; layers that don't split; tied tensors on different stages.
    pub fn new(registry: &Registry, mesh: &Mesh, split: &StageSplit) -> Result<Self, LayoutError> {
        let stages = split.resolve(registry, mesh.stages())?;
        let of = |entry| TensorLayout::new(entry, mesh, &stages);
        let tensors = registry.entries().iter().map(of).collect::<Result<Vec<_>, _>>()?;
        check_ties(registry, mesh, &tensors)?;
        let mut layout = Self {
            mesh: mesh.clone(),
            split: split.clone(),
            writers: vec![Vec::new(); tensors.len()],
            ranks: usize::try_from(mesh.ranks()).map(|n| vec![LayoutRank::default(); n]).unwrap_or_default(),
            stages,
            tensors,
        };
        layout.assign();
        Ok(layout)
    }

    /// The mesh.
    #[must_use]
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// How layers were split.
    #[must_use]
    pub const fn split(&self) -> &StageSplit {
        &self.split
    }

    /// The stage of every layer.
    #[must_use]
    pub const fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Tensors in the registry's order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorLayout] {
        &self.tensors
    }

    /// Shards of tensor number `tensor` of the registry, each with the rank that writes it.
    pub fn shards(&self, tensor: usize) -> impl Iterator<Item = (Shard, u64)> + '_ {
        let writers = self.writers.get(tensor).into_iter().flatten().map(|rank| u64::from(*rank));
        self.tensors.get(tensor).into_iter().flat_map(|of| of.shards(&self.mesh)).zip(writers)
    }

    /// The regions of these shards, each with the rank that writes it, in the same order.
    #[must_use]
    pub fn boxes(&self, tensor: usize) -> Vec<(Region, u32)> {
        let (Some(of), Some(writers)) = (self.tensors.get(tensor), self.writers.get(tensor)) else {
            return Vec::new();
        };
        let (mut boxes, mut ranks) = (Vec::with_capacity(writers.len()), writers.iter());
        of.each_shard(&self.mesh, |region, _| boxes.extend(ranks.next().map(|rank| (region, *rank))));
        boxes
    }

    /// Number of shards of all tensors together.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.writers.iter().map(Vec::len).sum()
    }

    /// What each rank holds and writes.
    #[must_use]
    pub fn ranks(&self) -> &[LayoutRank] {
        &self.ranks
    }

    /// The most that a rank writes, relative to the mean; 1 where nothing is written.
    #[must_use]
    pub fn write_imbalance(&self) -> f64 {
        imbalance(self.ranks.iter().map(|rank| rank.written))
    }

    /// The most that a rank holds, relative to the mean; 1 where nothing is held.
    #[must_use]
    pub fn held_imbalance(&self) -> f64 {
        imbalance(self.ranks.iter().map(LayoutRank::held))
    }

    fn assign(&mut self) {
        let mut replicated: Vec<(u64, usize)> = Vec::new();
        let mut writers = std::mem::take(&mut self.writers);
        for (at, (tensor, writers)) in self.tensors.iter().zip(&mut writers).enumerate() {
            let mut largest = None;
            let ranks = &mut self.ranks;
            tensor.each_shard(&self.mesh, |region, owners| {
                let (bytes, alone) = (tensor.bytes(&region), owners.len() == 1);
                let first = owners.first();
                if alone {
                    slot(ranks, first, |held| held.add(tensor, bytes, alone));
                } else {
                    for rank in owners.iter() {
                        slot(ranks, rank, |held| held.add(tensor, bytes, alone));
                    }
                    largest = largest.max(Some(bytes));
                }
                // Meshes have at most 2^24 ranks.
                writers.push(u32::try_from(first).unwrap_or(0));
            });
            replicated.extend(largest.map(|bytes| (bytes, at)));
        }
        replicated.sort_by_key(|&(largest, at)| (std::cmp::Reverse(largest), at));
        for (_, at) in replicated {
            if let (Some(tensor), Some(writers)) = (self.tensors.get(at), writers.get_mut(at)) {
                for (shard, writer) in tensor.shards(&self.mesh).zip(writers) {
                    *writer = lightest(&self.ranks, &shard);
                    let bytes = tensor.bytes(&shard.region);
                    slot(&mut self.ranks, u64::from(*writer), |rank| rank.write(bytes));
                }
            }
        }
        self.writers = writers;
    }
}

impl LayoutRank {
    /// All that the rank holds.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.model.saturating_add(self.optimizer).saturating_add(self.other)
    }

    const fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Counts a held shard; one that nobody else holds is also written here.
    fn add(&mut self, tensor: &TensorLayout, bytes: u64, alone: bool) {
        if alone {
            self.write(bytes);
        }
        let role = &tensor.id().role;
        let sum = match (role.is_model(), role.is_optimizer()) {
            (true, _) => &mut self.model,
            (_, true) => &mut self.optimizer,
            _ => &mut self.other,
        };
        *sum = sum.saturating_add(bytes);
    }
}

/// Names of one tensor lie on the same stages: a tie across stages is declared on each of its names (`pp:first+last`), or
/// one of the copies would be trained apart.
fn check_ties(registry: &Registry, mesh: &Mesh, tensors: &[TensorLayout]) -> Result<(), LayoutError> {
    let mut first: HashMap<&Fqn, (&Entry, &TensorLayout)> = HashMap::new();
    for (entry, tensor) in registry.entries().iter().zip(tensors).filter(|_| mesh.stages() > 1) {
        let Some(tie) = entry.tie.as_ref().filter(|_| entry.role.is_model()) else { continue };
        let (other, of) = *first.entry(tie).or_insert((entry, tensor));
        if !of.is_on_stages_of(tensor, mesh) {
            let rule = |entry: &Entry| entry.placement.clone().unwrap_or_default();
            return Err(LayoutError::TieApart {
                first: other.id(),
                first_rule: rule(other),
                second: entry.id(),
                second_rule: rule(entry),
            });
        }
    }
    Ok(())
}

fn slot(ranks: &mut [LayoutRank], rank: u64, change: impl FnOnce(&mut LayoutRank)) {
    if let Some(rank) = usize::try_from(rank).ok().and_then(|rank| ranks.get_mut(rank)) {
        change(rank);
    }
}

fn lightest(ranks: &[LayoutRank], shard: &Shard) -> u32 {
    let written =
        |rank: &u64| usize::try_from(*rank).ok().and_then(|at| ranks.get(at)).map_or(0, |r| r.written);
    let best = shard.owners.iter().min_by_key(|rank| (written(rank), *rank));
    best.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people, of byte counts far below 2^53")]
fn imbalance(bytes: impl Iterator<Item = u64> + Clone) -> f64 {
    let total: u64 = bytes.clone().fold(0, u64::saturating_add);
    let (count, most) = (bytes.clone().count(), bytes.max().unwrap_or(0));
    if total == 0 { 1.0 } else { most as f64 * count as f64 / total as f64 }
}
