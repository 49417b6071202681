//! What only the store itself can check without reading blobs: the log's chain, the record against the manifest, files
//! against the manifest, block tables against their roots, and what lies in the folder that nothing names.

use std::collections::BTreeSet;

use super::{NativeSource, files::Look};
use crate::{
    Error, FileEntry, FileId, Finding, FindingCode, Location, Result, Severity, commit::CommitError,
    manifest::manifest_digest, store::object_path,
};

/// Everything that is wrong.
///
/// # Errors
/// Where the store could not be asked.
pub(super) fn audit(source: &NativeSource) -> Result<Vec<Finding>> {
    let mut findings = source.forgiven.clone();
    log(source, &mut findings)?;
    record(source, &mut findings);
    for (at, entry) in source.manifest.catalog.files.iter().enumerate() {
        let file = FileId(u32::try_from(at).map_err(|_| Error::internal("more than 2^32 files"))?);
        self::file(source, file, entry, &mut findings)?;
    }
    orphans(source, &mut findings)?;
    Ok(findings)
}

/// An object that could not be read.
pub(super) fn unread(key: &str, error: &Error) -> Finding {
    let code = FindingCode::of_error(error, FindingCode::BlockMismatch);
    Finding::new(Severity::Error, code, format!("object {key} cannot be read: {error}"))
}

fn log(source: &NativeSource, findings: &mut Vec<Finding>) -> Result<()> {
    let Some(log) = &source.log else {
        if source.committed.is_some() {
            return Ok(());
        }
        let text = "sealed: manifest, files and digests can be checked, but no commit log says that it was committed";
        findings
            .push(Finding::new(Severity::Note, FindingCode::Uncommitted, text).hint("open the root to know"));
        return Ok(());
    };
    let audit = log.audit()?;
    findings.extend(audit.findings.iter().map(|found| {
        let hint = "the root is a mixture, or was copied in part; copy it again from where it came";
        Finding::new(Severity::Error, code_of_record(&found.error), found.error.to_string())
            .file(found.seq.path())
            .hint(hint)
    }));
    findings.extend(audit.voids.iter().map(|(seq, void)| {
        Finding::new(Severity::Note, FindingCode::Other, format!("has no effect: {void}")).file(seq.path())
    }));
    Ok(())
}

/// What is wrong with a record.
fn code_of_record(error: &CommitError) -> FindingCode {
    match error {
        CommitError::Mixed { .. } => FindingCode::Mixed,
        CommitError::Incomplete { .. } => FindingCode::MissingFile,
        error if error.is_cut() => FindingCode::SizeMismatch,
        _ => FindingCode::DigestMismatch,
    }
}

/// The record says what the manifest says.
fn record(source: &NativeSource, findings: &mut Vec<Finding>) {
    let Some(facts) = &source.committed else { return };
    let catalog = &source.manifest.catalog;
    let mut contradiction = |text: String| {
        findings
            .push(Finding::new(Severity::Error, FindingCode::MetadataMismatch, text).file(facts.seq.path()));
    };
    if let Some(step) = catalog.step.filter(|step| *step != facts.step) {
        contradiction(format!("the record says step {}, the manifest step {step}", facts.step));
    }
    let checkpoint = source.log.as_ref().and_then(|log| log.state().checkpoints.get(&facts.seq));
    let Some(checkpoint) = checkpoint else { return };
    let in_root = catalog.files.iter().filter(|file| file.location == Location::InRoot);
    let used: BTreeSet<&str> = in_root.filter_map(|file| file.path.split('/').next()).collect();
    for dir in used {
        if !dir.parse().is_ok_and(|dir| checkpoint.needs(&dir)) {
            contradiction(format!("the manifest has blobs in {dir}, which the record does not hold"));
        }
    }
}

fn file(source: &NativeSource, file: FileId, entry: &FileEntry, findings: &mut Vec<Finding>) -> Result<()> {
    let mut found = |severity, code, text: String| {
        findings.push(Finding::new(severity, code, text).file(&entry.path));
    };
    match source.files.look_at(file)? {
        Look::Same => {}
        Look::Missing(why) => found(Severity::Error, FindingCode::MissingFile, why),
        Look::Size(size) => {
            let text = format!("{size} bytes, the manifest says {}: cut short, or another file", entry.size);
            found(Severity::Error, FindingCode::SizeMismatch, text);
        }
        Look::Changed => found(
            Severity::Warning,
            FindingCode::StaleFile,
            "was written to after it was sealed; its blocks tell whether its bytes are still the same"
                .to_owned(),
        ),
    }
    match source.files.blocks(file) {
        Ok(Some(_)) => {}
        Ok(None) => found(Severity::Note, FindingCode::ChecksumsOff, "has no block table".to_owned()),
        Err(error) => {
            found(
                Severity::Error,
                FindingCode::of_error(&error, FindingCode::DigestMismatch),
                error.to_string(),
            );
        }
    }
    Ok(())
}

/// What lies in the step's folder that neither the manifest nor the layout of a store accounts for.
fn orphans(source: &NativeSource, findings: &mut Vec<Finding>) -> Result<()> {
    let prefix = if source.dir.is_empty() { None } else { Some(object_path(&source.dir)?) };
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for entry in &source.manifest.catalog.files {
        if entry.location == Location::InStep {
            named.insert(&entry.path);
        }
        named.extend(
            entry.blocks.as_ref().filter(|_| entry.location != Location::InRoot).map(|it| it.path.as_str()),
        );
    }
    let skip = if source.dir.is_empty() { 0 } else { source.dir.len() + 1 };
    for object in source.root.list(prefix.as_ref())? {
        let Some(name) = object.path.as_ref().get(skip..) else { continue };
        let own = manifest_digest(name) == Some(source.digest);
        if own || named.contains(name) || name.starts_with("parts/") {
            continue;
        }
        let text = format!(
            "{} bytes that the manifest does not name; left by a writer that was stopped or slower",
            object.size
        );
        findings.push(Finding::new(Severity::Warning, FindingCode::OrphanFile, text).file(name));
    }
    Ok(())
}
