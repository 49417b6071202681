//! `ckpt log`: the records of a root, newest first, with what each came to.

use dcp::Result;
use dcp::commit::{Action, Label, Record, Seq};
use dcp::formats::native::utc;
use dcp::retention::{Event, history};
use serde::Serialize;

use super::{millis, open, whole_root};
use crate::output::table::{Align, Table};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct History {
    location: String,
    head: Option<Seq>,
    records: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    seq: Seq,
    /// By the store's clock.
    stored_ms: u64,
    /// By the writer's.
    time_ms: u64,
    writer: String,
    run: Label,
    epoch: u64,
    parent: Option<Seq>,
    action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    void: Option<String>,
}

/// Prints the log.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Log) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let log = open(&args.root)?;
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let records = history(&log, limit)?.into_iter().map(line).collect();
    let shown = History { location: args.root.location.clone(), head: log.head(), records };
    output::show(context, &args.root.to_string(), &[], &shown)?;
    Ok(exit::DONE)
}

fn line(event: Event) -> Line {
    let Record { seq, writer, time_ms, run, epoch, parent, action, .. } = event.record;
    let (stored_ms, void) = (millis(event.stored), event.void.map(|void| void.to_string()));
    Line { seq, stored_ms, time_ms, writer, run, epoch, parent, action, void }
}

impl Line {
    fn verb(&self) -> &'static str {
        match self.action {
            Action::Commit(_) => "commit",
            Action::Retire(_) => "retire",
            Action::Condemn(_) => "condemn",
            Action::Tag(_) => "tag",
            Action::Untag(_) => "untag",
            Action::Pin(_) => "pin",
            Action::Verified(_) => "verified",
            Action::Epoch(_) => "epoch",
        }
    }

    fn what(&self) -> String {
        match &self.action {
            Action::Commit(commit) => {
                let parent = self.parent.map(|parent| format!(", after seq:{parent}")).unwrap_or_default();
                format!("step {}{parent}, {}", commit.step, commit.attempt)
            }
            Action::Retire(retire) => format!("seq:{}", retire.checkpoint),
            Action::Condemn(condemn) => {
                let first = condemn.directories.first().map(ToString::to_string).unwrap_or_default();
                match condemn.directories.len() {
                    0 | 1 => first,
                    count => format!("{first} and {} more", count - 1),
                }
            }
            Action::Tag(tag) => format!("{} is seq:{}", tag.name, tag.checkpoint),
            Action::Untag(untag) => untag.name.to_string(),
            Action::Pin(pin) if pin.held => format!("seq:{}", pin.checkpoint),
            Action::Pin(pin) => format!("seq:{} released", pin.checkpoint),
            Action::Verified(it) if it.whole => format!("seq:{} is whole", it.checkpoint),
            Action::Verified(it) => format!("seq:{} is damaged", it.checkpoint),
            Action::Epoch(_) => format!("{} begins", self.epoch),
        }
    }

    fn void(&self) -> String {
        self.void.as_ref().map(|void| format!("void: {void}")).unwrap_or_default()
    }
}

impl History {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("record", Align::Left),
            ("stored", Align::Left),
            ("run", Align::Left),
            ("action", Align::Left),
            ("what", Align::Left),
            ("void", Align::Left),
        ]);
        for line in &self.records {
            let cells = [
                line.seq.to_string(),
                utc(line.stored_ms),
                line.run.to_string(),
                line.verb().to_owned(),
                line.what(),
                line.void(),
            ];
            table.row(cells.map(|cell| style::harmless(&cell)));
        }
        table
    }
}

impl Render for History {
    fn schema(&self) -> &'static str {
        "ckpt.log/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let (shown, all) = (self.records.len(), self.head.map_or(0, Seq::get));
        let all = usize::try_from(all).unwrap_or(usize::MAX);
        let more =
            if shown < all { format!(", the last {shown}; --limit 0 shows all") } else { String::new() };
        let head = format!("{}  {}{more}\n", style::harmless(&self.location), units::many(all, "record"));
        head + &self.table().human(width)
    }

    fn plain(&self) -> String {
        self.table().plain()
    }

    fn quiet(&self) -> String {
        self.records.iter().map(|line| format!("{}\n", line.seq)).collect()
    }
}
