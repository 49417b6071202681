//! [`Contrast`]: two runs side by side: speed, how steps' times are distributed, peaks of each stage, and what was set
//! otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::{History, STEP_TIME, percentile};

/// One run in figures.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Figures {
    /// Steps that were recorded.
    pub steps: usize,
    /// Tokens a second, the median over steps.
    pub tokens_per_second: Option<f64>,
    /// Seconds of a step: 50th, 90th and 99th percentile.
    pub step_seconds: [f64; 3],
    /// (90th − 10th percentile) / median.
    pub spread: f64,
    /// Idle share of all ranks in the pipeline, from 0 to 1.
    pub bubble: Option<f64>,
    /// Communication's share of the step, from 0 to 1: the median, over ranks the largest.
    pub communication: Option<f64>,
    /// Most resident GiB of a rank, by rank.
    pub memory_gib: BTreeMap<usize, f64>,
    /// Most microbatches alive at once, by stage.
    pub live: BTreeMap<usize, u64>,
    /// Computing seconds of a step, by stage.
    pub stage_seconds: BTreeMap<usize, f64>,
}

/// Two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contrast {
    /// The first.
    pub first: Figures,
    /// The second.
    pub second: Figures,
    /// Facts that differ: name, in the first, in the second.
    pub set: Vec<(String, String, String)>,
}

impl Figures {
    /// Of a run.
    #[must_use]
    pub fn of(run: &History) -> Self {
        let mut times = run.step_times();
        times.sort_by(f64::total_cmp);
        let shares = run.ranks.iter().filter_map(|rank| rank.median("comm/share(%)"));
        Self {
            steps: run.ranks.first().map_or(0, |rank| rank.values(STEP_TIME).len()),
            tokens_per_second: run.ranks.first().and_then(|rank| rank.median("throughput(tps)")),
            step_seconds: [0.5, 0.9, 0.99].map(|share| percentile(&times, share)),
            spread: run.spread(),
            bubble: run.bubble(),
            communication: shares.reduce(f64::max).map(|percent| percent / 100.0),
            memory_gib: run
                .ranks
                .iter()
                .map(|rank| {
                    (rank.rank, rank.values("memory/max_resident(GiB)").into_iter().fold(0.0, f64::max))
                })
                .collect(),
            live: run.live(),
            stage_seconds: run.stage_seconds(),
        }
    }
}

impl Contrast {
    /// Of two runs.
    #[must_use]
    pub fn of(first: &History, second: &History) -> Self {
        let facts = |run: &History| run.ranks.first().map(|rank| rank.facts.clone()).unwrap_or_default();
        let (a, b) = (facts(first), facts(second));
        let names: BTreeSet<&String> =
            a.keys().chain(b.keys()).filter(|name| name.starts_with("run/")).collect();
        let text = |run: &History, name: &str| run.fact(name).unwrap_or_else(|| "not recorded".to_owned());
        let set = names.into_iter().filter(|name| a.get(*name) != b.get(*name));
        let set = set.map(|name| {
            let short = name.trim_start_matches("run/").to_owned();
            (short, text(first, name), text(second, name))
        });
        Self { first: Figures::of(first), second: Figures::of(second), set: set.collect() }
    }
}

impl fmt::Display for Contrast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (&self.first, &self.second);
        writeln!(f, "\n{:<34} {:>12} {:>12} {:>9}", "", "first", "second", "second/first")?;
        let mut line = |what: &str, a: Option<f64>, b: Option<f64>, scale: f64, digits: usize| {
            let text = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |it| format!("{:.digits$}", it * scale))
            };
            let ratio =
                a.zip(b).filter(|(a, _)| *a > 0.0).map_or_else(String::new, |(a, b)| format!("{:.3}", b / a));
            writeln!(f, "{what:<34} {:>12} {:>12} {ratio:>9}", text(a), text(b))
        };
        line("tokens/s (median)", a.tokens_per_second, b.tokens_per_second, 1.0, 0)?;
        for (name, (a, b)) in ["p50", "p90", "p99"].iter().zip(a.step_seconds.into_iter().zip(b.step_seconds))
        {
            line(&format!("step time {name}, ms"), Some(a), Some(b), 1e3, 2)?;
        }
        line("step time spread, %", Some(a.spread), Some(b.spread), 100.0, 1)?;
        line("bubble, % of all ranks' time", a.bubble, b.bubble, 100.0, 1)?;
        line("communication, % of the step", a.communication, b.communication, 100.0, 1)?;
        let most = |of: &Figures| of.memory_gib.values().copied().reduce(f64::max);
        line("most resident of a rank, MiB", most(a), most(b), 1024.0, 0)?;
        let stages: BTreeSet<&usize> = a.live.keys().chain(b.live.keys()).collect();
        for stage in stages {
            let live = |of: &Figures| of.live.get(stage).map(|it| *it as f64);
            line(&format!("stage {stage}: microbatches alive"), live(a), live(b), 1.0, 0)?;
            let seconds = |of: &Figures| of.stage_seconds.get(stage).copied();
            line(&format!("stage {stage}: computing a step, ms"), seconds(a), seconds(b), 1e3, 2)?;
        }
        for (name, a, b) in &self.set {
            writeln!(f, "{name:<34} {a:>12} {b:>12}")?;
        }
        writeln!(f, "({} and {} steps; the first of each is left out of times)", a.steps, b.steps)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::metrics::{FixedClock, Pace, Recorder, Setting, Span, Start, Step, Value};

    fn recorded(folder: &Path, schedule: &str, seconds: f64) -> History {
        for rank in 0..2 {
            let setting = Setting { rank, log_freq: 100, flops: None, tensorboard: false };
            let fact = ("run/schedule".to_owned(), Value::Text(schedule.to_owned()));
            let start = Start { facts: vec![fact], ..Start::default() };
            let mut recorder =
                Recorder::open(folder, setting, &start, Arc::new(FixedClock::new(0, 1))).unwrap();
            for step in 1..=11 {
                let texts: &[&str] = if rank == 0 { &["0F0", "0F1", "0F2"] } else { &["1F0", "1F1"] };
                let end_us = if rank == 0 { 800 } else { 400 };
                let span =
                    |text: &str, begin_us, end_us| Span { action: text.parse().unwrap(), begin_us, end_us };
                let length = end_us / texts.len() as u64;
                let mut spans: Vec<Span> = texts
                    .iter()
                    .zip(0..)
                    .map(|(text, at)| span(text, at * length, (at + 1) * length))
                    .collect();
                spans.last_mut().unwrap().end_us = end_us;
                spans.push(span(&format!("{rank}REDUCE_GRAD"), end_us, 1_000));
                let pace = Pace::new(spans, 1e-4, 2e-4);
                let step = Step {
                    step,
                    loss: 1.0,
                    grad_norm: 1.0,
                    lr: 1e-3,
                    tokens: 1_000,
                    seconds: if step == 1 { 9.0 } else { seconds },
                    data_seconds: 0.0,
                    stall_seconds: 0.0,
                    pace,
                };
                recorder.step(&step, &mut Vec::new()).unwrap();
            }
        }
        History::read(folder).unwrap()
    }

    #[test]
    fn runs_are_compared_by_speed_times_peaks_and_settings() {
        let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
        let slow = recorded(folders[0].path(), "GPipe", 0.2);
        let fast = recorded(folders[1].path(), "1F1B", 0.1);
        let contrast = Contrast::of(&slow, &fast);
        assert_eq!(contrast.set, [("schedule".to_owned(), "GPipe".to_owned(), "1F1B".to_owned())]);
        let (a, b) = (&contrast.first, &contrast.second);
        assert_eq!((a.steps, a.step_seconds, b.step_seconds[2]), (11, [0.2; 3], 0.1));
        assert!((b.tokens_per_second.unwrap() - 10_000.0).abs() < 1e-6);
        // Ranks compute 0.8 and 0.4 of 1 ms.
        assert!((a.bubble.unwrap() - 0.4).abs() < 1e-9, "{a:?}");
        assert!((b.communication.unwrap() - 3e-3).abs() < 1e-9);
        assert_eq!(a.live, BTreeMap::from([(0, 3), (1, 2)]));
        let text = contrast.to_string();
        for words in [
            "step time p99, ms",
            "200.00       100.00     0.500",
            "stage 1: microbatches alive",
            "GPipe         1F1B",
        ] {
            assert!(text.contains(words), "{words:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_folder_without_metrics_is_refused_with_what_to_give() {
        let folder = tempfile::tempdir().unwrap();
        let error = History::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no metrics in"), "{error}");
        assert!(error.hint_text().unwrap().contains("metrics.folder"));
    }
}
