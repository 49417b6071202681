//! What the turns come to: medians, ratios within a round, and what is printed.

use serde::Serialize;

use super::Way;
use super::turns::Answer;
use crate::bench::measurement::Spread;
use crate::error::Error;

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// Tokens of a step.
    tokens: u32,
    parameters: u64,
    processors: usize,
    /// Load averages before and after.
    load: [Option<f64>; 2],
    ways: Vec<Took>,
    saves: Vec<Saves>,
}

/// What one way took.
#[derive(Debug, Serialize)]
struct Took {
    what: String,
    /// Mean seconds of a step, by round.
    step: Spread,
    tokens_per_second: f64,
    /// Processor time of a step.
    processor: Spread,
    /// How many times as fast as PyTorch with its default optimizer.
    over_torch: Spread,
    /// The same, by processor time.
    over_torch_by_processor: Spread,
}

/// What saves in one folder cost.
#[derive(Debug, Serialize)]
struct Saves {
    folder: String,
    count: usize,
    /// Steps that ended while a save was being written, of all.
    during_saves: usize,
    /// The median of all steps, over that without saves.
    median_step: f64,
    /// Mean steps of a round, over those without saves.
    mean_step: Spread,
    /// The same of processor time, that of saving threads included.
    processor: Spread,
    /// What a save took of the training thread, as a share of a step: half of the saves less than this.
    stall_half: f64,
    /// And 99 of 100.
    stall_most: f64,
}

impl Figures {
    pub(super) fn new(
        tokens: u32,
        load: [Option<f64>; 2],
        speed: &[(Way, Vec<Answer>)],
        saving: &[(Way, Vec<Answer>)],
    ) -> Result<Self, Error> {
        let parameters = same_model(speed.iter().chain(saving).flat_map(|(_, all)| all))?;
        let torch = of(speed, &Way::Torch { fused: false });
        let ways = speed.iter().map(|(way, all)| took(way, all, torch, tokens)).collect();
        let plain = of(saving, &Way::PLAIN);
        let saves = saving.iter().filter_map(|(way, all)| match way {
            Way::Saving(folder) => Some(saves(folder.display().to_string(), all, plain)),
            _ => None,
        });
        let saves = saves.collect();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { tokens, parameters, processors, load, ways, saves })
    }

    pub(super) fn print(&self) {
        let load = self.load.map(|load| load.map_or_else(|| "?".to_owned(), |load| format!("{load:.1}")));
        println!(
            "a training step of {} tokens, {} parameters, one thread, f32; {} processors, load {} to {}; medians (least to most)",
            self.tokens, self.parameters, self.processors, load[0], load[1]
        );
        for took in &self.ways {
            let Took { what, step, processor, over_torch: wall, over_torch_by_processor: used, .. } = took;
            println!(
                "  {what:<34}{:>8.1} ms ({:.1} to {:.1}) {:>7.0} tokens/s  processor {:>7.1} ms",
                step.median * 1e3,
                step.least * 1e3,
                step.most * 1e3,
                took.tokens_per_second,
                processor.median * 1e3
            );
            println!(
                "  {:<34}{:>8.2} times as fast as PyTorch ({:.2} to {:.2}); by processor time {:.2} ({:.2} to {:.2})",
                "", wall.median, wall.least, wall.most, used.median, used.least, used.most
            );
        }
        for saves in &self.saves {
            let Saves { folder, count, mean_step: mean, .. } = saves;
            println!(
                "  {count} saves in {folder}: median step {:.3} of that without, mean step {:.3} ({:.3} to {:.3}), \
                 processor time {:.3}; the training thread lost {:.2} % of a step to a save (99 of 100: {:.2} %); {} steps ended during saves",
                saves.median_step,
                mean.median,
                mean.least,
                mean.most,
                saves.processor.median,
                saves.stall_half * 1e2,
                saves.stall_most * 1e2,
                saves.during_saves
            );
        }
        println!(
            "  targets: as fast as PyTorch; median step at most 1.03 of that without saves; at most 1 % of a step lost"
        );
    }
}

fn of<'a>(answers: &'a [(Way, Vec<Answer>)], way: &Way) -> &'a [Answer] {
    answers.iter().find(|(it, _)| it == way).map_or(&[][..], |(_, all)| all)
}

/// That all train a model of the same size.
fn same_model<'a>(answers: impl Iterator<Item = &'a Answer>) -> Result<u64, Error> {
    let mut sizes = answers.map(|answer| answer.parameters);
    let first = sizes.next().unwrap_or_default();
    let others = sizes.filter(|size| *size != first).count();
    if others == 0 {
        return Ok(first);
    }
    Err(Error::Checks { count: others, what: "the turns trained another model: checks of sizes".to_owned() })
}

fn took(way: &Way, all: &[Answer], torch: &[Answer], tokens: u32) -> Took {
    let step = Spread::of(all.iter().map(Answer::mean));
    Took {
        what: match way {
            Way::Ours(mode) => format!("{mode} mode"),
            Way::Saving(folder) => format!("exact mode, saves in {}", folder.display()),
            Way::Torch { fused: false } => "PyTorch, eager".to_owned(),
            Way::Torch { fused: true } => "PyTorch, eager, fused AdamW".to_owned(),
        },
        tokens_per_second: f64::from(tokens) / step.median,
        step,
        processor: Spread::of(all.iter().map(Answer::used)),
        over_torch: Spread::of(torch.iter().zip(all).map(|(torch, it)| torch.mean() / it.mean())),
        over_torch_by_processor: Spread::of(
            torch.iter().zip(all).map(|(torch, it)| torch.used() / it.used()),
        ),
    }
}

fn saves(folder: String, all: &[Answer], plain: &[Answer]) -> Saves {
    let steps = |all: &[Answer]| Spread::of(all.iter().flat_map(|answer| answer.steps.clone())).median;
    let step = steps(plain);
    let mut lost: Vec<f64> = all.iter().flat_map(|answer| answer.saves.clone()).collect();
    lost.sort_by(f64::total_cmp);
    Saves {
        folder,
        count: lost.len(),
        during_saves: all.iter().map(|answer| answer.during_saves).sum(),
        median_step: steps(all) / step,
        mean_step: Spread::of(all.iter().zip(plain).map(|(with, without)| with.mean() / without.mean())),
        processor: Spread::of(all.iter().zip(plain).map(|(with, without)| with.used() / without.used())),
        stall_half: percentile(&lost, 50) / step,
        stall_most: percentile(&lost, 99) / step,
    }
}

/// The least of `sorted` that so many of a hundred do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(steps: &[f64], processor: f64) -> Answer {
        Answer { steps: steps.to_vec(), processor, parameters: 7, loss: 1.0, saves: vec![], during_saves: 0 }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn ratios_are_within_a_round_so_that_a_slow_machine_slows_both() {
        let torch = [answer(&[2.0, 4.0], 6.0), answer(&[20.0, 40.0], 6.0)];
        let ours = [answer(&[1.0, 2.0], 3.0), answer(&[10.0, 20.0], 3.0)];
        let took = took(&Way::Ours("exact"), &ours, &torch, 30);
        assert_eq!(took.over_torch.rounds, [2.0, 2.0]);
        assert!(close(took.over_torch_by_processor.median, 2.0) && close(took.step.least, 1.5));
    }

    #[test]
    fn a_save_that_slows_one_step_shows_in_the_mean_and_not_in_the_median() {
        let plain = [answer(&[1.0; 5], 5.0)];
        let mut saving = answer(&[2.0, 1.0, 1.0, 1.0, 1.0], 6.0);
        saving.saves = vec![0.25];
        let saves = saves("x".to_owned(), &[saving], &plain);
        assert!(close(saves.median_step, 1.0) && close(saves.mean_step.median, 1.2));
        assert!(close(saves.stall_half, 0.25) && close(saves.stall_most, 0.25));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let all: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(
            (percentile(&all, 50), percentile(&all, 99), percentile(&all[..1], 99)),
            (100.0, 198.0, 1.0)
        );
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn another_model_is_no_comparison() {
        let mut other = answer(&[1.0], 1.0);
        other.parameters = 8;
        let turns = [answer(&[1.0], 1.0), other];
        assert!(same_model(turns.iter()).is_err());
        assert_eq!(same_model(turns[..1].iter()).unwrap(), 7);
    }
}
