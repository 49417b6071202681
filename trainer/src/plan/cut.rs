//! [`Cut`]: how a model is cut over ranks: sizes of the axes, their order, and what data-parallel ranks hold.
//!
//! Invariants: the last axis of the order is the fastest; the ranks of a group are in ascending order of their coordinate;
//! shard groups of `HYBRID_SHARD` are neighbours on the data-parallel axis.

use std::fmt;

use serde::Serialize;

use super::{Axis, Cluster, Order, Strategy};
use crate::{Error, Result, mesh::MeshShape};

/// A way to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Cut {
    /// Data-parallel replicas.
    pub dp: u64,
    /// Pipeline ranks.
    pub pp: u64,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Data-parallel ranks that one copy of the state is spread over; divides `dp`.
    pub shard: u64,
    /// What data-parallel ranks hold.
    pub strategy: Strategy,
    /// How coordinates become ranks.
    pub order: Order,
}

/// The groups along one axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupTable {
    /// The axis.
    pub axis: Axis,
    /// Members of each group.
    pub groups: Vec<Vec<u64>>,
    /// How many of the groups lie within one node.
    pub within_node: usize,
}

impl Cut {
    /// A cut whose shard groups follow from the strategy; those of `HYBRID_SHARD` are the data-parallel ranks of a node.
    #[must_use]
    pub fn new(mesh: MeshShape, strategy: Strategy, order: Order, cluster: &Cluster) -> Self {
        let (dp, pp, tp) = (mesh.dp as u64, mesh.pp as u64, mesh.tp as u64);
        let mut cut = Self { dp, pp, tp, shard: dp, strategy, order };
        cut.shard = match strategy {
            Strategy::NoShard => 1,
            Strategy::ShardGradOp | Strategy::FullShard => dp,
            Strategy::HybridShard => (1..=dp)
                .rev()
                .find(|shard| dp.is_multiple_of(*shard) && cluster.one_node(&cut.first_dp(*shard)))
                .unwrap_or(1),
        };
        cut
    }

    fn first_dp(&self, count: u64) -> Vec<u64> {
        (0..count).map(|dp| self.rank([dp, 0, 0])).collect()
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u64 {
        self.dp.saturating_mul(self.pp).saturating_mul(self.tp)
    }

    /// Size of an axis.
    #[must_use]
    pub const fn size(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
            Axis::Tp => self.tp,
        }
    }

    /// Copies of the state, each spread over a shard group.
    #[must_use]
    pub const fn replicas(&self) -> u64 {
        self.dp / if self.shard == 0 { 1 } else { self.shard }
    }

    /// The rank at coordinates (dp, pp, tp).
    #[must_use]
    pub fn rank(&self, [dp, pp, tp]: [u64; 3]) -> u64 {
        match self.order {
            Order::DpPpTp => (dp * self.pp + pp) * self.tp + tp,
            Order::PpDpTp => (pp * self.dp + dp) * self.tp + tp,
        }
    }

    /// Coordinates (dp, pp, tp) of a rank.
    #[must_use]
    pub const fn coordinates(&self, rank: u64) -> [u64; 3] {
        let outer = rank / self.tp;
        match self.order {
            Order::DpPpTp => [outer / self.pp, outer % self.pp, rank % self.tp],
            Order::PpDpTp => [outer % self.dp, outer / self.dp, rank % self.tp],
        }
    }

    /// All groups along `axis`.
    #[must_use]
    pub fn groups(&self, axis: Axis, cluster: &Cluster) -> GroupTable {
        let at = |index: usize, value: u64, mut place: [u64; 3]| {
            place.iter_mut().skip(index).take(1).for_each(|it| *it = value);
            self.rank(place)
        };
        let index = match axis {
            Axis::Dp => 0,
            Axis::Pp => 1,
            Axis::Tp => 2,
        };
        let begins =
            (0..self.ranks()).map(|rank| self.coordinates(rank)).filter(|place| place.get(index) == Some(&0));
        let group = |place| (0..self.size(axis)).map(|value| at(index, value, place)).collect::<Vec<_>>();
        let groups: Vec<_> = begins.map(group).collect();
        let within_node = groups.iter().filter(|group| cluster.one_node(group)).count();
        GroupTable { axis, groups, within_node }
    }

    /// Ranks that a shard group has, of the rank at the origin: what its gathers go over.
    #[must_use]
    pub fn shard_group(&self) -> Vec<u64> {
        self.first_dp(self.shard)
    }

    /// Ranks that hold copies of the same shard, of the rank at the origin.
    #[must_use]
    pub fn replica_group(&self) -> Vec<u64> {
        (0..self.replicas()).map(|copy| self.rank([copy * self.shard, 0, 0])).collect()
    }

    /// Meshes of `ranks` ranks that differ from this one on one axis.
    #[must_use]
    pub fn near(&self, ranks: u64) -> Vec<String> {
        let (dp, pp, tp) = (self.dp, self.pp, self.tp);
        let fits = |size: u64, others: u64| {
            let size_then = ranks.checked_div(others).filter(|_| ranks.is_multiple_of(others));
            size_then.filter(|then| *then != size && *then > 0)
        };
        let near = [
            fits(dp, pp.saturating_mul(tp)).map(|dp| format!("{dp}x{pp}x{tp}")),
            fits(pp, dp.saturating_mul(tp)).map(|pp| format!("{dp}x{pp}x{tp}")),
            fits(tp, dp.saturating_mul(pp)).map(|tp| format!("{dp}x{pp}x{tp}")),
        ];
        near.into_iter().flatten().collect()
    }

    /// Refuses a cut of another number of ranks than there are.
    ///
    /// # Errors
    /// `Config`, with the product and the meshes that differ on one axis and fit.
    pub fn check_ranks(&self, ranks: u64) -> Result<()> {
        if self.ranks() == ranks {
            return Ok(());
        }
        let near = self.near(ranks);
        let (dp, pp, tp) = (self.dp, self.pp, self.tp);
        let product = self.ranks();
        let said =
            format!("mesh {self}: dp={dp} x pp={pp} x tp={tp} = {product} ranks, but there are {ranks}");
        let hint = match near.as_slice() {
            [] => {
                format!("take {product} ranks, or leave out --mesh to see which meshes of {ranks} ranks fit")
            }
            near => format!("take {product} ranks, or a mesh of {ranks}: {}", near.join(" or ")),
        };
        Err(Error::config(said).hint(hint))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.dp, self.pp, self.tp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn cluster(ranks: u64) -> Cluster {
        Cluster { reserve: 2e9, ..crate::plan::cluster::a100s(ranks) }
    }

    fn cut(mesh: &str, strategy: Strategy, order: Order) -> Cut {
        let mesh: MeshShape = mesh.parse().unwrap();
        Cut::new(mesh, strategy, order, &cluster(mesh.ranks() as u64))
    }

    #[test]
    fn the_fourth_articles_mesh_has_its_coordinates_groups_and_nodes() {
        let cut = cut("4x2x8", Strategy::FullShard, Order::DpPpTp);
        let cluster = cluster(64);
        for rank in 0..64 {
            let [dp, pp, tp] = cut.coordinates(rank);
            assert_eq!(rank, dp * 16 + pp * 8 + tp);
            assert_eq!(cluster.node(rank), dp * 2 + pp);
            assert_eq!(cut.rank([dp, pp, tp]), rank);
        }
        let (tp, pp, dp) =
            (cut.groups(Axis::Tp, &cluster), cut.groups(Axis::Pp, &cluster), cut.groups(Axis::Dp, &cluster));
        assert_eq!((tp.groups.len(), tp.within_node), (8, 8));
        assert_eq!((pp.groups.len(), pp.within_node), (32, 0));
        assert_eq!((dp.groups.len(), dp.within_node), (16, 0));
        assert_eq!(dp.groups[0], [0, 16, 32, 48]);
        assert_eq!(pp.groups[3], [3, 11]);
    }

    #[test]
    fn the_other_order_puts_stages_outermost_and_every_rank_has_one_place() {
        let cut = cut("4x2x8", Strategy::FullShard, Order::PpDpTp);
        assert_eq!(cut.rank([1, 1, 3]), 43);
        let places: std::collections::BTreeSet<_> = (0..64).map(|rank| cut.coordinates(rank)).collect();
        assert_eq!(places.len(), 64);
    }

    #[test]
    fn a_product_that_is_not_the_number_of_ranks_is_refused_with_meshes_that_are() {
        let error = cut("2x4x4", Strategy::FullShard, Order::DpPpTp).check_ranks(16).unwrap_err();
        assert!(error.to_string().contains("dp=2 x pp=4 x tp=4 = 32 ranks, but there are 16"), "{error}");
        assert!(error.hint_text().unwrap().contains("1x4x4 or 2x2x4 or 2x4x2"));
        cut("2x4x4", Strategy::FullShard, Order::DpPpTp).check_ranks(32).unwrap();
    }

    #[test]
    fn hybrid_shards_are_the_data_parallel_ranks_of_a_node() {
        let cut = cut("16x1x2", Strategy::HybridShard, Order::DpPpTp);
        assert_eq!((cut.shard, cut.replicas()), (4, 4));
        assert_eq!((cut.shard_group(), cut.replica_group()), (vec![0, 2, 4, 6], vec![0, 8, 16, 24]));
    }
}
