//! The card: a checkpoint on one screen.

use std::collections::{BTreeMap, BTreeSet};

use dcp::formats::native::CommitFacts;
use dcp::rank_state::RankScheme;
use dcp::{Catalog, Error, Result};
use fqn::{Entry, pattern::Pattern};
use serde::Serialize;

use super::listing::{self, FileLine, ObjectLine, ShardLine, TensorLine};
use crate::cli::Sort;
use crate::output::{Render, style, table::Table, units};
use crate::verbs::open::Opened;

/// Which parts to list.
pub(super) struct Request<'a> {
    pub(super) glob: Option<&'a str>,
    pub(super) sort: Sort,
    pub(super) tensors: bool,
    pub(super) shards: bool,
    pub(super) files: bool,
    pub(super) objects: bool,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub(super) struct Card {
    location: String,
    format: &'static str,
    variant: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<CommitFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<String>,
    integrity: String,
    model: Totals,
    optimizer: Totals,
    other: Totals,
    objects_count: usize,
    objects_bytes: usize,
    #[serde(skip_serializing_if = "RankScheme::is_empty")]
    rank_state: RankScheme,
    files_count: usize,
    files_bytes: u64,
    files_logical_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    codecs: Option<String>,
    chunks_count: usize,
    #[serde(skip)]
    listed: bool,
    /// Folded unless single tensors were asked for.
    tensors: Vec<TensorLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shards: Vec<ShardLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<FileLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<ObjectLine>,
}

/// Sums over a part of the state.
#[derive(Debug, Default, Serialize)]
struct Totals {
    tensors: usize,
    elements: u64,
    bytes: u64,
    dtypes: BTreeMap<&'static str, usize>,
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.tensors += 1;
        self.elements = self.elements.saturating_add(entry.shape.elements().unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_add(entry.bytes().unwrap_or(0));
        *self.dtypes.entry(entry.dtype.name()).or_default() += 1;
    }

    fn line(&self, unit: &str) -> String {
        let dtypes = self.dtypes.keys().copied().collect::<Vec<_>>().join(" ");
        let (count, bytes) = (units::count(self.elements), units::bytes(self.bytes));
        format!("{:>5} tensors  {count:>9} {unit:<7} {dtypes:<9} {bytes:>11}", self.tensors)
    }
}

impl Card {
    pub(super) fn new(opened: &Opened, request: &Request<'_>, rank_state: RankScheme) -> Result<Self> {
        let catalog = opened.source.catalog();
        let chosen = choose(catalog, request)?;
        let mut totals = [Totals::default(), Totals::default(), Totals::default()];
        for &at in &chosen {
            let Some(entry) = catalog.registry.entries().get(at) else { continue };
            let [model, optimizer, other] = &mut totals;
            match &entry.role {
                role if role.is_model() => model.add(entry),
                role if role.is_optimizer() => optimizer.add(entry),
                _ => other.add(entry),
            }
        }
        let [model, optimizer, other] = totals;
        let shards = if request.shards { listing::shards(catalog, &chosen) } else { Vec::new() };
        Ok(Self {
            location: opened.location.clone(),
            format: catalog.format.name(),
            variant: catalog.variant.clone(),
            step: catalog.step,
            commit: opened.commit.clone(),
            mesh: catalog.mesh.as_ref().map(ToString::to_string),
            integrity: opened.integrity.clone(),
            model,
            optimizer,
            other,
            objects_count: catalog.objects.len(),
            objects_bytes: catalog.objects.iter().map(|object| object.bytes.len()).sum(),
            rank_state,
            files_count: catalog.files.len(),
            files_bytes: catalog.file_bytes().0,
            files_logical_bytes: catalog.file_bytes().1,
            codecs: catalog.codecs.as_ref().map(|codecs| style::shortened(&style::harmless(codecs), 200)),
            chunks_count: catalog.tensors.iter().map(|tensor| tensor.chunks.len()).sum(),
            listed: request.tensors,
            tensors: if request.tensors {
                listing::single(catalog, &chosen)
            } else {
                listing::folded(catalog, &chosen)
            },
            shards,
            files: if request.files { listing::files(catalog) } else { Vec::new() },
            objects: if request.objects { listing::objects(catalog) } else { Vec::new() },
        })
    }

    fn head(&self) -> String {
        let mut text = self.location.clone();
        self.step.iter().for_each(|step| text += &format!("  step {step}"));
        match &self.commit {
            Some(commit) => text += &format!("  {} {commit}", style::word("committed")),
            None if self.format == dcp::Format::Native.name() => {
                text += &style::faint("  sealed, not committed");
            }
            None => {}
        }
        text
    }

    /// How far files are compressed, where some are: `80.1 MB of 100.0 MB (80.1 %), planes,param=none`.
    fn compressed(&self) -> Option<String> {
        let (stored, logical) = (self.files_bytes, self.files_logical_bytes);
        let thousandths = (u128::from(stored) * 1000).checked_div(u128::from(logical)).unwrap_or_default();
        let percent = format!("{}.{} %", thousandths / 10, thousandths % 10);
        let sizes = format!("{} of {} ({percent})", units::bytes(stored), units::bytes(logical));
        let rules = self.codecs.as_ref().map(|rules| format!(", {rules}")).unwrap_or_default();
        (stored != logical).then(|| sizes + &rules)
    }

    /// The recorded rules for state of data ranks, as the command line takes them; the first that covers a leaf decides.
    fn rank_rules(&self) -> impl Iterator<Item = String> {
        let rules = self.rank_state.rules().iter();
        rules.map(|rule| style::harmless(&format!("{}={}", rule.pattern, rule.spread)))
    }

    fn tables(&self, lines: &[&TensorLine]) -> Vec<Table> {
        let all = [
            listing::tensor_table(lines),
            listing::shard_table(&self.shards),
            listing::file_table(&self.files),
            listing::object_table(&self.objects),
        ];
        all.into_iter().filter(|table| !table.is_empty()).collect()
    }

    /// What fits a screen: optimizer state mirrors the model's tensors, so it is told in one line unless single tensors
    /// were asked for.
    fn screen(&self) -> (Vec<&TensorLine>, String) {
        let (mirrored, shown): (Vec<_>, Vec<_>) = self
            .tensors
            .iter()
            .partition(|line| !self.listed && self.model.tensors > 0 && line.is_optimizer());
        let slots: BTreeSet<&str> = mirrored.iter().map(|line| line.slot()).collect();
        let count: usize = mirrored.iter().map(|line| line.count).sum();
        let slots = slots.into_iter().collect::<Vec<_>>().join(", ");
        let rest = format!("  and {count} tensors of the optimizer ({slots}); --tensors lists all\n");
        (shown, if count == 0 { String::new() } else { style::faint(&rest) })
    }
}

/// Positions of the tensors to show, in the order asked for.
fn choose(catalog: &Catalog, request: &Request<'_>) -> Result<Vec<usize>> {
    let pattern = request.glob.map(Pattern::new).transpose();
    let pattern = pattern.map_err(|e| Error::incompatible(format!("{e}")))?;
    let entries = catalog.registry.entries();
    let wanted = |at: &usize| {
        let name = entries.get(*at).map_or("", |entry| entry.fqn.as_str());
        pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
    };
    let mut chosen: Vec<usize> = (0..entries.len()).filter(wanted).collect();
    if chosen.is_empty() && request.glob.is_some() {
        return Err(Error::new(
            dcp::ErrorKind::NotFound,
            format!("no tensor matches {:?}", request.glob.unwrap_or_default()),
        )
        .hint(
            "`*` stays within a segment, `**` crosses them; `ckpt inspect PATH --tensors` lists all names",
        ));
    }
    match request.sort {
        Sort::Stored => {}
        Sort::Name => chosen.sort_by_key(|&at| entries.get(at).map(Entry::id)),
        Sort::Size => chosen.sort_by_key(|&at| std::cmp::Reverse(entries.get(at).and_then(Entry::bytes))),
    }
    Ok(chosen)
}

impl Render for Card {
    fn schema(&self) -> &'static str {
        "ckpt.inspect/1"
    }

    fn human(&self, width: Option<usize>) -> String {
        let mut lines = vec![self.head(), format!("format     {}: {}", self.format, self.variant)];
        lines.extend(self.mesh.as_ref().map(|mesh| format!("mesh       {mesh}")));
        lines.push(format!("model      {}", self.model.line("params")));
        if self.optimizer.tensors > 0 {
            lines.push(format!("optimizer  {}", self.optimizer.line("elems")));
        }
        if self.other.tensors > 0 {
            lines.push(format!("other      {}", self.other.line("elems")));
        }
        if self.objects_count > 0 {
            let bytes = units::bytes(self.objects_bytes as u64);
            lines.push(format!(
                "objects    {:>5} values   {bytes} (--objects lists them)",
                self.objects_count
            ));
        }
        lines.extend(self.rank_rules().map(|rule| format!("rank state {rule}")));
        let bytes = units::bytes(self.files_bytes);
        lines.push(format!(
            "files      {:>5} files    {bytes} in {} chunks",
            self.files_count, self.chunks_count
        ));
        lines.extend(self.compressed().map(|line| format!("compressed {line}")));
        lines.push(format!("integrity  {}", self.integrity));
        let (shown, rest) = self.screen();
        let mut tables: Vec<String> = self.tables(&shown).iter().map(|table| table.human(width)).collect();
        // The optimizer's line belongs to the tensors, which come first.
        match tables.first_mut() {
            Some(first) if !shown.is_empty() => first.push_str(&rest),
            _ => tables.extend((!rest.is_empty()).then_some(rest)),
        }
        let tables: String = tables.iter().map(|table| format!("\n{table}")).collect();
        lines.join("\n") + "\n" + &tables
    }

    fn plain(&self) -> String {
        let mut text = format!("location\t{}\nformat\t{}\n", self.location, self.format);
        self.step.iter().for_each(|step| text += &format!("step\t{step}\n"));
        self.mesh.iter().for_each(|mesh| text += &format!("mesh\t{mesh}\n"));
        for (name, totals) in [("model", &self.model), ("optimizer", &self.optimizer), ("other", &self.other)]
        {
            text += &format!("{name}\t{}\t{}\t{}\n", totals.tensors, totals.elements, totals.bytes);
        }
        self.rank_rules().for_each(|rule| text += &format!("rank_state\t{rule}\n"));
        if self.files_bytes != self.files_logical_bytes {
            let rules = self.codecs.as_deref().unwrap_or_default();
            text += &format!("compressed\t{}\t{}\t{rules}\n", self.files_bytes, self.files_logical_bytes);
        }
        text += &format!("integrity\t{}\n", self.integrity);
        text + &self
            .tables(&self.tensors.iter().collect::<Vec<_>>())
            .iter()
            .map(|table| format!("\n{}", table.plain()))
            .collect::<String>()
    }

    fn quiet(&self) -> String {
        self.tensors.iter().map(|line| line.fqn.clone() + "\n").collect()
    }
}
