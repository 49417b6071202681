//! [`Strategy`]: what data-parallel ranks hold, under the names that others have for it.

use std::fmt;

use serde::Serialize;

/// What data-parallel ranks hold of weights, gradients and optimizer state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Strategy {
    /// All of it on every rank (DDP).
    NoShard,
    /// Weights whole while they are used, gradients and state in shards (ZeRO-2).
    ShardGradOp,
    /// Everything in shards (ZeRO-3).
    FullShard,
    /// Everything in shards among some ranks, copies of those among the others.
    HybridShard,
}

impl Strategy {
    /// All, from the least traffic to the least memory.
    pub const ALL: [Self; 4] = [Self::NoShard, Self::ShardGradOp, Self::HybridShard, Self::FullShard];

    /// As configurations write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoShard => "NO_SHARD",
            Self::ShardGradOp => "SHARD_GRAD_OP",
            Self::FullShard => "FULL_SHARD",
            Self::HybridShard => "HYBRID_SHARD",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        let wanted = match plain(text).as_str() {
            "ddp" => "noshard".to_owned(),
            "hybrid" | "hsdp" => "hybridshard".to_owned(),
            "fsdp" | "zero3" => "fullshard".to_owned(),
            "zero2" => "shardgradop".to_owned(),
            other => other.to_owned(),
        };
        let found = Self::ALL.into_iter().find(|it| plain(it.name()) == wanted);
        found.ok_or_else(|| {
            format!("{text:?} is no strategy; known are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}
