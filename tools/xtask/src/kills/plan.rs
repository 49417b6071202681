//! What each round does, by chance.

use std::fmt;
use std::time::Duration;

/// Sequences of a step, over all replicas.
pub(super) const BATCH: u64 = 8;

/// What all launches have in common: a model that trains in milliseconds, in exact mode for two virtual tensor-parallel
/// ranks.
pub(super) const SETTINGS: &[&str] = &[
    "data.folder=text",
    "model.layers=4",
    "model.dim=32",
    "model.heads=8",
    "model.head_dim=8",
    "model.ffn=64",
    "training.steps=1000000",
    "training.global_batch=8",
    "training.micro_batch=1",
    "training.seq_len=16",
    "training.seed=3",
    "optimizer.lr=1e-3",
    "lr_scheduler.decay_steps=1000",
    "exact.virtual_tp=2",
    "checkpoint.interval=3",
    "checkpoint.keep_last=3",
    "metrics.log_freq=1",
    "comm.start_timeout=120s",
    "comm.step_timeout=120s",
];

const MESHES: [(&str, u32); 7] =
    [("1x1x1", 1), ("2x1x1", 2), ("1x2x1", 2), ("1x1x2", 2), ("2x2x1", 4), ("1x2x2", 4), ("2x1x2", 4)];
/// Schedules of one stage per rank; the same bits come of all.
const SCHEDULES: [&str; 3] = ["GPipe", "1F1B", "ZBH1"];

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    Launcher,
    /// One of the ranks: the n-th, counted round.
    Rank(u32),
}

/// From when on the time to the kill is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Start,
    FirstStep,
}

/// One round.
#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) mesh: &'static str,
    ranks: u32,
    schedule: &'static str,
    pub(super) victim: Victim,
    pub(super) from: From,
    pub(super) after: Duration,
}

impl Round {
    pub(super) const fn ranks(&self) -> u32 {
        self.ranks
    }

    pub(super) fn settings(&self) -> [String; 2] {
        [format!("parallelism.mesh={}", self.mesh), format!("parallelism.schedule={}", self.schedule)]
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mesh, schedule, victim, from, after, .. } = self;
        let from = match from {
            From::Start => "the start",
            From::FirstStep => "the first step",
        };
        write!(f, "{mesh} {schedule}, {victim:?} {} ms after {from}", after.as_millis())
    }
}

/// All rounds, one after the other.
#[derive(Debug)]
pub(super) struct Plan(Chance);

impl Plan {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    pub(super) fn round(&mut self) -> Round {
        let (mesh, ranks) = self.pick(&MESHES);
        let schedule = self.pick(&SCHEDULES);
        let rank = u32::try_from(self.0.below(u64::from(ranks))).unwrap_or_default();
        let victim = if self.0.below(4) == 0 { Victim::Launcher } else { Victim::Rank(rank) };
        // One in four is killed while processes start, meet and load.
        let (from, most) = if self.0.below(4) == 0 { (From::Start, 1_500) } else { (From::FirstStep, 900) };
        Round { mesh, ranks, schedule, victim, from, after: Duration::from_millis(self.0.below(most)) }
    }

    fn pick<T: Copy, const N: usize>(&mut self, of: &[T; N]) -> T {
        of[usize::try_from(self.0.below(N as u64)).unwrap_or_default()]
    }
}

/// A sequence of numbers (`SplitMix64`, Steele, Lea and Flood 2014).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which is far below 2^64.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_that_visits_every_mesh_victim_and_moment() {
        let texts = |seed| {
            let mut plan = Plan::new(seed);
            (0..100).map(|_| plan.round().to_string()).collect::<Vec<_>>()
        };
        let rounds = texts(1);
        assert_eq!(rounds, texts(1));
        assert_ne!(rounds, texts(2));
        let words = MESHES.iter().map(|(mesh, _)| *mesh).chain(SCHEDULES);
        for word in words.chain(["Launcher", "Rank(0)", "Rank(3)", "the start", "the first step"]) {
            assert!(rounds.iter().any(|round| round.contains(word)), "{word}");
        }
    }
}
