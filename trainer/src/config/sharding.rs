//! How data parallelism shares out the weights, and how long what is gathered of them stays: from a strategy's name, the sizes of dp,
//! and what is said of resharding. Pure numbers.
//!
//! | strategy | weights, moments | gathered weights are freed | gradients |
//! | --- | --- | --- | --- |
//! | `full_shard` | 1/dp on each rank | after each use (without pipeline), after a stage's last use nearby (with one) | to shards |
//! | `shard_grad_op` | 1/dp on each rank | at the end of the step | to shards |
//! | `hybrid_shard` | 1/dp_shard on each rank | as `full_shard` | to shards, then over replicas |
//! | `no_shard` | whole on each rank | nothing is gathered | over replicas (DDP) |

use schedule::Gather;

use super::{ConfigError, Fsdp, Mode, Parallelism, Reshard, Strategy};
use crate::mesh::DataSplit;

/// Stages that stay gathered under a pipeline where nothing is said: the one in use and the next ones, as torch has it.
const NEXT: usize = 3;

/// What a strategy comes to on a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// The strategy; where it was left out, the one that the sizes of dp ask for.
    pub strategy: Strategy,
    /// Replicas and shards.
    pub data: DataSplit,
    /// What the program says of gathering.
    pub gather: Gather,
}

impl Sharding {
    /// From what the configuration says; `strategy` is none where it was left out, sizes are 0.
    ///
    /// # Errors
    /// Sizes whose product is not dp, or that are not the strategy's; resharding where there is nothing to reshard.
    pub fn of(
        parallelism: &Parallelism,
        fsdp: &Fsdp,
        strategy: Option<Strategy>,
        mode: Mode,
    ) -> Result<Self, ConfigError> {
        let data = split(parallelism, strategy)?;
        let strategy = strategy.unwrap_or_else(|| fitting(data));
        suits(strategy, data, parallelism)?;
        if mode == Mode::Exact && data.replicate > 1 && !data.shard.is_power_of_two() {
            let said = format!(
                "in exact mode the ranks of a replica must be a power of two, but parallelism.dp_shard={}",
                data.shard
            );
            return Err(ConfigError::Contradiction(said, "choose another dp_shard, or training.mode=fast"));
        }
        Ok(Self { strategy, data, gather: gather(parallelism, fsdp.reshard_after_forward, strategy)? })
    }
}

/// Replicas and shards, from what is given of them.
fn split(parallelism: &Parallelism, strategy: Option<Strategy>) -> Result<DataSplit, ConfigError> {
    let dp = parallelism.mesh.dp;
    let given = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let (replicate, shard) = (given(parallelism.dp_replicate), given(parallelism.dp_shard));
    let left = |one: usize| if dp.is_multiple_of(one) { dp / one } else { 0 };
    let data = match (replicate, shard, strategy) {
        (0, 0, Some(Strategy::NoShard)) => DataSplit { replicate: dp, shard: 1 },
        (0, 0, Some(Strategy::HybridShard)) if dp > 1 => return Err(undecided(dp)),
        (0, 0, _) => DataSplit::sharded(dp),
        (0, shard, _) => DataSplit { replicate: left(shard), shard },
        (replicate, 0, _) => DataSplit { replicate, shard: left(replicate) },
        (replicate, shard, _) => DataSplit { replicate, shard },
    };
    if data.replicate.checked_mul(data.shard) == Some(dp) {
        return Ok(data);
    }
    let shown = |size: usize| if size == 0 { "what is left".to_owned() } else { size.to_string() };
    let said = format!(
        "parallelism.dp_replicate={} x parallelism.dp_shard={} is not dp={dp} (parallelism.mesh={}); {} would do",
        shown(replicate),
        shown(shard),
        parallelism.mesh,
        products(dp)
    );
    Err(ConfigError::Contradiction(said, "dp_replicate x dp_shard = dp must hold; -1 is what is left"))
}

fn undecided(dp: usize) -> ConfigError {
    let said = format!(
        "fsdp.strategy=hybrid_shard, but neither parallelism.dp_replicate nor parallelism.dp_shard is given: of dp={dp}, {}",
        products(dp)
    );
    ConfigError::Contradiction(said, "dp_shard is mostly the number of ranks of a node")
}

/// The ways to write `dp` as replicas x shards.
fn products(dp: usize) -> String {
    let divisors = (1..=dp).filter(|shard| dp.is_multiple_of(*shard));
    let all: Vec<_> = divisors.map(|shard| format!("{}x{shard}", dp / shard)).collect();
    all.join(", ")
}

/// The strategy that sizes ask for where no name is given, as TorchTitan has it.
const fn fitting(data: DataSplit) -> Strategy {
    match data {
        DataSplit { replicate: 1, .. } => Strategy::FullShard,
        DataSplit { shard: 1, .. } => Strategy::NoShard,
        DataSplit { .. } => Strategy::HybridShard,
    }
}

fn suits(strategy: Strategy, data: DataSplit, parallelism: &Parallelism) -> Result<(), ConfigError> {
    let DataSplit { replicate, shard } = data;
    let (said, hint) = match strategy {
        Strategy::FullShard | Strategy::ShardGradOp if replicate > 1 => (
            format!(
                "shards over all of dp={}, but parallelism.dp_replicate={replicate}",
                parallelism.mesh.dp
            ),
            "choose hybrid_shard, or leave dp_replicate out",
        ),
        Strategy::NoShard if shard > 1 => (
            format!("holds all weights on every rank, but parallelism.dp_shard={shard}"),
            "choose hybrid_shard or full_shard, or leave dp_shard out",
        ),
        _ => return Ok(()),
    };
    Err(ConfigError::Contradiction(format!("fsdp.strategy={} {said}", strategy.name()), hint))
}

/// How long what is gathered stays.
fn gather(parallelism: &Parallelism, reshard: Reshard, strategy: Strategy) -> Result<Gather, ConfigError> {
    let own = usize::try_from(parallelism.stages_per_rank).unwrap_or(usize::MAX);
    let wrong = |reshard: &str, hint| {
        let said = format!("fsdp.strategy={} with fsdp.reshard_after_forward={reshard}", strategy.name());
        Err(ConfigError::Contradiction(said, hint))
    };
    match (strategy, reshard) {
        (Strategy::NoShard, Reshard::Always) => wrong("always", "no_shard gathers nothing: leave it out"),
        (Strategy::ShardGradOp, Reshard::Always) => {
            wrong("always", "that is full_shard; shard_grad_op keeps weights until the end of the step")
        }
        (Strategy::NoShard, _) | (_, Reshard::Always) => Ok(Gather::PerPart),
        (Strategy::ShardGradOp, _) | (_, Reshard::Never) => Ok(Gather::Stages(own)),
        (_, Reshard::Default) if parallelism.mesh.pp == 1 => Ok(Gather::PerPart),
        (_, Reshard::Default) => Ok(Gather::Stages(own.min(NEXT))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::MeshShape;

    fn of(
        mesh: &str,
        sizes: (u64, u64),
        strategy: Option<Strategy>,
        reshard: Reshard,
    ) -> Result<Sharding, String> {
        let mesh: MeshShape = mesh.parse().unwrap();
        let (dp_replicate, dp_shard) = sizes;
        let parallelism =
            Parallelism { mesh, dp_replicate, dp_shard, stages_per_rank: 4, ..Parallelism::default() };
        let fsdp = Fsdp { reshard_after_forward: reshard, ..Fsdp::default() };
        Sharding::of(&parallelism, &fsdp, strategy, Mode::Exact).map_err(|error| error.to_string())
    }

    fn data(mesh: &str, sizes: (u64, u64), strategy: Option<Strategy>) -> (Strategy, usize, usize) {
        let found = of(mesh, sizes, strategy, Reshard::Default).unwrap();
        (found.strategy, found.data.replicate, found.data.shard)
    }

    #[test]
    fn a_size_that_is_left_out_is_what_is_left_and_sizes_name_the_strategy() {
        use Strategy::{FullShard, HybridShard, NoShard, ShardGradOp};
        assert_eq!(data("4x1x1", (0, 0), None), (FullShard, 1, 4));
        assert_eq!(data("4x1x1", (2, 0), None), (HybridShard, 2, 2));
        assert_eq!(data("4x1x1", (0, 1), None), (NoShard, 4, 1));
        assert_eq!(data("4x1x1", (0, 2), Some(HybridShard)), (HybridShard, 2, 2));
        assert_eq!(data("4x1x1", (0, 0), Some(NoShard)), (NoShard, 4, 1));
        assert_eq!(data("4x1x1", (0, 4), Some(ShardGradOp)), (ShardGradOp, 1, 4));
        assert_eq!(data("1x2x1", (0, 0), Some(HybridShard)), (HybridShard, 1, 1));
    }

    #[test]
    fn what_is_gathered_is_freed_per_part_or_by_the_program() {
        use Strategy::{FullShard, NoShard, ShardGradOp};
        let gather = |mesh, strategy, reshard| of(mesh, (0, 0), Some(strategy), reshard).unwrap().gather;
        assert_eq!(gather("2x1x1", FullShard, Reshard::Default), Gather::PerPart);
        assert_eq!(gather("2x2x1", FullShard, Reshard::Default), Gather::Stages(3));
        assert_eq!(gather("2x2x1", FullShard, Reshard::Always), Gather::PerPart);
        assert_eq!(gather("2x1x1", FullShard, Reshard::Never), Gather::Stages(4));
        assert_eq!(gather("2x2x1", ShardGradOp, Reshard::Default), Gather::Stages(4));
        assert_eq!(gather("2x2x1", NoShard, Reshard::Default), Gather::PerPart);
    }

    #[test]
    fn sizes_and_resharding_that_a_strategy_cannot_have_are_refused() {
        use Strategy::{FullShard, HybridShard, NoShard, ShardGradOp};
        let refused = |mesh, sizes, strategy, reshard| of(mesh, sizes, strategy, reshard).unwrap_err();
        let text = refused("4x1x1", (3, 0), None, Reshard::Default);
        assert!(text.contains("dp_replicate=3") && text.contains("4x1, 2x2, 1x4 would do"), "{text}");
        assert!(refused("4x1x1", (2, 4), None, Reshard::Default).contains("is not dp=4"));
        assert!(refused("4x1x1", (0, 0), Some(HybridShard), Reshard::Default).contains("neither"));
        assert!(refused("4x1x1", (2, 0), Some(FullShard), Reshard::Default).contains("over all of dp=4"));
        assert!(refused("4x1x1", (0, 2), Some(NoShard), Reshard::Default).contains("dp_shard=2"));
        assert!(refused("4x1x1", (0, 0), Some(NoShard), Reshard::Always).contains("no_shard"));
        assert!(refused("4x1x1", (0, 0), Some(ShardGradOp), Reshard::Always).contains("shard_grad_op"));
        assert!(refused("6x1x1", (2, 3), None, Reshard::Default).contains("power of two"));
    }
}
