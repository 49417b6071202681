//! `VMin` and `VHalf`: two stages on each rank, in a V, and a third or a half of the activations that 1F1B's first rank keeps, the same
//! on every rank. Qi et al., "Pipeline Parallelism with Controllable Memory", 2024 (arXiv 2405.15362).
//!
//! Every microbatch goes through the ranks in one pattern, a building block, and the next one follows six slots later, which is what a
//! rank has to compute of it: F, I and W of two stages. How long a microbatch lives on a rank is in the block, and with it the peak. Going
//! down, a rank keeps a microbatch long on the first ranks and shortly on the last ones; coming back it is the other way round; so in a V
//! both together can be the same everywhere, and small where the block is short. [`Block`] has the slots of F and I; where W goes
//! is up to [`filled`], as in the paper's reordering: where a rank would idle, or where it must make room.
//!
//! The shorter block leaves more idle at both ends: with equal times, and P ranks, about 2P of `VMin` and 3P/2 of `VHalf`, beside 3P of
//! 1F1B, and no more in between. With unequal times the shortest block idles between microbatches as well.

use std::ops::RangeInclusive;

use super::{Action, Generator, Shape, filled::filled};
use crate::{Placement, ScheduleError, Step};

/// Slots from a microbatch to the next one.
const PERIOD: usize = 6;

/// `VMin`.
#[derive(Debug)]
pub(super) struct VMin;

/// `VHalf`.
#[derive(Debug)]
pub(super) struct VHalf;

/// Where the computations of microbatch 0 lie on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    /// F and I of the stage on the way down.
    down: [usize; 2],
    /// F and I of the stage on the way back.
    back: [usize; 2],
}

impl VMin {
    /// A slot from rank to rank each way. Two slots more before the first I where 3 divides the ranks, for else it would
    /// fall on a later microbatch's F.
    const fn block(ranks: usize, rank: usize) -> Block {
        let turn = 2 * ranks - 1;
        let loss = 2 * ranks + if ranks.is_multiple_of(3) { 2 } else { 0 };
        Block { down: [rank, loss + turn - rank], back: [turn - rank, loss + rank] }
    }
}

impl VHalf {
    /// Two slots from rank to rank on the way from the first rank to the last one, one on the way from the last rank to the first; three slots
    /// more before the first I where the ranks are even, for else it would fall on a later microbatch's F.
    const fn block(ranks: usize, rank: usize) -> Block {
        let loss = 3 * ranks + if ranks.is_multiple_of(2) { 3 } else { 0 };
        Block { down: [2 * rank, loss + 3 * ranks - 2 - rank], back: [3 * ranks - 1 - rank, loss + 2 * rank] }
    }
}

impl Generator for VMin {
    fn name(&self) -> &'static str {
        "VMin"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["zbv_min"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("1F1B")
    }

    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::v(shape.stages, shape.ranks)
    }

    fn rows(&self, shape: Shape) -> Vec<Vec<Action>> {
        rows(shape, Self::block, shape.ranks.saturating_add(4) / 3)
    }
}

impl Generator for VHalf {
    fn name(&self) -> &'static str {
        "VHalf"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["zbv_half"]
    }

    fn stages_per_rank(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn with_one_stage(&self) -> Option<&'static str> {
        Some("1F1B")
    }

    fn placement(&self, shape: Shape) -> Result<Placement, ScheduleError> {
        Placement::v(shape.stages, shape.ranks)
    }

    fn rows(&self, shape: Shape) -> Vec<Vec<Action>> {
        rows(shape, Self::block, shape.ranks.saturating_add(2) / 2)
    }
}

/// `peak`: activations of so many microbatches are enough for the block.
fn rows(shape: Shape, block: fn(usize, usize) -> Block, peak: usize) -> Vec<Vec<Action>> {
    let one = |rank| repeated(shape, rank, block(shape.ranks, rank));
    filled(shape, (0..shape.ranks).map(one).collect(), 2 * peak)
}

/// F and I of all microbatches on a rank, by slot.
fn repeated(shape: Shape, rank: usize, block: Block) -> Vec<Action> {
    let stages = [rank, (2 * shape.ranks).saturating_sub(rank + 1)];
    let steps: [fn(usize) -> Step; 2] = [Step::F, Step::I];
    let mut cells = Vec::new();
    for (stage, slots) in stages.into_iter().zip([block.down, block.back]) {
        for (step, slot) in steps.into_iter().zip(slots) {
            let all = 0..shape.microbatches;
            cells.extend(all.map(|m| (slot + PERIOD * m, Action::new(stage, step(m)))));
        }
    }
    cells.sort_by_key(|(slot, _)| *slot);
    cells.into_iter().map(|(_, cell)| cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Times, generate, named, simulate};

    const BLOCKS: [fn(usize, usize) -> Block; 2] = [VMin::block, VHalf::block];

    #[test]
    fn no_two_computations_of_a_block_fall_on_one_slot_of_its_period() {
        for ranks in 1..=64 {
            for (block, rank) in BLOCKS.into_iter().flat_map(|it| (0..ranks).map(move |rank| (it, rank))) {
                let Block { down: [a, d], back: [b, c] } = block(ranks, rank);
                assert!(a < b && b < c && c < d, "{ranks} ranks, rank {rank}");
                let mut slots = [a, b, c, d].map(|slot| slot % PERIOD);
                slots.sort_unstable();
                assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "{ranks} ranks, rank {rank}");
            }
        }
    }

    /// Peaks and idle times that the authors publish beside the paper: (P + 4) div 3 and (P + 2) div 2 microbatches; 2/3 and 1/2 of
    /// 1F1B's 3(P − 1), within one computation of a rank.
    #[test]
    fn peaks_are_the_published_ones_and_idle_times_two_thirds_and_half_of_1f1bs() {
        for (name, peak, share) in [
            ("VMin", (|ranks| (ranks + 4) / 3) as fn(usize) -> usize, 2.0 / 3.0),
            ("VHalf", |ranks| (ranks + 2) / 2, 0.5),
        ] {
            for ranks in 2..=16 {
                for microbatches in [2 * ranks, 4 * ranks + 1] {
                    let shape = Shape { stages: 2 * ranks, ranks, microbatches };
                    let table = generate(named(name).unwrap(), shape).unwrap();
                    let found = simulate(&table, &Times::UNIT.of_part(2)).unwrap();
                    let most = found.peak_live.iter().max().copied().unwrap();
                    assert_eq!(most, 2 * peak(ranks), "{name} on {ranks} ranks");
                    let idle = found.makespan - 3.0 * microbatches as f64;
                    let published = share * 3.0 * (ranks - 1) as f64;
                    assert!(
                        (idle - published).abs() <= 0.5 + 1e-9,
                        "{name} on {ranks} ranks: {idle}, {published}"
                    );
                }
            }
        }
    }
}
