//! `ckpt fqn`: the table of names as a baseline, and checks of a checkpoint against one.

use std::io::Write;

use dcp::formats::{Depth, OpenOptions};
use dcp::ops::naming::{self, NamingRequest};
use dcp::{Catalog, Error, Place, Result};
use fqn::baseline::{self, CheckReport, Observed, Piece};
use serde::Serialize;

use super::{Context, open};
use crate::output::{
    Render,
    style::{harmless, word},
    table::{Align, Table},
};
use crate::{cli, exit, output};

/// Runs `fqn baseline` or `fqn check`.
pub(crate) fn run(context: &Context<'_>, verb: &cli::FqnVerb) -> Result<exit::Code> {
    match verb {
        cli::FqnVerb::Baseline(args) => write(context, args),
        cli::FqnVerb::Check(args) => check(context, args),
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Written {
    baseline: String,
    tensors: usize,
    placement: String,
}

fn write(context: &Context<'_>, args: &cli::Baseline) -> Result<exit::Code> {
    let opened = open::open(&args.target, OpenOptions::new().depth(Depth::Catalog))?;
    let request = NamingRequest {
        preset: args.naming.preset.clone(),
        rules: args.naming.rules.as_deref().map(open::text_of).transpose()?,
        place: args.naming.place.clone(),
        ..NamingRequest::default()
    };
    let named = naming::name(&opened.source.catalog().registry, &request)?;
    let text = baseline::write(&named.registry).map_err(|e| Error::internal(e.to_string()))?;
    let Some(path) = &args.output else {
        anstream::stdout().write_all(text.as_bytes()).place("stdout")?;
        return Ok(exit::DONE);
    };
    // A baseline is written once, before any split; one that is there is somebody's reference.
    let mut file = std::fs::File::create_new(path).place(path.display())?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).place(path.display())?;
    let written = Written {
        baseline: path.display().to_string(),
        tensors: named.registry.len(),
        placement: named.origin,
    };
    output::show(context.global, &args.target.to_string(), context.since, &opened.warnings, &written)?;
    Ok(exit::DONE)
}

impl Render for Written {
    const SCHEMA: &'static str = "ckpt.fqn.baseline/1";

    fn human(&self, _width: Option<usize>) -> String {
        format!(
            "{}  {} tensors to {}; placement: {}\n",
            word("wrote"),
            self.tensors,
            self.baseline,
            self.placement
        )
    }

    fn plain(&self) -> String {
        format!("wrote\t{}\t{}\n", self.baseline, self.tensors)
    }

    fn quiet(&self) -> String {
        self.baseline.clone() + "\n"
    }
}

/// A check's result, with what it was made against.
#[derive(Debug, Serialize)]
struct Checked {
    baseline_file: String,
    clean: bool,
    report: CheckReport,
}

fn check(context: &Context<'_>, args: &cli::Check) -> Result<exit::Code> {
    let expected = baseline::read(&open::text_of(&args.baseline)?)
        .map_err(|e| Error::corrupt(format!("{}: {e}", args.baseline.display())).caused_by(e))?;
    let opened = open::open(&args.target, OpenOptions::new().depth(Depth::Catalog))?;
    let catalog = opened.source.catalog();
    let expected = if args.model_only { model_of(&expected)? } else { expected };
    let observed = if args.model_only { model_of(&catalog.registry)? } else { catalog.registry.clone() };
    let pieces = pieces(catalog);
    let report = baseline::check(&expected, Observed { registry: &observed, pieces: &pieces });
    let code = if report.is_clean() { exit::DONE } else { exit::DIFFERENT };
    let checked =
        Checked { baseline_file: args.baseline.display().to_string(), clean: report.is_clean(), report };
    output::show(context.global, &args.target.to_string(), context.since, &opened.warnings, &checked)?;
    Ok(code)
}

fn model_of(registry: &fqn::Registry) -> Result<fqn::Registry> {
    let mut model = fqn::Registry::new();
    for entry in registry.entries().iter().filter(|entry| entry.role.is_model()) {
        model.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
    }
    Ok(model)
}

/// Who holds what: chunks by file, so that one box claimed by two files is seen.
fn pieces(catalog: &Catalog) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (entry, chunks) in catalog.iter() {
        pieces.extend(chunks.chunks.iter().map(|chunk| Piece {
            id: entry.id(),
            holder: catalog.file(chunk.file).map_or_else(|_| String::new(), |file| file.path.clone()),
            offset: chunk.region.offsets().iter().copied().collect(),
            extent: chunk.region.extents().iter().copied().collect(),
            digest: None,
        }));
    }
    pieces
}

impl Checked {
    fn table(&self) -> Table {
        let columns = [
            ("finding", Align::Left),
            ("tensor", Align::Left),
            ("what", Align::Left),
            ("what to do", Align::Left),
        ];
        let mut table = Table::new(&columns);
        for finding in &self.report.findings {
            let name = match &finding.observed {
                Some(seen) if *seen != finding.id => format!("{} as {seen}", finding.id),
                _ => finding.id.to_string(),
            };
            let cells = [finding.code.text(), &name, &finding.detail, &finding.advice];
            table.row(cells.map(harmless));
        }
        table
    }

    fn summary(&self) -> String {
        let verdict = if self.clean { "ok" } else { "different" };
        format!(
            "{}  {} of {} tensors of the baseline agree, {} findings\n",
            word(verdict),
            self.report.agreeing,
            self.report.baseline,
            self.report.findings.len()
        )
    }
}

impl Render for Checked {
    const SCHEMA: &'static str = "ckpt.fqn.check/1";

    fn human(&self, _width: Option<usize>) -> String {
        let mut text = String::new();
        for finding in &self.report.findings {
            let seen = finding.observed.as_ref().map_or_else(String::new, |seen| format!(" (here {seen})"));
            text += &format!(
                "{}  {}{}\n",
                word(finding.code.text()),
                harmless(&finding.id.to_string()),
                harmless(&seen)
            );
            text += &format!("    {}\n    {}\n", harmless(&finding.detail), harmless(&finding.advice));
        }
        text + &self.summary()
    }

    fn plain(&self) -> String {
        if self.report.findings.is_empty() { String::new() } else { self.table().plain() }
    }

    fn quiet(&self) -> String {
        self.report.findings.iter().map(|finding| format!("{}\n", finding.id)).collect()
    }
}
