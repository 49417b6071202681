//! Which rank runs on which machine: exchanged at the start, drawn, and checked, because the typical fault of a large run is a mesh
//! that is right on ranks which are dealt out wrong. A tensor-parallel group talks in every layer, so it must lie on one machine
//! unless the configuration allows otherwise.

use std::{collections::BTreeMap, fmt, fs};

use crate::{
    Error, Result,
    mesh::{Axis, MeshShape},
    transport::{Group, Purpose},
};

/// The variable that names this machine, where its host name does not tell machines apart.
pub const NODE: &str = "CKPT_NODE";

/// Machines and groups that a message shows before it says how many more there are.
const SHOWN: usize = 8;

/// The machine of every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMap {
    mesh: MeshShape,
    of_rank: Vec<String>,
}

/// The name of this machine: what [`NODE`] says, else its host name and the first digits of the number that its kernel drew when it
/// started, since containers on different machines may have the same host name.
pub(super) fn here() -> String {
    let said = std::env::var(NODE).ok().filter(|name| !name.trim().is_empty());
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    said.unwrap_or_else(|| {
        let boot = read("/proc/sys/kernel/random/boot_id");
        format!("{}/{}", read("/proc/sys/kernel/hostname"), boot.get(..8).unwrap_or("?"))
    })
}

impl NodeMap {
    /// Asks all ranks of `world`.
    ///
    /// # Errors
    /// The transport's.
    pub fn gather(world: &dyn Group, mesh: MeshShape) -> Result<Self> {
        let all = world.all_gather_bytes(&Purpose("machines of ranks".to_owned()), here().as_bytes())?;
        Ok(Self::new(mesh, all.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()))
    }

    /// A mesh on these machines, by rank.
    #[must_use]
    pub const fn new(mesh: MeshShape, of_rank: Vec<String>) -> Self {
        Self { mesh, of_rank }
    }

    /// Whether every tensor-parallel group lies on one machine.
    ///
    /// # Errors
    /// `Config` with the map drawn, the groups that do not, and what to change.
    pub fn check(&self) -> Result<()> {
        let broken = self.broken();
        let Some((_, first)) = broken.first() else { return Ok(()) };
        let mut said = format!(
            "parallelism.mesh={}: {} of the tp groups reach over several machines, and tp communicates in every layer\n{self}",
            self.mesh,
            broken.len()
        );
        for (members, nodes) in broken.iter().take(SHOWN) {
            said += &format!("  tp group of ranks {} lies on {}\n", ranges(members), nodes.join(" and "));
        }
        let tp = self.mesh.tp;
        let dealt = if self.fits_in_order() {
            "ranks are dealt round the machines: number them machine by machine (srun --distribution=block, mpirun --map-by slot, \
             launch --node-rank)"
                .to_owned()
        } else {
            format!(
                "start a multiple of tp={tp} ranks on each machine, or choose a tp that divides the ranks of each"
            )
        };
        let several = first.len();
        Err(Error::config(said.trim_end().to_owned()).hint(format!(
            "{dealt}; parallelism.tp_across_nodes=true allows it (a group then waits for the link between {several} machines)"
        )))
    }

    /// Groups that lie on several machines, with those.
    fn broken(&self) -> Vec<(Vec<usize>, Vec<String>)> {
        let leads = (0..self.of_rank.len()).filter_map(|rank| {
            let group = self.mesh.group(self.mesh.coordinates(rank).ok()?, Axis::Tp);
            (group.first() == Some(&rank)).then_some(group)
        });
        let spread = leads.map(|group| {
            let mut nodes: Vec<_> =
                group.iter().filter_map(|rank| self.of_rank.get(*rank).cloned()).collect();
            nodes.dedup();
            nodes.sort();
            nodes.dedup();
            (group, nodes)
        });
        spread.filter(|(_, nodes)| nodes.len() > 1).collect()
    }

    /// Whether the same machines with the same numbers of ranks would do, one machine after the other.
    fn fits_in_order(&self) -> bool {
        let mut of_rank = self.of_rank.clone();
        of_rank.sort();
        Self::new(self.mesh, of_rank).broken().is_empty()
    }
}

/// A line for each machine: its ranks, and their coordinates.
impl fmt::Display for NodeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nodes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, node) in self.of_rank.iter().enumerate() {
            nodes.entry(node).or_default().push(rank);
        }
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_by(|(_, a), (_, b)| a.cmp(b));
        let wide = nodes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, ranks) in nodes.iter().take(SHOWN) {
            let at: Vec<_> = ranks.iter().filter_map(|rank| self.mesh.coordinates(*rank).ok()).collect();
            let axis = |of: fn(&crate::mesh::Coordinates) -> usize| {
                let mut all: Vec<_> = at.iter().map(of).collect();
                all.sort_unstable();
                all.dedup();
                ranges(&all)
            };
            let (dp, pp, tp) = (axis(|at| at.dp), axis(|at| at.pp), axis(|at| at.tp));
            writeln!(f, "  {name:<wide$}  ranks {}  dp {dp}  pp {pp}  tp {tp}", ranges(ranks))?;
        }
        match nodes.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => writeln!(f, "  and {more} more machines"),
            _ => Ok(()),
        }
    }
}

/// `0-3,8` of ascending numbers.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(mesh: &str, node: impl Fn(usize) -> usize) -> NodeMap {
        let mesh: MeshShape = mesh.parse().unwrap();
        NodeMap::new(mesh, (0..mesh.ranks()).map(|rank| format!("node{}", node(rank))).collect())
    }

    #[test]
    fn the_mesh_of_the_literature_fits_on_eight_machines_of_eight() {
        // rank = dp·16 + pp·8 + tp, machine = dp·2 + pp.
        let map = map("4x2x8", |rank| rank / 8);
        map.check().unwrap();
        let drawn = map.to_string();
        assert!(drawn.contains("  node3  ranks 24-31  dp 1  pp 1  tp 0-7\n"), "{drawn}");
        assert_eq!(drawn.lines().count(), 8);
    }

    #[test]
    fn ranks_that_are_dealt_round_are_drawn_and_it_is_said_how_to_deal_them() {
        let error = map("4x2x8", |rank| rank % 8).check().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("8 of the tp groups reach over several machines"), "{text}");
        assert!(text.contains("  node0  ranks 0,8,16,24,32,40,48,56  dp 0-3  pp 0-1  tp 0\n"), "{text}");
        assert!(text.contains("tp group of ranks 0-7 lies on node0 and node1 and"), "{text}");
        assert!(error.hint_text().unwrap().contains("--distribution=block"), "{error}");
    }

    #[test]
    fn a_tp_that_does_not_divide_the_ranks_of_a_machine_is_refused_with_what_would_fit() {
        let error = map("2x1x4", |rank| rank / 6).check().unwrap_err();
        assert!(error.to_string().contains("tp group of ranks 4-7 lies on node0 and node1"), "{error}");
        assert!(error.hint_text().unwrap().contains("a multiple of tp=4 ranks"), "{error}");
        map("8x1x1", |rank| rank % 3).check().unwrap();
    }
}
