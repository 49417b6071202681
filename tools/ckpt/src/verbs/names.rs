//! `ckpt fqn`: writes the table of a checkpoint's names, or checks a checkpoint against one.

use dcp::formats::{Depth, OpenOptions};
use dcp::ops::naming;
use dcp::{Catalog, Chunk, Error, Result};
use fqn::baseline::{self, CheckReport, Finding, Observed, Piece};
use fqn::{Entry, Registry};
use serde::Serialize;

use super::{Context, facts, open};
use crate::output::{
    self, Render,
    style::{self, harmless},
};
use crate::{cli, exit, files};

/// Writes or checks.
pub(super) fn run(context: &Context<'_>, verb: &cli::FqnVerb) -> Result<exit::Code> {
    match verb {
        cli::FqnVerb::Baseline(args) => write(context, args),
        cli::FqnVerb::Check(args) => check(context, args),
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Wrote {
    file: String,
    tensors: usize,
    placement: String,
}

fn write(context: &Context<'_>, args: &cli::Baseline) -> Result<exit::Code> {
    let opened = open::open(&args.target, OpenOptions::new().depth(Depth::Catalog))?;
    let catalog = opened.source.catalog();
    let glob = super::pattern(args.target.glob.as_deref())?;
    let registry = selected(catalog, |entry| super::matches(glob.as_ref(), entry))?;
    let named = naming::name(&registry, &facts::naming(&args.naming, catalog)?)?;
    let text = baseline::write(&named.registry).map_err(|e| Error::internal(e.to_string()))?;
    let Some(file) = &args.output else {
        output::print(&text)?;
        return Ok(exit::DONE);
    };
    files::create(file, text.as_bytes())?;
    let wrote =
        Wrote { file: file.display().to_string(), tensors: named.registry.len(), placement: named.origin };
    output::show(context, &args.target.to_string(), &opened.warnings, &wrote)?;
    Ok(exit::DONE)
}

impl Render for Wrote {
    fn schema(&self) -> &'static str {
        "ckpt.fqn.baseline/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        format!(
            "written    {}\ntensors    {}\nplacement  {}\n",
            harmless(&self.file),
            self.tensors,
            self.placement
        )
    }

    fn plain(&self) -> String {
        format!("written\t{}\t{}\n", harmless(&self.file), self.tensors)
    }

    fn quiet(&self) -> String {
        harmless(&self.file) + "\n"
    }
}

/// What does not agree.
#[derive(Debug, Serialize)]
struct Checked {
    baseline_file: String,
    clean: bool,
    report: CheckReport,
}

fn check(context: &Context<'_>, args: &cli::Check) -> Result<exit::Code> {
    let file = args.baseline.display().to_string();
    let text = open::text_of(&args.baseline)?;
    let baseline = baseline::read(&text).map_err(|e| {
        let hint = "`ckpt fqn baseline CHECKPOINT -o FILE` writes one";
        Error::incompatible(format!("{file}: {e}")).caused_by(e).hint(hint)
    })?;
    let opened = open::open(&args.target, OpenOptions::new())?;
    let catalog = opened.source.catalog();
    let glob = super::pattern(args.target.glob.as_deref())?;
    let wanted =
        |entry: &Entry| (!args.model_only || entry.role.is_model()) && super::matches(glob.as_ref(), entry);
    let (registry, expected) = (selected(catalog, wanted)?, kept(&baseline, wanted)?);
    let pieces = pieces(catalog, &registry);
    let report = baseline::check(&expected, Observed { registry: &registry, pieces: &pieces });
    let checked = Checked { baseline_file: file, clean: report.is_clean(), report };
    output::show(context, &args.target.to_string(), &opened.warnings, &checked)?;
    Ok(if checked.clean { exit::DONE } else { exit::DIFFERENT })
}

fn selected(catalog: &Catalog, wanted: impl Fn(&Entry) -> bool) -> Result<Registry> {
    kept(&catalog.registry, wanted)
}

fn kept(registry: &Registry, wanted: impl Fn(&Entry) -> bool) -> Result<Registry> {
    let mut kept = Registry::new();
    for entry in registry.entries().iter().filter(|entry| wanted(entry)) {
        kept.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
    }
    Ok(kept)
}

/// Who holds which part, with its CRC-32 where one covers exactly that part: what collisions are found by.
fn pieces(catalog: &Catalog, registry: &Registry) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (entry, chunks) in catalog.iter() {
        let id = entry.id();
        if registry.position(&id).is_none() {
            continue;
        }
        pieces.extend(chunks.chunks.iter().map(|chunk| Piece {
            id: id.clone(),
            holder: catalog.file(chunk.file).map_or_else(|_| String::new(), |file| file.path.clone()),
            offset: chunk.region.offsets().iter().copied().collect(),
            extent: chunk.region.extents().iter().copied().collect(),
            digest: digest(entry, &chunk),
        }));
    }
    pieces
}

fn digest(entry: &Entry, chunk: &Chunk) -> Option<[u64; 2]> {
    let record = chunk.record.filter(|record| {
        record.offset == chunk.offset && Some(record.len) == chunk.span(entry.dtype) && chunk.is_packed()
    })?;
    Some([u64::from(record.crc32), record.len])
}

impl Render for Checked {
    fn schema(&self) -> &'static str {
        "ckpt.fqn.check/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let mut text = String::new();
        for finding in &self.report.findings {
            let word = finding.code.text();
            let pad = " ".repeat(18_usize.saturating_sub(word.len()));
            text += &format!("{}{pad}{}\n", style::word(word), name(finding));
            text += &format!("{:18}{}\n", "", harmless(&finding.detail));
            text += &format!("{:18}{}\n", "", style::faint(&harmless(&finding.advice)));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let verdict = if self.clean { style::word("ok") } else { style::word("different") };
        let CheckReport { baseline, observed, agreeing, findings, .. } = &self.report;
        text + &format!(
            "{:18}{verdict}  {agreeing} of {baseline} tensors agree, {observed} in the checkpoint, {} findings\n",
            "verdict",
            findings.len()
        )
    }

    fn plain(&self) -> String {
        let line = |finding: &Finding| {
            let observed = finding.observed.as_ref().map(ToString::to_string).unwrap_or_default();
            let fields = [
                finding.code.text().to_owned(),
                finding.id.to_string(),
                observed,
                finding.detail.clone(),
                finding.advice.clone(),
            ];
            fields.map(|field| harmless(&field)).join("\t") + "\n"
        };
        let findings: String = self.report.findings.iter().map(line).collect();
        let verdict = if self.clean { "ok" } else { "different" };
        let CheckReport { baseline, observed, agreeing, .. } = &self.report;
        findings
            + &format!("summary\t{verdict}\t{agreeing} agree\t{baseline} expected\t{observed} observed\n")
    }

    fn quiet(&self) -> String {
        self.report.findings.iter().map(|finding| harmless(&finding.id.to_string()) + "\n").collect()
    }
}

fn name(finding: &Finding) -> String {
    match &finding.observed {
        Some(observed) if *observed != finding.id => harmless(&format!("{} -> {observed}", finding.id)),
        _ => harmless(&finding.id.to_string()),
    }
}
