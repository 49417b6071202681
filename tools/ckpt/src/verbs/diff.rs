//! `ckpt diff`: what changed between two checkpoints, tensor by tensor, worst first.

use std::collections::{BTreeMap, HashSet};

use dcp::formats::OpenOptions;
use dcp::ops::diff::{DiffOptions, DiffReport, Level, ObjectDiff, Stats, Status, TensorDiff, diff};
use dcp::{Catalog, Error, ErrorKind, Result};
use fqn::{Role, dialect, pattern::Pattern};
use serde::Serialize;

use super::{Context, open, verify};
use crate::output::{
    self, Render,
    style::{self, harmless},
    table::{Align, Table},
    units,
};
use crate::{cli, exit};

/// What changed.
#[derive(Debug, Serialize)]
struct Compared {
    a: String,
    b: String,
    formats: [&'static str; 2],
    same: bool,
    level: Level,
    counts: BTreeMap<Status, usize>,
    /// Tensors that are not the same, worst first; no more than were asked for.
    tensors: Vec<TensorDiff>,
    /// Those that are not shown.
    more_tensors: usize,
    /// Non-tensor values that are not the same.
    objects: Vec<ObjectDiff>,
    bytes: u64,
    notes: Vec<String>,
    #[serde(skip)]
    top: usize,
}

/// Compares the two.
pub(super) fn run(context: &Context<'_>, args: &cli::Diff) -> Result<exit::Code> {
    let a = open::open(&args.a, OpenOptions::new())?;
    let b = open::open(&args.b, OpenOptions::new())?;
    let options = DiffOptions {
        level: match args.level {
            cli::Level::Hash => Level::Hash,
            cli::Level::Values => Level::Values,
        },
        roles: roles(args.only, [a.source.catalog(), b.source.catalog()]),
        names: names(args)?,
        threads: verify::threads(context, &[&*a.source, &*b.source]),
        max_memory: context.global.max_memory,
        ..DiffOptions::default()
    };
    let mut report = diff(&*a.source, &*b.source, &options, &*context.progress, &context.cancel)?;
    if options.roles.is_some() || options.names.is_some() {
        report.objects.clear();
    }
    if report.tensors.is_empty() && report.objects.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "nothing to compare: no tensor of either is selected")
            .hint("`ckpt inspect` lists what there is; --only and #GLOB select"));
    }
    let formats = [a.source.catalog().format.name(), b.source.catalog().format.name()];
    let notes = notes(&report, [a.source.catalog(), b.source.catalog()]);
    let compared = Compared { notes, ..Compared::new([a.location, b.location], formats, report, args.top) };
    let target = format!("{} {}", args.a, args.b);
    let warnings = [a.warnings, b.warnings].concat();
    output::show(context, &target, &warnings, &compared)?;
    Ok(if compared.same { exit::DONE } else { exit::DIFFERENT })
}

/// Roles of the part that was asked for, as far as the checkpoints have them.
fn roles(part: cli::Part, catalogs: [&Catalog; 2]) -> Option<HashSet<Role>> {
    let wanted = |role: &&Role| match part {
        cli::Part::All => true,
        cli::Part::Model => role.is_model(),
        cli::Part::Optimizer => role.is_optimizer(),
    };
    let entries = catalogs.into_iter().flat_map(|catalog| catalog.registry.entries());
    let roles = entries.map(|entry| &entry.role).filter(wanted).cloned().collect();
    (part != cli::Part::All).then_some(roles)
}

/// What explains the result where it may surprise.
fn notes(report: &DiffReport, catalogs: [&Catalog; 2]) -> Vec<String> {
    let counts = report.counts();
    let mut notes = Vec::new();
    if counts.contains_key(&Status::Unproven) {
        notes.push(
            "unproven: one side records no fingerprint; `ckpt seal` adds them, --level values reads the data"
                .to_owned(),
        );
    }
    let met = counts.keys().any(|status| !matches!(status, Status::Added | Status::Removed));
    if let ([Some(a), Some(b)], false) = (catalogs.map(|it| dialect::llama().detect(&it.registry)), met)
        && a.dialect != b.dialect
    {
        let (a, b) = (a.dialect, b.dialect);
        notes.push(format!(
            "names are {a}'s in one and {b}'s in the other; `ckpt convert --names {a}` makes them meet"
        ));
    }
    notes
}

fn names(args: &cli::Diff) -> Result<Option<Pattern>> {
    let glob = match (&args.a.glob, &args.b.glob) {
        (Some(a), Some(b)) if a != b => {
            return Err(Error::incompatible(format!("#{a} and #{b} select different names"))
                .hint("give #GLOB once, or the same one twice"));
        }
        (a, b) => a.as_ref().or(b.as_ref()),
    };
    super::pattern(glob.map(String::as_str))
}

impl Compared {
    fn new([a, b]: [String; 2], formats: [&'static str; 2], report: DiffReport, top: usize) -> Self {
        let (same, counts) = (report.is_same(), report.counts());
        let differs = |status| !matches!(status, Status::Identical | Status::Moved);
        let DiffReport { level, tensors, objects, bytes } = report;
        let mut tensors: Vec<TensorDiff> = tensors.into_iter().filter(|it| differs(it.status)).collect();
        let most = if top == 0 { tensors.len() } else { top };
        let more_tensors = tensors.len().saturating_sub(most);
        tensors.truncate(most);
        let objects = objects.into_iter().filter(|it| differs(it.status)).collect();
        Self {
            a,
            b,
            formats,
            same,
            level,
            counts,
            tensors,
            more_tensors,
            objects,
            bytes,
            notes: Vec::new(),
            top,
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("tensor", Align::Left),
            ("status", Align::Left),
            ("max abs", Align::Right),
            ("max rel", Align::Right),
            ("rel l2", Align::Right),
            ("cosine", Align::Right),
            ("> 1 ulp", Align::Right),
            ("differing", Align::Right),
            ("a -> b", Align::Left),
        ]);
        for tensor in &self.tensors {
            table.row(row(tensor));
        }
        table
    }

    fn object_table(&self, most: usize) -> Table {
        let columns =
            [("object", Align::Left), ("status", Align::Left), ("a", Align::Left), ("b", Align::Left)];
        let mut table = Table::new(&columns);
        for object in self.objects.iter().take(most) {
            let [a, b] = object.values.each_ref().map(|value| {
                let text = value.as_ref().map(ToString::to_string).unwrap_or_default();
                style::shortened(&harmless(&text), 32)
            });
            table.row([harmless(&object.key), word(object.status).to_owned(), a, b]);
        }
        table
    }

    fn counted(&self) -> String {
        const ALL: [Status; 6] = [
            Status::Changed,
            Status::Added,
            Status::Removed,
            Status::Unproven,
            Status::Moved,
            Status::Identical,
        ];
        let of = |status| self.counts.get(&status).copied().unwrap_or(0);
        ALL.iter().map(|&status| format!("{} {}", word(status), of(status))).collect::<Vec<_>>().join("  ")
    }
}

const fn word(status: Status) -> &'static str {
    match status {
        Status::Removed => "removed",
        Status::Added => "added",
        Status::Changed => "changed",
        Status::Unproven => "unproven",
        Status::Moved => "moved",
        Status::Identical => "identical",
    }
}

fn row(tensor: &TensorDiff) -> [String; 9] {
    let name = match &tensor.renamed {
        Some(other) => format!("{} = {other}", tensor.id),
        None => tensor.id.to_string(),
    };
    let kinds = tensor.kinds.as_ref().map(|[a, b]| format!("{a} -> {b}")).unwrap_or_default();
    let stats = tensor.stats.as_ref();
    let of = |text: fn(&Stats) -> String| stats.map(text).unwrap_or_default();
    [
        harmless(&name),
        word(tensor.status).to_owned(),
        of(|stats| format!("{:.2e}", stats.max_abs)),
        of(|stats| format!("{:.2e}", stats.max_rel)),
        of(|stats| format!("{:.2e}", stats.rel_l2)),
        of(|stats| stats.cosine.map(|cosine| format!("{cosine:.6}")).unwrap_or_default()),
        of(|stats| stats.beyond_one_ulp.map(|count| percent(count, stats.elements)).unwrap_or_default()),
        of(|stats| percent(stats.differing, stats.elements)),
        kinds,
    ]
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits for people")]
    let percent = 100.0 * part as f64 / whole as f64;
    if percent > 0.0 && percent < 0.1 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}

impl Render for Compared {
    fn schema(&self) -> &'static str {
        "ckpt.diff/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let [a, b] = self.formats;
        let mut text =
            format!("a        {} ({a})\nb        {} ({b})\n", harmless(&self.a), harmless(&self.b));
        let shown = if self.top == 0 { self.objects.len() } else { self.top };
        let more_objects = self.objects.len().saturating_sub(shown);
        for (table, more) in [(self.table(), self.more_tensors), (self.object_table(shown), more_objects)] {
            if !table.is_empty() {
                text += &format!("\n{}", table.human(width));
            }
            if more > 0 {
                text += &style::faint(&format!("  and {more} more; --top 0 shows all\n"));
            }
        }
        if !self.tensors.is_empty() || !self.objects.is_empty() {
            text.push('\n');
        }
        text += &format!("tensors  {}\n", self.counted());
        if !self.objects.is_empty() {
            text += &format!("objects  {} differ\n", self.objects.len());
        }
        text += &self.notes.iter().map(|note| format!("note     {note}\n")).collect::<String>();
        let verdict = if self.same { "identical" } else { "different" };
        text + &format!("verdict  {}, {} read\n", style::word(verdict), units::bytes(self.bytes))
    }

    fn plain(&self) -> String {
        let verdict = if self.same { "identical" } else { "different" };
        let mut text = self.table().plain();
        if !self.objects.is_empty() {
            text += &format!("\n{}", self.object_table(usize::MAX).plain());
        }
        text + &format!("\nsummary\t{verdict}\t{}\n", self.counted().replace("  ", "\t"))
    }

    fn quiet(&self) -> String {
        let tensors = self.tensors.iter().map(|tensor| tensor.id.to_string());
        tensors
            .chain(self.objects.iter().map(|object| object.key.clone()))
            .map(|name| harmless(&name) + "\n")
            .collect()
    }
}
