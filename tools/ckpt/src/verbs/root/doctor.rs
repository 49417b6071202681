//! `ckpt doctor`: whether a place is fit for checkpoints, and what is not as it should be in a root.

use dcp::ops::doctor::{Diagnosis, Examination, examine};
use dcp::store::{Root, Stores};
use dcp::{Result, Severity};
use serde::Serialize;

use super::{options, whole_root};
use crate::output::{self, Render, style, units};
use crate::verbs::Context;
use crate::{cli, exit};

#[derive(Debug, Serialize)]
struct Health {
    location: String,
    /// Whether nothing endangers checkpoints.
    healthy: bool,
    report: Examination,
}

/// Examines the place.
pub(in crate::verbs) fn run(context: &Context<'_>, args: &cli::Doctor) -> Result<exit::Code> {
    whole_root(&args.root)?;
    let root = Root::open(&args.root.location, &Stores::new())?;
    let report = examine(&root, &options())?;
    let worst = report.worst();
    let health = Health { location: args.root.location.clone(), healthy: worst.is_none(), report };
    output::show(context, &args.root.to_string(), &[], &health)?;
    Ok(worst.map_or(exit::DONE, exit::code_of))
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "ok",
        Severity::Warning => "warn",
        Severity::Error => "error",
    }
}

impl Health {
    fn line(finding: &Diagnosis) -> String {
        let word = word(finding.severity);
        let pad = " ".repeat(7_usize.saturating_sub(word.len()));
        let mut text =
            format!("{}{pad}{:<13}{}\n", style::word(word), finding.code, style::harmless(&finding.message));
        if let Some(hint) = &finding.hint {
            text += &format!("{:20}{}\n", "", style::faint(&style::harmless(hint)));
        }
        text
    }
}

impl Render for Health {
    fn schema(&self) -> &'static str {
        "ckpt.doctor/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let report = &self.report;
        let mut text: String = report.findings.iter().map(Self::line).collect();
        let total = units::bytes(report.total.bytes);
        let (checkpoints, location) =
            (units::many(report.checkpoints, "checkpoint"), style::harmless(&self.location));
        let space = report
            .file_system
            .as_ref()
            .map(|it| format!(", {} free", units::bytes(it.free_bytes)))
            .unwrap_or_default();
        let count = |severity| report.findings.iter().filter(|it| it.severity == severity).count();
        let errors = units::many(count(Severity::Error), "error");
        text += &format!("\n{location}  {checkpoints}, {} records, {total}{space}\n", report.records);
        text + &format!("{errors}, {}\n", units::many(count(Severity::Warning), "warning"))
    }

    fn plain(&self) -> String {
        let line = |it: &Diagnosis| {
            let hint = it.hint.as_deref().unwrap_or_default();
            [word(it.severity), it.code, &style::harmless(&it.message), &style::harmless(hint)].join("\t")
                + "\n"
        };
        self.report.findings.iter().map(line).collect()
    }

    fn quiet(&self) -> String {
        let bad = self.report.findings.iter().filter(|it| it.severity > Severity::Note);
        bad.map(|it| format!("{}\n", it.code)).collect()
    }
}
