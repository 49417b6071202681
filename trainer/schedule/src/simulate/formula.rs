//! [`formula`]: the closed forms of the literature for makespan and peak, to be printed beside what a simulation found. They
//! hold for equal stages and transfers that take no time; schedules and numbers for which none is known have none.
//!
//! Sources: GPipe (arXiv 1811.06965), 1F1B and its interleaved form (arXiv 2104.04473), the zero-bubble family
//! (arXiv 2401.10241, 2405.15362; what `VMin` and `VHalf` take to the half computation is of the order made here), DualPipe (arXiv 2412.19437).

use crate::{Shape, Times};

/// What a schedule takes according to the literature.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// From the first start to the last end.
    pub makespan: Option<f64>,
    /// The same as text, P, M, v, F, I, W standing for themselves.
    pub text: &'static str,
    /// Most microbatches alive on each rank (from F to W or B), in activations of a whole rank.
    pub peak: Option<Vec<f64>>,
}

/// Closed forms of the schedule that is called `name` as its generator calls itself. `times` are those of a whole rank's
/// share of one microbatch.
#[must_use]
pub fn formula(name: &str, shape: Shape, times: Times) -> Option<Formula> {
    if times.transfer > 0.0 || shape.ranks == 0 {
        return None;
    }
    let known =
        Known { ranks: shape.ranks, parts: shape.per_rank().max(1), microbatches: shape.microbatches, times };
    let (text, excess, peak) = known.of(name)?;
    let ideal = shape.microbatches as f64 * times.microbatch();
    let makespan = excess.map(|excess| ideal + excess);
    let peak = peak.map(|peak| (0..shape.ranks).map(|rank| known.peak(peak, rank)).collect());
    (makespan.is_some() || peak.is_some()).then_some(Formula { makespan, text, peak })
}

/// Which of the known forms a peak has.
#[derive(Debug, Clone, Copy)]
enum Peak {
    /// All microbatches.
    All,
    /// min(M, P − r).
    Steady,
    /// What the warm-up of the interleaved form brings.
    Rounds,
    /// The same on every rank.
    Flat(f64),
    /// (P + 4) div 3, on some ranks less where P leaves 2 when divided by 3.
    Third,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    ranks: usize,
    parts: usize,
    microbatches: usize,
    times: Times,
}

impl Known {
    /// Text, what the makespan is beyond the ideal, and the peak.
    fn of(&self, name: &str) -> Option<(&'static str, Option<f64>, Option<Peak>)> {
        let Times { forward, input, weight, .. } = self.times;
        let (ranks, parts, microbatches) = (self.ranks as f64, self.parts as f64, self.microbatches);
        let (fill, all) = (ranks - 1.0, self.times.microbatch());
        let full = microbatches >= 2 * self.ranks - 1;
        let rounds = microbatches.is_multiple_of(self.ranks);
        let many = self.ranks > 1 && microbatches >= 2 * self.ranks;
        // Weight gradients that take longer than what they are to fill, or nearly nothing, make other forms.
        let alike = (forward - input).abs() < 1e-12 && (input - weight).abs() < 1e-12;
        let fills = weight <= forward && weight <= input;
        Some(match (name, self.parts) {
            ("GPipe", 1) => ("(M + P - 1)(F + I + W)", Some(fill * all), Some(Peak::All)),
            ("1F1B", 1) => ("(M + P - 1)(F + I + W)", Some(fill * all), Some(Peak::Steady)),
            ("GPipe" | "LoopedBFS" | "LoopedBFSReversed", _) => (
                "(M + (P - 1)/v)(F + I + W)",
                (microbatches >= self.ranks).then_some(fill * all / parts),
                Some(Peak::All),
            ),
            ("Interleaved1F1B", _) => (
                "(M + (P - 1)/v)(F + I + W)",
                rounds.then_some(fill * all / parts),
                rounds.then_some(Peak::Rounds),
            ),
            ("ZBH1", 1) => (
                "M(F + I + W) + (P - 1)(F + I - W)",
                (fills && microbatches >= self.ranks).then_some(fill * (forward + input - weight)),
                Some(Peak::Flat(self.ranks.min(microbatches) as f64)),
            ),
            ("ZBH2", 1) => (
                "M(F + I + W) + (P - 1) max(F, F + I - 2W)",
                (fills && full).then_some(fill * forward.max(forward + input - 2.0 * weight)),
                full.then_some(Peak::Flat(2.0 * ranks - 1.0)),
            ),
            ("InterleavedZeroBubble", 2) => (
                "M(F + I + W) + (P - 1)(F + I - W)/2",
                (fills && rounds).then_some(fill * (forward + input - weight) / 2.0),
                rounds.then_some(Peak::Flat(ranks)),
            ),
            ("ZBVZeroBubble", 2) => (
                "M(F + I + W) + (P - 1)F/2",
                (alike && full).then_some(fill * forward / 2.0),
                full.then_some(Peak::Flat(ranks)),
            ),
            ("VMin", 2) => (
                "M(F + I + W) + (2P - 5/2)F, F more where 3 divides P",
                (alike && many).then(|| {
                    let more = if self.ranks.is_multiple_of(3) { 1.0 } else { 0.0 };
                    (2.0 * ranks - 2.5 + more) * forward
                }),
                many.then_some(Peak::Third),
            ),
            ("VHalf", 2) => (
                "M(F + I + W) + 3(P - 1)F/2, F/2 less where P is odd",
                (alike && many).then(|| {
                    let less = if self.ranks.is_multiple_of(2) { 0.0 } else { 0.5 };
                    (1.5 * fill - less) * forward
                }),
                many.then(|| Peak::Flat(((self.ranks + 2) / 2) as f64)),
            ),
            ("DualPipeV", 2) => (
                "M(F + I + W) + (P - 1)F/2",
                (alike && microbatches >= 2 * self.ranks).then_some(fill * forward / 2.0),
                Some(Peak::Flat(ranks + 0.5)),
            ),
            _ => return None,
        })
    }

    fn peak(&self, peak: Peak, rank: usize) -> f64 {
        let after = self.ranks.saturating_sub(rank + 1);
        match peak {
            Peak::All => self.microbatches as f64,
            Peak::Steady => self.microbatches.min(after + 1) as f64,
            Peak::Rounds => {
                let warm = (self.parts - 1) * self.ranks + 2 * after + 1;
                warm.min(self.parts * self.microbatches) as f64 / self.parts as f64
            }
            Peak::Flat(peak) => peak,
            Peak::Third => {
                let less = match (self.ranks % 3, rank) {
                    (2, 0) => 0.5,
                    (2, rank) if rank.is_multiple_of(3) => 1.0,
                    _ => 0.0,
                };
                ((self.ranks + 4) / 3) as f64 - less
            }
        }
    }
}
