//! `ckpt-train schedule compare`: schedules for the same numbers, the fastest that fits the memory first; what each gains
//! over 1F1B, and why some can't be.

use std::fmt::Write as _;

use schedule::{Bubbles, known};
use serde_json::{Value, json};
use trainer::{Error, Result};

use super::{
    args::Compare,
    numbers::{held, short},
    subject::{AUTO, Setting, Subject},
};

/// What every gain is over.
const BASE: &str = "1F1B";

/// One schedule's figures.
struct Entry {
    name: String,
    per_rank: usize,
    makespan: f64,
    bubbles: Bubbles,
    peaks: Vec<f64>,
    /// The first rank that holds more than it may.
    over: Option<usize>,
}

/// All of them.
struct Report {
    entries: Vec<Entry>,
    /// Names, and why they can't be.
    refused: Vec<(String, String)>,
    base: f64,
    limits: Option<Vec<f64>>,
    unit: &'static str,
    splittable: f64,
}

pub(super) fn run(options: &Compare) -> Result<u8> {
    let setting = Setting::new(&options.numbers)?;
    setting.complete()?;
    let limits = setting.limits()?;
    let mut report = Report {
        entries: Vec::new(),
        refused: Vec::new(),
        base: entry(setting.named(BASE)?, None)?.makespan,
        limits,
        unit: setting.unit(),
        splittable: options.numbers.splittable,
    };
    let all = || known().into_iter().chain([AUTO]).map(str::to_owned).collect();
    let names: Vec<String> = if options.names.is_empty() { all() } else { options.names.clone() };
    for name in names {
        report.add(&setting, &name)?;
    }
    let fits = |entry: &Entry| entry.over.is_some();
    report.entries.sort_by(|a, b| fits(a).cmp(&fits(b)).then(a.makespan.total_cmp(&b.makespan)));
    if options.numbers.json {
        super::json(&report.json())
    } else {
        super::super::print(&report.text(&setting))
    }
}

fn entry(subject: Subject, limits: Option<&[f64]>) -> Result<Entry> {
    let simulation = schedule::simulate(&subject.table, &subject.timing)?;
    let usage = schedule::memory(&subject.table, &simulation, &subject.memory);
    let peaks: Vec<f64> = usage.iter().map(|usage| usage.peak).collect();
    let over =
        |limits: &[f64]| peaks.iter().zip(limits).position(|(peak, limit)| *peak > limit * (1.0 + 1e-9));
    Ok(Entry {
        over: limits.and_then(over),
        name: subject.name,
        per_rank: subject.shape.per_rank(),
        makespan: simulation.makespan,
        bubbles: simulation.bubbles(),
        peaks,
    })
}

impl Report {
    /// A name that nobody knows is refused; one that can't be for these numbers is told.
    fn add(&mut self, setting: &Setting<'_>, name: &str) -> Result<()> {
        let limits = self.limits.clone();
        let made = if name.eq_ignore_ascii_case(AUTO) {
            match &limits {
                Some(limits) => vec![(AUTO.to_owned(), setting.planned(AUTO.to_owned(), limits.clone()))],
                None => automatic(setting)?,
            }
        } else {
            let name = schedule::named(name)?.name();
            vec![(name.to_owned(), setting.named(name))]
        };
        for (name, subject) in made {
            match subject.and_then(|subject| entry(subject, limits.as_deref())) {
                Ok(entry) => self.entries.push(entry),
                Err(error) => self.refused.push((name, why(&error))),
            }
        }
        Ok(())
    }

    fn gain(&self, entry: &Entry) -> f64 {
        if entry.makespan > 0.0 { self.base / entry.makespan - 1.0 } else { 0.0 }
    }

    fn text(&self, setting: &Setting<'_>) -> String {
        let mut text = format!(
            "{} ranks, {} microbatches; {:.0} % of the weight gradients splittable; peak in {}{}\n\n",
            setting.ranks,
            setting.microbatches,
            100.0 * self.splittable,
            if self.unit == "memory" { "bytes or what --memory is in" } else { self.unit },
            self.limits.as_ref().map_or_else(String::new, |limits| format!(", limit {}", list(limits)))
        );
        let names = self.entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0).max(8);
        let _ = writeln!(
            text,
            "{:<names$}  stages  makespan  throughput   bubble: makespan  ideal  longest rank   peak of each rank",
            "schedule"
        );
        for entry in self.entries.iter().filter(|entry| entry.over.is_none()) {
            let [makespan, ideal, longest] = entry.bubbles.values().map(|share| 100.0 * share);
            let _ = writeln!(
                text,
                "{:<names$}  {:>6}  {:>8}  {:>+9.1} %        {makespan:>8.1} % {ideal:>5.1} %       {longest:>5.1} %   {}",
                entry.name,
                entry.per_rank,
                short(entry.makespan),
                100.0 * self.gain(entry),
                list(&entry.peaks)
            );
        }
        let over = self.entries.iter().filter_map(|entry| Some((entry, entry.over?)));
        for (entry, rank) in over {
            let (peak, limit) =
                (entry.peaks.get(rank), self.limits.as_ref().and_then(|limits| limits.get(rank)));
            let _ = writeln!(
                text,
                "{:<names$}  over the limit: rank {rank} would hold {} of {}{}",
                entry.name,
                held(peak.copied().unwrap_or(0.0)),
                held(limit.copied().unwrap_or(0.0)),
                self.nearest().map_or_else(String::new, |name| format!("; {name} fits"))
            );
        }
        for (name, why) in &self.refused {
            let _ = writeln!(text, "{name:<names$}  can't be: {why}");
        }
        let _ = writeln!(
            text,
            "\nthroughput is against {BASE}'s; makespan: {}; ideal: {}; longest rank: {}",
            Bubbles::NAMES[0].1,
            Bubbles::NAMES[1].1,
            Bubbles::NAMES[2].1
        );
        text
    }

    /// The fastest that fits.
    fn nearest(&self) -> Option<&str> {
        self.entries.iter().find(|entry| entry.over.is_none()).map(|entry| entry.name.as_str())
    }

    fn json(&self) -> Value {
        let entries = self.entries.iter().map(|entry| {
            json!({
                "schedule": entry.name,
                "stages_per_rank": entry.per_rank,
                "makespan": entry.makespan,
                "throughput_gain": self.gain(entry),
                "bubbles": { "makespan": entry.bubbles.makespan, "ideal": entry.bubbles.ideal, "longest_rank": entry.bubbles.longest_rank },
                "peak": entry.peaks,
                "fits": entry.over.is_none(),
            })
        });
        let refused = self.refused.iter().map(|(name, why)| json!({ "schedule": name, "why": why }));
        json!({
            "base": BASE,
            "splittable": self.splittable,
            "memory_unit": self.unit,
            "limits": self.limits,
            "schedules": entries.collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
        })
    }
}

/// Without a limit: within what 1F1B's first rank holds, and within twice that.
fn automatic(setting: &Setting<'_>) -> Result<Vec<(String, Result<Subject>)>> {
    let memory = setting.memory(setting.ranks, 1)?;
    let within = |times: usize| {
        let limit = |it: &schedule::StageMemory| {
            it.weights + it.activation.max(it.kept) * (times * setting.ranks) as f64
        };
        let limits: Vec<f64> = memory.stages.iter().map(limit).collect();
        let name = if times == 1 {
            "auto, P microbatches".to_owned()
        } else {
            format!("auto, {times}P microbatches")
        };
        (name.clone(), setting.planned(name, limits))
    };
    Ok(vec![within(1), within(2)])
}

/// In one line, without the schedule's own name before it.
fn why(error: &Error) -> String {
    let text = error.to_string();
    error.hint_text().map_or_else(|| text.clone(), |hint| format!("{text}; {hint}"))
}

/// One number if all are alike, else all, or from least to most where they are many.
fn list(amounts: &[f64]) -> String {
    let (least, most) =
        amounts.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), it| (least.min(*it), most.max(*it)));
    if amounts.is_empty() || most - least <= 1e-9 * most {
        return held(most);
    }
    if amounts.len() > 8 {
        return format!("{} to {}", held(least), held(most));
    }
    amounts.iter().map(|amount| held(*amount)).collect::<Vec<_>>().join(" ")
}
