//! `ckpt verify`: proves that a checkpoint is whole, or lists everything that is wrong with it, worst first.
//!
//! Each line begins with one word, so that `grep ^corrupt` works; findings are data and go to stdout.

use std::num::NonZeroUsize;

use dcp::formats::{OpenOptions, Strictness};
use dcp::ops::standing::Standing;
use dcp::ops::verify::{Coverage, Subset, VerifyOptions, VerifyReport, verify};
use dcp::{Catalog, Chunk, Chunks, Error, Finding, FindingCode, Format, Result, Severity, Source};
use fqn::Entry;
use serde::Serialize;

use super::{Context, open, root};
use crate::output::{self, Render, style, units};
use crate::{cli, exit};

/// What was found.
#[derive(Debug, Serialize)]
struct Verified {
    location: String,
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    sound: bool,
    /// Of a native store: committed, sealed, incomplete, damaged or mixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    standing: Option<Standing>,
    errors: usize,
    warnings: usize,
    notes: usize,
    #[serde(flatten)]
    report: VerifyReport,
    /// Bytes of tensors that no checksum covers.
    unprotected_bytes: u64,
    /// Whether the log says so now.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<bool>,
    #[serde(skip)]
    read_data: bool,
}

/// Verifies the target.
pub(super) fn run(context: &Context<'_>, args: &cli::Verify) -> Result<exit::Code> {
    if args.target.glob.is_some() {
        return Err(Error::incompatible(format!(
            "{}: a checkpoint is verified whole, not by names",
            args.target
        ))
        .hint("leave #GLOB out; findings can be filtered by tensor"));
    }
    let opened = open::open(&args.target, OpenOptions::new().strictness(Strictness::Lenient))?;
    // Hours of reading are not spent on what no log could be told.
    let record = args.record.then(|| recorder(&opened)).transpose()?;
    let part = args.subset.map_or(Subset::All, |part| part.subset(args.subset_seed));
    let subset = if args.structure_only { Subset::Nothing } else { part };
    let options = VerifyOptions {
        threads: threads(context, &[&*opened.source]),
        max_memory: context.global.max_memory,
        subset,
    };
    let mut report = verify(&*opened.source, &options, &*context.progress, &context.cancel)?;
    // Causes before what follows from them: a missing file makes gaps.
    report.findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), rank(finding.code)));
    let of = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    // What was found is shown whether it could be noted or not.
    let recorded = record.map(|record| record.note(report.is_sound()));
    let catalog = opened.source.catalog();
    let verified = Verified {
        location: opened.location,
        format: catalog.format.name(),
        step: catalog.step,
        sound: report.is_sound(),
        standing: (opened.commit.is_some() || catalog.format == Format::Native)
            .then(|| Standing::of_findings(opened.commit.is_some(), &report.findings)),
        errors: of(Severity::Error),
        warnings: of(Severity::Warning),
        notes: of(Severity::Note),
        unprotected_bytes: unprotected(catalog),
        recorded: recorded.as_ref().map(Result::is_ok),
        read_data: !args.structure_only,
        report,
    };
    output::show(context, &args.target.to_string(), &opened.warnings, &verified)?;
    recorded.transpose()?;
    Ok(if verified.sound { exit::DONE } else { exit::CORRUPT })
}

/// The log that is to be told what is found; a damaged checkpoint loses what an earlier verification said.
fn recorder(opened: &open::Opened) -> Result<root::Recorder> {
    let commit = opened.commit.as_ref().ok_or_else(|| {
        Error::incompatible(format!(
            "{}: was not committed to a native root, so no log could say it",
            opened.location
        ))
        .hint("leave --record out, or `ckpt seal` it first")
    })?;
    root::Recorder::of(&opened.location, commit)
}

/// Bytes of chunks that neither a block table nor a record with a CRC-32 covers.
fn unprotected(catalog: &Catalog) -> u64 {
    let hashed = |chunk: &Chunk| catalog.file(chunk.file).is_ok_and(|file| file.blocks.is_some());
    let of = |(entry, chunks): (&Entry, &Chunks)| {
        let bare = chunks.chunks.iter().filter(|chunk| chunk.record.is_none() && !hashed(chunk));
        bare.filter_map(|chunk| entry.dtype.bytes_for(chunk.region.elements())).fold(0, u64::saturating_add)
    };
    catalog.iter().map(of).fold(0, u64::saturating_add)
}

/// What is wrong with an opened checkpoint, as a failure; nothing where it is sound.
pub(super) fn prove(context: &Context<'_>, opened: &open::Opened) -> Result<VerifyReport> {
    let options = VerifyOptions {
        threads: threads(context, &[&*opened.source]),
        max_memory: context.global.max_memory,
        ..VerifyOptions::default()
    };
    let report = verify(&*opened.source, &options, &*context.progress, &context.cancel)?;
    let worst = report.findings.iter().find(|finding| finding.severity == Severity::Error);
    match worst {
        None => Ok(report),
        Some(finding) => Err(Error::corrupt(sentence(finding))
            .at(&opened.location)
            .hint("`ckpt verify` lists all findings")),
    }
}

/// One word for what was found.
const fn word(finding: &Finding) -> &'static str {
    match finding.code {
        FindingCode::CrcMismatch
        | FindingCode::BlockMismatch
        | FindingCode::DigestMismatch
        | FindingCode::FingerprintMismatch => "corrupt",
        FindingCode::MissingFile => "missing",
        FindingCode::SizeMismatch | FindingCode::LengthMismatch => "torn",
        FindingCode::Gap => "gap",
        FindingCode::Overlap => "overlap",
        FindingCode::OutOfBounds => "outside",
        FindingCode::MetadataMismatch | FindingCode::IndexMismatch => "mismatch",
        FindingCode::OrphanFile | FindingCode::OrphanBytes => "orphan",
        FindingCode::StaleFile => "stale",
        FindingCode::Mixed => "mixed",
        FindingCode::ChecksumsOff => "unchecked",
        FindingCode::UnknownGlobal => "refused",
        FindingCode::Uncommitted => "uncommitted",
        _ => match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warn",
            Severity::Note => "note",
        },
    }
}

/// Place of a finding among those that are as bad.
const fn rank(code: FindingCode) -> u8 {
    match code {
        FindingCode::CrcMismatch
        | FindingCode::BlockMismatch
        | FindingCode::DigestMismatch
        | FindingCode::FingerprintMismatch => 0,
        FindingCode::MissingFile | FindingCode::Mixed => 1,
        FindingCode::SizeMismatch | FindingCode::LengthMismatch | FindingCode::StaleFile => 2,
        FindingCode::MetadataMismatch | FindingCode::IndexMismatch | FindingCode::UnknownGlobal => 3,
        FindingCode::Gap | FindingCode::Overlap | FindingCode::OutOfBounds => 4,
        _ => 5,
    }
}

/// What to do, also where the check does not say it.
fn hint(finding: &Finding) -> Option<&str> {
    let usual = match finding.code {
        FindingCode::MissingFile | FindingCode::SizeMismatch | FindingCode::StaleFile => {
            Some("copy the file again from where the checkpoint came from")
        }
        _ => None,
    };
    finding.hint.as_deref().or(usual)
}

fn place(finding: &Finding) -> String {
    let tensor = finding.tensor.iter().map(ToString::to_string);
    let parts = tensor.chain(finding.range.clone()).chain(finding.file.clone()).collect::<Vec<_>>();
    style::harmless(&parts.join("  "))
}

fn sentence(finding: &Finding) -> String {
    match place(finding) {
        place if place.is_empty() => finding.message.clone(),
        place => format!("{place}: {}", finding.message),
    }
}

/// What lies there, in a word, and what that means.
fn standing_line(standing: Standing) -> String {
    let means = match standing {
        Standing::Committed => "its root's log names it",
        Standing::Sealed => "whole by itself; only a root could say that it was committed",
        Standing::Incomplete => "something is missing or cut short: copy it again from where it came",
        Standing::Damaged => "there are other bytes than were written",
        Standing::Mixed => "parts of two roots, or of two states of one, lie together",
    };
    format!("{}: {means}", style::word(standing.word()))
}

/// Widest word, and the blanks that follow it.
const INDENT: usize = 11;

impl Verified {
    fn lines(&self, finding: &Finding) -> String {
        let word = word(finding);
        let pad = " ".repeat(INDENT.saturating_sub(word.len()));
        let indent = " ".repeat(INDENT);
        let (place, message) = (place(finding), style::harmless(&finding.message));
        let first = if place.is_empty() { message.clone() } else { place.clone() };
        let mut text = format!("{}{pad}{first}\n", style::word(word));
        if !place.is_empty() {
            text += &format!("{indent}{message}\n");
        }
        if let Some(hint) = hint(finding) {
            text += &format!("{indent}{}\n", style::faint(&style::harmless(hint)));
        }
        text
    }

    fn proof(&self) -> String {
        let sums = &self.report.checksums;
        let mut parts = Vec::new();
        if sums.block_files > 0 {
            parts.push(format!("{} by SHA-256 blocks", units::bytes(sums.block_bytes)));
        }
        if sums.record_files > 0 {
            parts.push(format!("{} by CRC-32", units::bytes(sums.record_bytes)));
        }
        if self.unprotected_bytes > 0 {
            let bytes = units::bytes(self.unprotected_bytes);
            parts.push(format!("{bytes} of tensors by nothing: no checksum covers them"));
        }
        if parts.is_empty() { "there is no tensor data".to_owned() } else { parts.join(", ") }
    }

    /// Which part was read, where it was not all.
    fn part(&self) -> Option<String> {
        let Coverage { parts, units, of_units, bytes, of_bytes, .. } = self.report.coverage;
        let parts = parts?;
        let which = match (parts.first(), parts.count()) {
            (first, 1) => first.to_string(),
            (first, count) => format!("{first} to {}", first + count - 1),
        };
        let (bytes, of_bytes) = (units::bytes(bytes), units::bytes(of_bytes));
        Some(format!(
            "{which} of {}: {bytes} of {of_bytes} in {units} of {of_units} blocks; the rest was not read",
            parts.of()
        ))
    }

    /// What was left out was not verified: of it nothing is said.
    const fn verdict_word(&self) -> &'static str {
        match (self.sound, self.report.coverage.parts) {
            (false, _) => "corrupt",
            (true, Some(_)) => "partial",
            (true, None) => "ok",
        }
    }

    fn verdict(&self) -> String {
        let verdict = style::word(self.verdict_word());
        let count = units::many;
        let notes = if self.notes > 0 { format!(", {}", count(self.notes, "note")) } else { String::new() };
        format!(
            "{verdict}  {}, {}{notes} in {} and {}",
            count(self.errors, "error"),
            count(self.warnings, "warning"),
            count(self.report.files, "file"),
            count(self.report.tensors, "tensor"),
        )
    }
}

impl Render for Verified {
    fn schema(&self) -> &'static str {
        "ckpt.verify/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        let mut text: String = self.report.findings.iter().map(|finding| self.lines(finding)).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        text += &format!("{:INDENT$}{} ({})\n", "verified", style::harmless(&self.location), self.format);
        if self.read_data {
            text += &format!("{:INDENT$}{}\n", "proven", self.proof());
        } else {
            text += &format!("{:INDENT$}metadata and sizes only; no data was read\n", "proven");
        }
        if let Some(recorded) = self.recorded {
            let what = if recorded { "in the log" } else { "not: the log could not be written" };
            text += &format!("{:INDENT$}{what}\n", "recorded");
        }
        if let Some(part) = self.part() {
            text += &format!("{:INDENT$}{part}\n", "part");
        }
        if let Some(standing) = self.standing {
            text += &format!("{:INDENT$}{}\n", "standing", standing_line(standing));
        }
        text + &format!("{:INDENT$}{}\n", "verdict", self.verdict())
    }

    fn plain(&self) -> String {
        let line = |finding: &Finding| {
            let fields = [
                word(finding).to_owned(),
                finding.tensor.as_ref().map(ToString::to_string).unwrap_or_default(),
                finding.range.clone().unwrap_or_default(),
                finding.file.clone().unwrap_or_default(),
                finding.message.clone(),
                hint(finding).unwrap_or_default().to_owned(),
            ];
            fields.map(|field| style::harmless(&field)).join("\t") + "\n"
        };
        let findings: String = self.report.findings.iter().map(line).collect();
        let verdict = self.verdict_word();
        let (errors, warnings) = (self.errors, self.warnings);
        findings
            + &format!(
                "summary\t{verdict}\t{errors} errors\t{warnings} warnings\t{} bytes read\n",
                self.report.bytes
            )
    }

    fn quiet(&self) -> String {
        let errors = self.report.findings.iter().filter(|finding| finding.severity == Severity::Error);
        errors.map(|finding| place(finding) + "\n").collect()
    }
}

/// The threads that were asked for, or those that suit these sources.
pub(super) fn threads(context: &Context<'_>, sources: &[&dyn Source]) -> NonZeroUsize {
    context.global.jobs.unwrap_or_else(|| dcp::engine::threads(sources))
}
