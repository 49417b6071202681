//! `ckpt-train schedule simulate`: time, idle time by its three definitions, memory; beside the literature's formulas.

use std::fmt::Write as _;

use schedule::{Bubbles, Communication, Formula, Simulation, Usage};
use serde_json::{Value, json};
use trainer::Result;

use super::{
    args::Simulate,
    numbers::{held, short},
    subject::{Setting, Subject},
};

/// What is printed of one schedule.
struct Report {
    subject: Subject,
    simulation: Simulation,
    usage: Vec<Usage>,
    /// Closed forms, where times are alike on all stages.
    formula: Option<Formula>,
    /// The makespan with blocking communication.
    lowered: Option<f64>,
    unit: &'static str,
}

pub(super) fn run(options: &Simulate) -> Result<u8> {
    let mut setting = Setting::new(&options.which.numbers)?;
    let subject = setting.which(&options.which)?;
    let simulation = schedule::simulate(&subject.table, &subject.timing)?;
    let usage = schedule::memory(&subject.table, &simulation, &subject.memory);
    let lowered = if options.lowered {
        let found =
            schedule::simulate_program(&subject.program()?, &subject.timing, Communication::Rendezvous);
        Some(found.makespan)
    } else {
        None
    };
    let report =
        Report { formula: formula(&subject), simulation, usage, lowered, unit: setting.unit(), subject };
    if options.which.numbers.json { super::json(&report.json()) } else { super::super::print(&report.text()) }
}

/// The closed form for times that are alike on all stages.
pub(super) fn formula(subject: &Subject) -> Option<Formula> {
    let first = *subject.timing.stages.first()?;
    let edges = || subject.timing.forward.iter().chain(&subject.timing.backward);
    if subject.timing.stages.iter().any(|stage| *stage != first) || edges().any(|transfer| *transfer > 0.0) {
        return None;
    }
    let parts = subject.shape.per_rank().max(1) as f64;
    let times = schedule::Times {
        forward: first.forward * parts,
        input: first.input * parts,
        weight: first.weight * parts,
        transfer: 0.0,
    };
    schedule::formula(&subject.name, subject.shape, times)
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.subject.title());
        let made = self
            .formula
            .as_ref()
            .and_then(|it| Some(format!("   formula {} = {}", it.text, short(it.makespan?))));
        let _ = writeln!(text, "makespan  {}{}", short(self.simulation.makespan), made.unwrap_or_default());
        if let Some(lowered) = self.lowered {
            let _ =
                writeln!(text, "          {} with sends and receives that hold both ranks", short(lowered));
        }
        for (index, (share, (name, meaning))) in
            self.simulation.bubbles().values().iter().zip(Bubbles::NAMES).enumerate()
        {
            let label = if index == 0 { "bubble" } else { "" };
            let _ = writeln!(text, "{label:<8}{:>6.1} % of the {name}: {meaning}", 100.0 * share);
        }
        let peaks = self.peak_formula();
        let _ = writeln!(
            text,
            "\nrank  stages       busy      idle   peak ({}){}",
            self.unit,
            if peaks.is_some() { "   formula" } else { "" }
        );
        let column = self.unit.len() + 7;
        for (rank, usage) in self.usage.iter().enumerate() {
            let busy = self.simulation.busy.get(rank).copied().unwrap_or(0.0);
            let stages: Vec<_> =
                self.subject.table.placement.stages_of(rank).iter().map(ToString::to_string).collect();
            let formula = peaks
                .and_then(|peaks| peaks.get(rank))
                .map_or_else(String::new, |peak| format!("{:>10}", short(*peak)));
            let _ = writeln!(
                text,
                "{rank:>4}  {:<8} {:>8}  {:>8}   {:>column$}{formula}",
                stages.join(","),
                short(busy),
                short(self.simulation.makespan - busy),
                held(usage.peak)
            );
        }
        text.extend(self.subject.notes.iter().map(|note| format!("note  {note}\n")));
        text
    }

    /// Peaks are comparable where microbatches are counted.
    fn peak_formula(&self) -> Option<&[f64]> {
        let peak = self.formula.as_ref()?.peak.as_deref()?;
        (self.unit != "memory").then_some(peak)
    }

    fn json(&self) -> Value {
        let Bubbles { makespan, ideal, longest_rank } = self.simulation.bubbles();
        let ranks = self.usage.iter().enumerate().map(|(rank, usage)| {
            let busy = self.simulation.busy.get(rank).copied().unwrap_or(0.0);
            json!({
                "rank": rank,
                "stages": self.subject.table.placement.stages_of(rank),
                "busy": busy,
                "idle": self.simulation.makespan - busy,
                "peak": usage.peak,
                "peak_at": usage.peak_at,
            })
        });
        json!({
            "schedule": self.subject.name,
            "microbatches": self.subject.shape.microbatches,
            "makespan": self.simulation.makespan,
            "makespan_blocking": self.lowered,
            "bubbles": { "makespan": makespan, "ideal": ideal, "longest_rank": longest_rank },
            "memory_unit": self.unit,
            "ranks": ranks.collect::<Vec<_>>(),
            "formula": self.formula.as_ref().map(|it| json!({ "text": it.text, "makespan": it.makespan, "peak": it.peak })),
            "notes": self.subject.notes,
        })
    }
}
