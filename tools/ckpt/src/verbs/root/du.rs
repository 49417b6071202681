//! `ckpt du`: what takes how much space in a root.

use dcp::Result;
use dcp::retention::{Bulk, FolderUsage, Usage, usage};
use serde::Serialize;

use super::{open_begun, whole_root};
use crate::output::table::{Align, Table};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Space {
    location: String,
    usage: Usage,
}

/// Adds up what the root holds.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Du) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let usage = usage(&open_begun(&args.root)?)?;
    let unread =
        usage.unread.iter().map(|(seq, why)| format!("seq:{seq}: what it refers to is not known: {why}"));
    let unreadable = usage.unreadable.iter();
    let unreadable = unreadable.map(|(name, why)| format!("{name} is not in the sums: {why}"));
    let (warnings, location) = (unread.chain(unreadable).collect::<Vec<_>>(), args.root.location.clone());
    output::show(context, &args.root.to_string(), &warnings, &Space { location, usage })?;
    Ok(exit::DONE)
}

impl Space {
    fn table(&self, bytes: fn(u64) -> String) -> Table {
        let mut table = Table::new(&[
            ("checkpoint", Align::Left),
            ("run", Align::Left),
            ("step", Align::Right),
            ("own", Align::Right),
            ("shared", Align::Right),
            ("freed if it went", Align::Right),
        ]);
        for it in &self.usage.checkpoints {
            let shared = if it.shared.objects > 0 { bytes(it.shared.bytes) } else { String::new() };
            let cells = [
                format!("seq:{}", it.seq),
                it.run.to_string(),
                it.step.to_string(),
                bytes(it.own.bytes),
                shared,
                bytes(it.freed),
            ];
            table.row(cells);
        }
        table
    }

    /// What is no checkpoint's own, in order: name, objects, bytes, meaning.
    fn rest(&self) -> Vec<(&'static str, Bulk, &'static str)> {
        let sum = |of: &[FolderUsage]| {
            let mut sum = Bulk::default();
            of.iter().for_each(|it| sum.extend(it.bulk));
            sum
        };
        let usage = &self.usage;
        vec![
            ("shared", usage.shared, "by several checkpoints, counted once"),
            ("unreferenced", usage.unreferenced, "in folders that are needed; goes with them"),
            ("forgotten", sum(&usage.retired), "`ckpt gc` condemns it"),
            ("condemned", sum(&usage.condemned), "`ckpt gc` deletes it after the grace period"),
            ("uncommitted", sum(&usage.uncommitted), "saves under way, or stopped"),
            ("foreign", sum(&usage.foreign), "folders that are no part of the store"),
            ("log", usage.log, "records"),
            ("others", usage.others, "objects right in the root"),
        ]
    }
}

impl Render for Space {
    fn schema(&self) -> &'static str {
        "ckpt.du/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let mut text = format!("{}\n", style::harmless(&self.location));
        let table = self.table(units::bytes);
        if !table.is_empty() {
            text += &table.human(width);
        }
        for (name, bulk, what) in self.rest().into_iter().filter(|(_, bulk, _)| bulk.objects > 0) {
            text += &format!(
                "{name:13}{:>10}  {}  {}\n",
                units::bytes(bulk.bytes),
                objects(bulk),
                style::faint(what)
            );
        }
        let total = self.usage.total;
        text += &format!("{:13}{:>10}  {}\n", "total", units::bytes(total.bytes), objects(total));
        let unfinished = self.usage.unfinished;
        if unfinished.objects > 0 {
            let (bytes, objects) = (units::bytes(unfinished.bytes), objects(unfinished));
            text += &format!("{:13}{bytes:>10}  {objects}, unfinished: not in the total\n", "and");
        }
        text
    }

    fn plain(&self) -> String {
        let rest = self
            .rest()
            .into_iter()
            .chain([("total", self.usage.total, ""), ("unfinished", self.usage.unfinished, "")]);
        let lines = rest.map(|(name, bulk, _)| format!("{name}\t{}\t{}\n", bulk.objects, bulk.bytes));
        self.table(|bytes| bytes.to_string()).plain() + &lines.collect::<String>()
    }

    fn quiet(&self) -> String {
        format!("{}\n", self.usage.total.bytes)
    }
}

fn objects(bulk: Bulk) -> String {
    units::many(usize::try_from(bulk.objects).unwrap_or(usize::MAX), "object")
}
