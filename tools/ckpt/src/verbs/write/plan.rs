//! A plan before it is run: shown by `--dry-run`, stored by `--plan`, compared by `--apply`.

use std::path::Path;

use dcp::ops::prepare::Prepared;
use dcp::rank_state::ObjectCounts;
use dcp::{Error, ErrorKind, Place, Result};
use reshard::Plan;
use serde::Serialize;

use super::job::Job;
use super::outcome::{counts, keeps_shards, values};
use super::target::Target;
use super::{Context, Opened, open};
use crate::output::{
    self, Render,
    style::{self, harmless},
    table::{Align, Table},
    units,
};
use crate::{exit, files};

/// A plan and what belongs to it.
#[derive(Debug, Serialize)]
struct Shown {
    verb: &'static str,
    source: String,
    source_format: &'static str,
    target: String,
    format: &'static str,
    meshes_read: Vec<String>,
    placement: String,
    /// Layers on each pipeline stage.
    stages: Vec<u64>,
    tensors: usize,
    /// What becomes of non-tensor values.
    objects: ObjectCounts,
    notes: Vec<String>,
    /// File that the plan was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_file: Option<String>,
    plan: Plan,
    #[serde(skip)]
    sharded: bool,
}

/// Shows the plan, and writes it where a file was named.
pub(super) fn show(
    context: &Context<'_>,
    job: &Job<'_>,
    opened: &Opened,
    target: &Target,
    prepared: &Prepared,
) -> Result<exit::Code> {
    if let Some(file) = &job.writing.plan {
        files::replace(file, text_of(&prepared.plan)?.as_bytes())?;
    }
    let shown = Shown {
        verb: job.verb.name(),
        source: opened.location.clone(),
        source_format: opened.source.catalog().format.name(),
        target: target.location.clone(),
        format: job.format.name(),
        meshes_read: job.meshes_read(),
        placement: prepared.named.origin.clone(),
        stages: prepared.stages.clone(),
        tensors: prepared.copy.spec.tensors.len(),
        objects: prepared.objects,
        notes: prepared.notes.clone(),
        plan_file: job.writing.plan.as_ref().map(|file| file.display().to_string()),
        plan: prepared.plan.clone(),
        sharded: keeps_shards(job.format),
    };
    output::show(context, &job.source.to_string(), &opened.warnings, &shown)?;
    Ok(exit::DONE)
}

fn text_of(plan: &Plan) -> Result<String> {
    let text = serde_json::to_string_pretty(plan).map_err(|e| Error::internal(e.to_string()))?;
    Ok(text + "\n")
}

/// Refuses to go on where the plan in `file` is not the one that would run now.
///
/// # Errors
/// `Incompatible` for a file that is no plan, `Conflict` for another plan, saying what differs.
pub(super) fn must_equal(file: &Path, now: &Plan) -> Result<()> {
    let text = open::text_of(file)?;
    let read = |text: &str| {
        serde_json::from_str::<Plan>(text).map_err(|e| {
            Error::incompatible(format!("not a plan of this version: {e}"))
                .caused_by(e)
                .hint("--plan FILE writes one")
        })
    };
    let (then, now) = (read(&text).place(file.display())?, read(&text_of(now)?)?);
    // What it costs depends on the machine: many may run one plan.
    let text = |plan: &Plan| plan.digest_text().map_err(|e| Error::internal(e.to_string()));
    if text(&then)? == text(&now)? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Conflict, format!("{}: {}", file.display(), difference(&then, &now)))
        .hint("look at the new plan with --dry-run, and write it with --plan"))
}

fn difference(then: &Plan, now: &Plan) -> String {
    if then.source != now.source {
        return "the plan was made for another checkpoint or another stacking, or this one has changed since"
            .to_owned();
    }
    if then.to != now.to {
        return format!("the plan is for {}, the command says {}", then.to, now.to);
    }
    if then.stage_split != now.stage_split {
        return format!("the plan splits layers by {}, the command by {}", then.stage_split, now.stage_split);
    }
    if then.rules != now.rules {
        let pair = then.rules.iter().zip(&now.rules).find(|(a, b)| a != b);
        return match pair {
            Some((a, b)) => {
                format!("the plan places {} by {}, the command {} by {}", a.tensor, a.rule, b.tensor, b.rule)
            }
            None => format!("the plan has {} tensors, the command {}", then.rules.len(), now.rules.len()),
        };
    }
    "the plan was made with other options (target, format, names, dtype, codec or rules for rank state)"
        .to_owned()
}

impl Shown {
    /// What moves where, tensors alike in one line.
    fn folds(&self) -> Table {
        let mut table = Table::new(&[
            ("tensor", Align::Left),
            ("count", Align::Right),
            ("from", Align::Left),
            ("to", Align::Left),
            ("moves", Align::Right),
            ("size", Align::Right),
        ]);
        for fold in &self.plan.cost.folds {
            let count = if fold.tensors > 1 { format!("x{}", fold.tensors) } else { String::new() };
            let (name, moves) = (harmless(&fold.pattern), fold.moves.to_string());
            table.row([name, count, fold.from.clone(), fold.to.clone(), moves, units::bytes(fold.bytes)]);
        }
        table
    }

    /// What each rank of the target's mesh holds and gets written, ranks alike in one line.
    fn ranks(&self) -> Table {
        let mut table = Table::new(&[
            ("ranks", Align::Left),
            ("count", Align::Right),
            ("model", Align::Right),
            ("optimizer", Align::Right),
            ("other", Align::Right),
            ("written", Align::Right),
        ]);
        let ranks = &self.plan.cost.ranks;
        let mut first = 0;
        while let Some(rank) = ranks.get(first) {
            let alike = ranks.iter().skip(first).take_while(|other| *other == rank).count();
            let last = first + alike - 1;
            let name = if alike == 1 { first.to_string() } else { format!("{first}..{last}") };
            let size = units::bytes;
            let count = format!("x{alike}");
            table.row([
                name,
                count,
                size(rank.model),
                size(rank.optimizer),
                size(rank.other),
                size(rank.written),
            ]);
            first += alike;
        }
        table
    }

    fn head(&self) -> String {
        let cost = &self.plan.cost;
        let from = self.plan.from.as_ref().map_or_else(|| "an unknown mesh".to_owned(), ToString::to_string);
        let mut text = format!("{:11}{} ({})\n", "from", harmless(&self.source), self.source_format);
        text += &format!("{:11}{} ({})\n", "to", harmless(&self.target), self.format);
        for read in &self.meshes_read {
            text += &format!("{:11}{read}\n", "mesh");
        }
        if self.sharded {
            text += &format!("{:11}{from} -> {} ({} ranks)\n", "layout", self.plan.to, self.plan.to.ranks());
            text += &format!("{:11}{}\n", "placement", self.placement);
        }
        if self.stages.len() > 1 {
            let sizes = self.stages.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            text += &format!("{:11}{sizes} layers\n", "stages");
        }
        text += &format!(
            "{:11}{} tensors, {} read in {} pieces, {} written in {} moves\n",
            "work",
            self.tensors,
            units::bytes(cost.bytes_read),
            cost.reads,
            units::bytes(cost.bytes_written),
            cost.moves
        );
        text += &values(&self.objects).map(|values| format!("{:11}{values}\n", "values")).unwrap_or_default();
        let passes = if cost.passes == 1 { "one pass".to_owned() } else { format!("{} passes", cost.passes) };
        text += &format!("{:11}{passes}, at most {} of buffers\n", "memory", units::bytes(cost.peak_memory));
        if cost.read_amplification > 1.02 {
            let (times, enough) = (cost.read_amplification, units::bytes(cost.enough_memory));
            text += &format!(
                "{:11}up to {times:.1} times as much is read as is needed; {}\n",
                "reads",
                if cost.enough_memory > cost.peak_memory {
                    format!("--max-memory {enough} reads it once")
                } else {
                    "files are written in several passes".to_owned()
                }
            );
        }
        if self.sharded && cost.ranks.len() > 1 {
            let (held, written) = ((cost.held_imbalance - 1.0) * 100.0, (cost.write_imbalance - 1.0) * 100.0);
            text += &format!(
                "{:11}the fullest rank holds {held:.1} % more than the mean, the largest file set is {written:.1} % above it\n",
                "balance"
            );
        }
        text
    }
}

impl Render for Shown {
    fn schema(&self) -> &'static str {
        "ckpt.plan/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let mut text = self.head();
        text +=
            &self.notes.iter().map(|note| format!("{:11}{}\n", "note", harmless(note))).collect::<String>();
        text += &format!("\n{}", self.folds().human(width));
        if self.sharded && self.plan.cost.ranks.len() > 1 {
            text += &format!("\n{}", self.ranks().human(width));
        }
        let next = match &self.plan_file {
            Some(file) => format!(
                "the plan is in {}; the same command with --apply {0} in place of --plan runs it",
                harmless(file)
            ),
            None => "leave --dry-run out to run it; --plan FILE keeps it".to_owned(),
        };
        text + &format!("\n{}  nothing was written: {next}\n", style::word("plan"))
    }

    fn plain(&self) -> String {
        let cost = &self.plan.cost;
        let mut text = format!("from\t{}\nto\t{}\n", harmless(&self.source), harmless(&self.target));
        text += &self.meshes_read.iter().map(|read| format!("mesh\t{read}\n")).collect::<String>();
        text += &format!("attempt\t{}\ntensors\t{}\n", self.plan.attempt, self.tensors);
        text += &format!("bytes_read\t{}\nbytes_written\t{}\n", cost.bytes_read, cost.bytes_written);
        text += &format!("reads\t{}\nmoves\t{}\npasses\t{}\n", cost.reads, cost.moves, cost.passes);
        text += &format!("peak_memory\t{}\n", cost.peak_memory);
        text += &format!("read_amplification\t{:.3}\n", cost.read_amplification);
        text +=
            &format!("values\t{}\n", counts(&self.objects).map(|(_, count)| count.to_string()).join("\t"));
        text += &self.notes.iter().map(|note| format!("note\t{}\n", harmless(note))).collect::<String>();
        text + &format!("\n{}\n{}", self.folds().plain(), self.ranks().plain())
    }

    fn quiet(&self) -> String {
        self.plan_file.iter().map(|file| harmless(file) + "\n").collect()
    }
}
