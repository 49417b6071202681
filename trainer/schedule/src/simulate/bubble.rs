//! [`Bubbles`]: the three things that are called "the bubble". One schedule has all three; they differ in what idle time is
//! compared with, so a number without its definition says nothing.
//!
//! Sources: the share of the makespan is GPipe's; the share of the ideal time is Megatron-LM's (arXiv 2104.04473); the
//! longest rank's is that of zero-bubble pipeline parallelism (arXiv 2401.10241).

use super::Simulation;

/// Idle time by its three definitions, each as a share (0.25 is 25 %).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bubbles {
    /// Idle share of all ranks' time between the first start and the last end of all: 1 − busy / (P·T). With equal stages,
    /// 1F1B has (P−1)/(M+P−1).
    pub makespan: f64,
    /// Time beyond the ideal, relative to the ideal, which is the busiest rank's work: (T − T₀)/T₀. 1F1B: (P−1)/M.
    pub ideal: f64,
    /// Share of the longest rank's own time, first start to last end, beyond the busiest rank's work: (C − T₀)/C. Ranks
    /// that start late are not charged for it; it can be 0 where the makespan's share can't.
    pub longest_rank: f64,
}

impl Bubbles {
    /// Names, and what each is, in the order of the fields.
    pub const NAMES: [(&'static str, &'static str); 3] = [
        ("makespan", "idle share of all ranks between the first start and the last end"),
        ("ideal", "time beyond the ideal, relative to the ideal"),
        ("longest rank", "idle share of the rank that takes longest from its own start to its own end"),
    ];

    /// In the order of [`Self::NAMES`].
    #[must_use]
    pub const fn values(&self) -> [f64; 3] {
        [self.makespan, self.ideal, self.longest_rank]
    }

    pub(super) fn of(simulation: &Simulation) -> Self {
        let Simulation { makespan, busy, .. } = simulation;
        let sum: f64 = busy.iter().sum();
        let work = busy.iter().copied().fold(0.0, f64::max);
        let longest = simulation.longest_rank();
        // Schedules that take no time have no idle time.
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let all = makespan * busy.len() as f64;
        Self {
            makespan: share(all - sum, all),
            ideal: share(makespan - work, work),
            longest_rank: share(longest - work, longest),
        }
    }
}
