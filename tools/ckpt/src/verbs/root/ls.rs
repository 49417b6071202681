//! `ckpt ls`: the checkpoints of a root, newest first.

use std::collections::BTreeMap;

use dcp::Result;
use dcp::commit::{Checkpoint, Label, Log, Metrics, Seq};
use dcp::formats::OpenOptions;
use dcp::formats::native::{open_root, utc};
use dcp::retention::{Foreign, Survey, Times};
use dcp::store::Stores;
use serde::Serialize;

use super::{label, millis, open, whole_root};
use crate::output::table::{Align, Table};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Listed {
    location: String,
    checkpoints: Vec<Row>,
    #[serde(skip)]
    long: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    seq: Seq,
    run: Label,
    step: u64,
    /// By the store's clock.
    committed_ms: Option<u64>,
    bytes: u64,
    tags: Vec<Label>,
    pinned: bool,
    verified: Option<Seq>,
    parent: Option<Seq>,
    directory: String,
    metrics: Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<String>,
}

/// Lists the checkpoints.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Ls) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let log = open(&args.root)?;
    let only = args.run.as_deref().map(label).transpose()?;
    let (survey, times) = (survey(&log)?, Times::listed(log.root())?);
    let mut tags: BTreeMap<Seq, Vec<Label>> = BTreeMap::new();
    log.state().tags.iter().for_each(|(tag, seq)| tags.entry(*seq).or_default().push(tag.clone()));
    let mut rows = Vec::new();
    let (mut notes, checkpoints) = (Vec::new(), log.state().checkpoints.iter().rev());
    for (&seq, checkpoint) in checkpoints.filter(|(_, it)| only.as_ref().is_none_or(|run| it.run == *run)) {
        let mesh = if args.long { mesh(&log, seq, &mut notes) } else { None };
        let Checkpoint { run, step, pinned, verified, parent, metrics, attempt, .. } = checkpoint.clone();
        rows.push(Row {
            seq,
            run,
            step,
            committed_ms: times.written(seq).map(millis),
            bytes: survey.folders.get(attempt.as_str()).map_or(0, |folder| folder.bulk().bytes),
            tags: tags.remove(&seq).unwrap_or_default(),
            pinned,
            verified,
            parent,
            directory: attempt.to_string(),
            metrics,
            mesh,
        });
    }
    let listed = Listed { location: args.root.location.clone(), checkpoints: rows, long: args.long };
    output::show(context, &args.root.to_string(), &notes, &listed)?;
    Ok(exit::DONE)
}

fn survey(log: &Log) -> Result<Survey> {
    Survey::read(log.root(), log.state(), Foreign::Name)
}

/// The mesh that a checkpoint is laid out for. One that can't be opened is told of.
fn mesh(log: &Log, seq: Seq, notes: &mut Vec<String>) -> Option<String> {
    let opened = open_root(&Stores::new(), log.root(), Some(&format!("seq:{seq}")), OpenOptions::new());
    match opened {
        Ok(source) => dcp::Source::catalog(&source).mesh.as_ref().map(ToString::to_string),
        Err(error) => {
            notes.push(format!("seq:{seq}: {error}"));
            None
        }
    }
}

impl Row {
    fn marks(&self) -> String {
        let pinned = self.pinned.then(|| "pinned".to_owned());
        let verified = self.verified.map(|_| "verified".to_owned());
        pinned
            .into_iter()
            .chain(verified)
            .chain(self.tags.iter().map(|tag| format!("tag:{tag}")))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// For people: counted by this machine's clock.
    fn age(&self) -> String {
        let now = millis(std::time::SystemTime::now());
        self.committed_ms.map(|then| units::age(now.saturating_sub(then) / 1000)).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        let each = self.metrics.iter().map(|(name, value)| format!("{name}={value}"));
        each.collect::<Vec<_>>().join(" ")
    }
}

impl Listed {
    fn table(&self, bytes: fn(u64) -> String) -> Table {
        let mut table = Table::new(&[
            ("checkpoint", Align::Left),
            ("run", Align::Left),
            ("step", Align::Right),
            ("committed", Align::Left),
            ("age", Align::Right),
            ("size", Align::Right),
            ("marks", Align::Left),
            ("mesh", Align::Left),
            ("metrics", Align::Left),
        ]);
        for row in &self.checkpoints {
            table.row([
                format!("seq:{}", row.seq),
                row.run.to_string(),
                row.step.to_string(),
                row.committed_ms.map(utc).unwrap_or_default(),
                row.age(),
                bytes(row.bytes),
                row.marks(),
                row.mesh.clone().unwrap_or_default(),
                if self.long { row.metrics() } else { String::new() },
            ]);
        }
        table
    }
}

impl Render for Listed {
    fn schema(&self) -> &'static str {
        "ckpt.ls/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let count = units::many(self.checkpoints.len(), "checkpoint");
        let head = format!("{}  {count}\n", style::harmless(&self.location));
        if self.checkpoints.is_empty() { head } else { head + &self.table(units::bytes).human(width) }
    }

    fn plain(&self) -> String {
        self.table(|bytes| bytes.to_string()).plain()
    }

    fn quiet(&self) -> String {
        let location = style::harmless(&self.location);
        self.checkpoints.iter().map(|row| format!("{location}@seq:{}\n", row.seq)).collect()
    }
}
