//! `ckpt gc`: condemns what nothing needs, and deletes what was condemned a grace period ago.

use dcp::Result;
use dcp::retention::{self, Collection, GcOptions, Kind};
use serde::Serialize;

use super::{KEEPER, label, open_begun, options, whole_root};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Cleaned {
    location: String,
    dry_run: bool,
    grace_seconds: u64,
    orphans_after_seconds: u64,
    report: Collection,
}

/// Collects garbage.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Gc) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let log = open_begun(&args.root)?;
    let mut gc = GcOptions::after(args.grace);
    (gc.orphans_after, gc.sealed, gc.dry_run) = (args.orphans_after, args.sealed, args.dry_run);
    let report = retention::collect(log.root(), &label(KEEPER)?, None, &gc, options())?;
    let mut warnings = Vec::new();
    if report.as_of_last_record {
        warnings.push("the store can't be written, or is full, so ages are as of its last record".to_owned());
    }
    let cleaned = Cleaned {
        location: args.root.location.clone(),
        dry_run: args.dry_run,
        grace_seconds: args.grace.as_secs(),
        orphans_after_seconds: args.orphans_after.as_secs(),
        report,
    };
    output::show(context, &args.root.to_string(), &warnings, &cleaned)?;
    Ok(exit::DONE)
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Retired => "forgotten",
        Kind::Orphan => "a stopped save",
        Kind::Condemned => "condemned before",
    }
}

impl Cleaned {
    /// Word, folder, bytes, and what to know.
    fn lines(&self) -> Vec<(&'static str, String, Option<u64>, String)> {
        let report = &self.report;
        let grace = units::age(self.grace_seconds);
        let mut lines = Vec::new();
        for it in &report.condemned {
            let text = format!("{}; goes {grace} from now", kind(it.kind));
            lines.push(("condemned", it.directory.to_string(), Some(it.bytes), text));
        }
        for it in &report.waiting {
            let when = match it.seconds_left {
                0 => "was written to at this moment, goes the next time".to_owned(),
                left => format!("goes in {}", units::age(left)),
            };
            let text = format!("condemned by record {}, {when}", it.condemned);
            lines.push(("waits", it.directory.to_string(), Some(it.bytes), text));
        }
        for it in &report.deleted {
            lines.push(("deleted", it.directory.to_string(), Some(it.bytes), kind(it.kind).to_owned()));
        }
        for it in &report.spared {
            let text = match it.seconds_left {
                Some(left) => format!(
                    "no record names it; taken for a stopped save in {} without a write",
                    units::age(left)
                ),
                None if it.sealed => {
                    "no record names it, and it may be a whole checkpoint: `ckpt inspect` it, or --sealed"
                        .to_owned()
                }
                None if it.bytes.is_none() => "no part of the store; nobody looked into it".to_owned(),
                None => "no part of the store".to_owned(),
            };
            let run =
                it.run.as_ref().map(|run| format!("; run {run} may still commit it")).unwrap_or_default();
            let text = text + &run;
            lines.push(("left", it.folder.clone(), it.bytes, text));
        }
        lines
    }
}

impl Render for Cleaned {
    fn schema(&self) -> &'static str {
        "ckpt.gc/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let mut text = String::new();
        for (word, folder, bytes, what) in self.lines() {
            let pad = " ".repeat(11_usize.saturating_sub(word.len()));
            text += &format!(
                "{}{pad}{}  {}  {what}\n",
                style::word(word),
                style::harmless(&folder),
                bytes.map(units::bytes).unwrap_or_default()
            );
        }
        let report = &self.report;
        if report.swept.objects > 0 {
            text += &format!(
                "swept      {} unfinished files and probes, {}\n",
                report.swept.objects,
                units::bytes(report.swept.bytes)
            );
        }
        let (condemned, deleted) = (report.condemned.len(), units::many(report.deleted.len(), "folder"));
        let bytes = units::bytes(report.bytes);
        if self.dry_run {
            return text
                + &format!(
                    "dry run: {condemned} would be condemned, {deleted} deleted ({bytes}); nothing was changed\n"
                );
        }
        text + &format!(
            "{condemned} condemned, {} waiting, {deleted} deleted, {bytes} freed\n",
            report.waiting.len()
        )
    }

    fn plain(&self) -> String {
        let each = self.lines().into_iter().map(|(word, folder, bytes, what)| {
            let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            format!("{word}\t{}\t{bytes}\t{what}\n", style::harmless(&folder))
        });
        let swept = self.report.swept;
        each.collect::<String>()
            + &format!("swept\t{}\t{}\t\nfreed\t\t{}\t\n", swept.objects, swept.bytes, self.report.bytes)
    }

    fn quiet(&self) -> String {
        self.report.deleted.iter().map(|it| format!("{}\n", it.directory)).collect()
    }
}
