//! [`DataSplit`]: how the dp axis is divided between ranks that share the weights out and ranks that repeat them.
//!
//! ```text
//!  dp = replicate × shard      dp rank d: replica d / shard, member d % shard
//!
//!                 full_shard        hybrid_shard       no_shard
//!  replicate x shard   1 x 4             2 x 2             4 x 1
//! ```
//!
//! Invariants: `replicate × shard` is the mesh's dp; members of a replica are neighbours on dp, so that a replica's ranks are as near to
//! each other as the mesh allows; shards depend on `shard` alone.

use reshard::Mesh;

use super::{Coordinates, MeshShape};
use crate::{Error, Result};

/// Replicas of the weights, and ranks that each replica is sharded over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataSplit {
    /// How many times all weights are held.
    pub replicate: usize,
    /// Ranks that one replica is sharded over.
    pub shard: usize,
}

impl DataSplit {
    /// One replica, sharded over all `dp` ranks.
    #[must_use]
    pub const fn sharded(dp: usize) -> Self {
        Self { replicate: 1, shard: dp }
    }

    /// The size of the dp axis.
    #[must_use]
    pub const fn ranks(self) -> usize {
        self.replicate * self.shard
    }

    /// The replica that dp rank `dp` is part of.
    #[must_use]
    pub fn replica(self, dp: usize) -> usize {
        dp.checked_div(self.shard).unwrap_or(0)
    }

    /// Which of its replica's shards dp rank `dp` holds.
    #[must_use]
    pub fn member(self, dp: usize) -> usize {
        dp.checked_rem(self.shard).unwrap_or(0)
    }

    /// The ranks that hold the shards of `at`'s replica, in order of their shards.
    #[must_use]
    pub fn shard_group(self, mesh: MeshShape, at: Coordinates) -> Vec<usize> {
        let first = at.dp - self.member(at.dp);
        (first..first + self.shard).map(|dp| mesh.rank(Coordinates { dp, ..at })).collect()
    }

    /// The ranks that hold the same shard as `at`, in order of their replicas.
    #[must_use]
    pub fn replica_group(self, mesh: MeshShape, at: Coordinates) -> Vec<usize> {
        let place = |replica| Coordinates { dp: replica * self.shard + self.member(at.dp), ..at };
        (0..self.replicate).map(|replica| mesh.rank(place(replica))).collect()
    }

    /// `mesh` as the geometry crate has it: dp as two axes where there are replicas, so that a checkpoint says which ranks held the same.
    ///
    /// # Errors
    /// `Config` for an axis of size 0 or a product that overflows.
    pub fn geometry(self, mesh: MeshShape) -> Result<Mesh> {
        if self.replicate == 1 {
            return mesh.mesh();
        }
        let (Self { replicate, shard }, MeshShape { pp, tp, .. }) = (self, mesh);
        let text = format!("dp_replicate={replicate},dp_shard={shard},pp={pp},tp={tp}");
        text.parse().map_err(|error| Error::config(format!("mesh {text}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_replica_are_neighbours_and_replicas_repeat_their_shards() {
        let mesh: MeshShape = "6x2x2".parse().unwrap();
        let data = DataSplit { replicate: 2, shard: 3 };
        let at = mesh.coordinates(4 * 4 + 3).unwrap();
        assert_eq!((data.replica(at.dp), data.member(at.dp)), (1, 1));
        assert_eq!(data.shard_group(mesh, at), [15, 19, 23]);
        assert_eq!(data.replica_group(mesh, at), [7, 19]);
        assert_eq!(DataSplit::sharded(6).shard_group(mesh, at), mesh.group(at, super::super::Axis::Dp));
        assert_eq!(DataSplit::sharded(6).replica_group(mesh, at), [19]);
    }

    #[test]
    fn ranks_have_the_same_numbers_on_the_mesh_that_names_both_axes() {
        let mesh: MeshShape = "6x2x2".parse().unwrap();
        let data = DataSplit { replicate: 2, shard: 3 };
        let named = data.geometry(mesh).unwrap();
        assert_eq!(named.to_string(), "dp_replicate=2 dp_shard=3 pp=2 tp=2");
        assert_eq!(DataSplit::sharded(6).geometry(mesh).unwrap().to_string(), "dp=6 pp=2 tp=2");
        for rank in 0..mesh.ranks() {
            let at = mesh.coordinates(rank).unwrap();
            let place = [data.replica(at.dp), data.member(at.dp), at.pp, at.tp].map(|at| at as u64);
            assert_eq!(named.rank_of(&place), Some(rank as u64));
        }
    }
}
