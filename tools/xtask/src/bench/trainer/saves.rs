//! What a save every ten steps costs them.
//!
//! Of saves, the median step is compared as well as the mean, which alone sees what a save costs the few steps beside it; and what the
//! training thread itself lost to each: beginning it, back-pressure, and waiting for the copy before the next update.

use std::path::PathBuf;

use super::Part;
use super::contest::{Contest, Ran, row};
use super::row::{Relation, Row};
use super::sizes::Sizes;
use super::turns::Answer;
use super::way::{Ground, Way, remove};
use crate::bench::figure::Target;
use crate::bench::measurement::Spread;
use crate::error::Error;

/// Steps between two saves, and of a turn.
const STEPS: usize = 10;
const STEP: Target = Target::AtMost(1.03);
const STALL: Target = Target::AtMost(0.01);

/// Of saves in each of `folders`.
pub(super) fn rows(
    ground: &Ground,
    folders: &[PathBuf],
    sizes: Sizes,
    rounds: u32,
) -> Result<Vec<Row>, Error> {
    let roots: Vec<PathBuf> = folders.iter().map(|folder| folder.join("ckpt-trainer-bench-saves")).collect();
    // What an earlier measurement left would be gone on from.
    roots.iter().try_for_each(|root| remove(root))?;
    let plain = Way::ours("exact mode, without saves", 1, &[]);
    let saving = |(folder, root): (&PathBuf, &PathBuf)| {
        let name = format!("a save every {STEPS} steps in {}", folder.display());
        Way::ours(&name, 1, &[]).saving(root, STEPS)
    };
    let ways = [plain].into_iter().chain(folders.iter().zip(&roots).map(saving)).collect();
    let all = Contest { sizes, steps: STEPS, ways }.run(ground, rounds);
    roots.iter().try_for_each(|root| remove(root))?;
    Ok(match all?.split_first() {
        Some((plain, saving)) => saving.iter().flat_map(|saving| of(saving, plain)).collect(),
        None => Vec::new(),
    })
}

fn of(saving: &Ran, plain: &Ran) -> [Row; 3] {
    let mean = row(Part::Saves, Relation::TimesAsLong, (saving, plain), Some(STEP));
    let medians = |ran: &Ran| -> Vec<f64> {
        ran.answers.iter().map(|answer| Spread::of(answer.steps.clone()).median).collect()
    };
    let names = |what: &str| (format!("{what}, {}", saving.way.name), plain.way.name.clone());
    let (what, beside) = names("median step");
    let median = Row::new(
        (Part::Saves, Relation::TimesAsLong),
        (what, medians(saving)),
        (beside, medians(plain)),
        Some(STEP),
    );
    let (what, beside) = names("lost to a save, 99 of 100");
    let mut lost: Vec<f64> = saving.answers.iter().flat_map(|answer| answer.saves.clone()).collect();
    lost.sort_by(f64::total_cmp);
    let step = Spread::of(plain.answers.iter().flat_map(|answer: &Answer| answer.steps.clone())).median;
    let stall = Row::new(
        (Part::Saves, Relation::ShareOf),
        (what, vec![percentile(&lost, 99)]),
        (beside, vec![step]),
        Some(STALL),
    );
    [median, mean, stall]
}

/// The least of `sorted` that so many of a hundred do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(name: &str, steps: &[f64], saves: &[f64]) -> Ran {
        let answer = Answer {
            steps: steps.to_vec(),
            processor: steps.iter().sum(),
            parameters: 7,
            loss: Some(1.0),
            from: None,
            loading: None,
            saves: saves.to_vec(),
            during_saves: 1,
        };
        Ran { way: Way::ours(name, 1, &[]), answers: vec![answer] }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn a_save_that_slows_one_step_shows_in_the_mean_and_not_in_the_median() {
        let plain = ran("plain", &[1.0; 5], &[]);
        let [median, mean, stall] = of(&ran("saving", &[2.0, 1.0, 1.0, 1.0, 1.0], &[0.02]), &plain);
        assert!(close(median.value.median, 1.0) && median.met == Some(true));
        assert!(close(mean.value.median, 1.2) && mean.met == Some(false));
        assert!(close(stall.value.median, 0.02) && stall.met == Some(false));
    }

    #[test]
    fn the_99th_of_a_hundred_is_the_second_largest_and_of_few_the_largest() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert!(close(percentile(&hundred, 99), 99.0));
        assert!(close(percentile(&[1.0, 2.0, 3.0], 99), 3.0));
        assert!(percentile(&[], 99).is_nan());
    }
}
