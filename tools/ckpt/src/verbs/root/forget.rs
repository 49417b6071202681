//! `ckpt forget`: which checkpoints stay by a policy and which go, with all reasons; and lets them go.

use dcp::commit::{Label, Seq};
use dcp::retention::{self, Decision, Policy, RunPlan};
use dcp::{Error, Result};
use serde::Serialize;

use super::{label, open_to_change, options, whole_root};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Forgotten {
    location: String,
    dry_run: bool,
    runs: Vec<OfRun>,
    kept: usize,
    forgotten: usize,
}

#[derive(Debug, Serialize)]
struct OfRun {
    run: Label,
    decisions: Vec<Decision>,
    /// What is retired now.
    retired: Vec<Seq>,
    /// What was to be, and was tagged, pinned or verified in the meantime: it stays.
    held: Vec<Seq>,
}

/// Forgets by a policy.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Forget) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let policy = policy(args)?;
    let mut log = open_to_change(&args.root)?;
    let only = args.run.as_deref().map(label).transpose()?;
    let considered = retention::consider(&mut log, only.as_ref(), &policy, &options())?;
    let mut warnings = Vec::new();
    if considered.as_of_last_record {
        warnings.push("the store can't be written, or is full, so ages are as of its last record".to_owned());
    }
    let mut runs = Vec::new();
    for plan in considered.runs {
        let done = if args.dry_run {
            retention::Retention::default()
        } else {
            retention::forget(&mut log, &plan, None)?
        };
        let seqs = |of: &[(Seq, u64)]| of.iter().map(|(seq, _)| *seq).collect();
        let (retired, held) = (seqs(&done.retired), seqs(&done.held));
        let RunPlan { run, decisions } = plan;
        runs.push(OfRun { run, decisions, retired, held });
    }
    let fates = |words: &[&str]| runs.iter().map(|run| run.count(args.dry_run, words)).sum();
    let (kept, forgotten) = (fates(&["keep", "held"]), fates(&["forget"]));
    let location = args.root.location.clone();
    let shown = Forgotten { location, dry_run: args.dry_run, kept, forgotten, runs };
    output::show(context, &args.root.to_string(), &warnings, &shown)?;
    Ok(exit::DONE)
}

fn policy(args: &cli::Forget) -> Result<Policy> {
    let mut best = Vec::new();
    for text in &args.keep_best {
        let read = text.parse().map_err(|error: retention::PolicyError| {
            Error::incompatible(error.to_string())
                .caused_by(error)
                .hint("`ckpt ls --long` shows what was measured")
        });
        best.push(read?);
    }
    Ok(Policy { last: args.keep_last, every: args.keep_every, within: args.keep_within, best })
}

impl OfRun {
    fn word(&self, decision: &Decision, dry_run: bool) -> &'static str {
        match decision.is_kept() {
            true => "keep",
            false if dry_run || self.retired.contains(&decision.seq) => "forget",
            false if self.held.contains(&decision.seq) => "held",
            // Another has forgotten it in the meantime.
            false => "gone",
        }
    }

    fn count(&self, dry_run: bool, words: &[&str]) -> usize {
        self.decisions.iter().filter(|decision| words.contains(&self.word(decision, dry_run))).count()
    }

    fn why(decision: &Decision) -> String {
        let join = |each: Vec<String>| each.join("; ");
        if decision.is_kept() {
            join(decision.stays.iter().map(ToString::to_string).collect())
        } else {
            join(decision.goes.iter().map(ToString::to_string).collect())
        }
    }

    fn age(decision: &Decision) -> String {
        decision.age_seconds.map(|seconds| format!("  {} old", units::age(seconds))).unwrap_or_default()
    }
}

impl Render for Forgotten {
    fn schema(&self) -> &'static str {
        "ckpt.forget/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let mut text = String::new();
        for run in &self.runs {
            text += &format!("run {}\n", style::harmless(run.run.as_str()));
            for decision in &run.decisions {
                let word = run.word(decision, self.dry_run);
                let pad = " ".repeat(9_usize.saturating_sub(word.len()));
                let (seq, step) = (format!("seq:{}", decision.seq), format!("step {}", decision.step));
                let (age, why) = (OfRun::age(decision), OfRun::why(decision));
                text += &format!("  {}{pad}{seq:<8} {step:<12}{age}  {why}\n", style::word(word));
            }
        }
        let (kept, gone) = (units::many(self.kept, "checkpoint"), units::many(self.forgotten, "checkpoint"));
        if self.dry_run {
            return text + &format!("dry run: {gone} would go and {kept} stay; nothing was written\n");
        }
        text += &format!("{gone} forgotten, {} stay\n", self.kept);
        if self.forgotten > 0 {
            text += &format!("{}\n", style::faint("their bytes go with `ckpt gc`"));
        }
        text
    }

    fn plain(&self) -> String {
        let mut text = String::from("fate\trun\tcheckpoint\tstep\twhy\n");
        for run in &self.runs {
            for decision in &run.decisions {
                let (word, why) = (run.word(decision, self.dry_run), OfRun::why(decision));
                text += &format!("{word}\t{}\tseq:{}\t{}\t{why}\n", run.run, decision.seq, decision.step);
            }
        }
        text
    }

    fn quiet(&self) -> String {
        let of = |run: &'_ OfRun, it: &&Decision| run.word(it, self.dry_run) == "forget";
        let gone = self.runs.iter().flat_map(|run| run.decisions.iter().filter(move |it| of(run, it)));
        gone.map(|decision| format!("seq:{}\n", decision.seq)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_counts_as_staying_and_what_another_forgot_as_neither() {
        let seq = |number| Seq::new(number).unwrap_or(Seq::FIRST);
        let decision = |number| Decision {
            seq: seq(number),
            step: number,
            on_line: true,
            age_seconds: None,
            stays: if number == 4 { vec![retention::Stay::Newest] } else { Vec::new() },
            goes: Vec::new(),
        };
        let run = OfRun {
            run: "main".parse().unwrap_or_else(|_| unreachable!()),
            decisions: [4, 3, 2, 1].map(decision).into(),
            retired: vec![seq(3)],
            held: vec![seq(2)],
        };
        assert_eq!((run.count(false, &["keep", "held"]), run.count(false, &["forget"])), (2, 1));
        assert_eq!((run.count(true, &["keep", "held"]), run.count(true, &["forget"])), (1, 3));
    }
}
