//! [`examine`]: whether a place is fit to hold a root, and what is not as it should be in the one that is there.
//!
//! Invariants: it changes nothing (it puts and removes probes); what can't be asked is said, never passed over; only what endangers
//! checkpoints is an error.

mod place;
mod root;

use serde::Serialize;

use crate::{
    Error, ErrorKind, Place, Result, Severity,
    commit::{CommitError, Log, LogOptions, Seq},
    retention::Bulk,
    store::{FileSystem, Root},
};

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Stable code, as scripts see it.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What, where and why.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What a caller can do about an error.
    #[serde(skip)]
    pub kind: Option<ErrorKind>,
}

/// What an examination found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Examination {
    /// Everything that was found, worst first.
    pub findings: Vec<Diagnosis>,
    /// The file system, of a folder.
    pub file_system: Option<FileSystem>,
    /// By how many milliseconds the clock of the store is ahead of this machine's.
    pub clock_offset_ms: Option<i64>,
    /// The last record.
    pub head: Option<Seq>,
    /// Records of the log.
    pub records: u64,
    /// Records that have no effect.
    pub voids: usize,
    /// Checkpoints that exist.
    pub checkpoints: usize,
    /// Everything that the store lists of it, without folders of others that nobody looked into.
    pub total: Bulk,
}

/// Examines the place of a root.
///
/// # Errors
/// `NotFound` for a folder of something else; the store's where it can't be asked at all.
pub fn examine(root: &Root, options: &LogOptions) -> Result<Examination> {
    refuse_others(root)?;
    let mut found = Examination::default();
    found.probe(root);
    found.place(root);
    let times = found.clock(root, options)?;
    match Log::open_with(root, options.clone()) {
        Ok(log) => found.root(&log, &times)?,
        Err(CommitError::Store(error)) => return Err(error.into()),
        // Written by a later version: there is nothing to audit.
        Err(error @ (CommitError::Newer { .. } | CommitError::NotUnderstood { .. })) => {
            found.add(Severity::Error, "log", error.to_string(), None, Error::from(error).kind());
        }
        Err(error) => found.unopened(root, options, &error)?,
    }
    found.findings.sort_by_key(|it| std::cmp::Reverse(it.severity));
    Ok(found)
}

/// A folder that holds something else is none of ours: nothing is put there.
fn refuse_others(root: &Root) -> Result<()> {
    let listing = root.list_dir(None).place(root.display_name())?;
    let names = || listing.dirs.iter().chain(listing.objects.iter().map(|object| &object.path));
    let ours = |name: &str| name == "commits" || name.starts_with("step-") || name.starts_with('.');
    if names().any(|name| ours(name.as_ref())) {
        return Ok(());
    }
    names().next().map_or(Ok(()), |name| {
        let text = format!(
            "{}: holds {name}, and no commit log: it is no root of the native store",
            root.display_name()
        );
        Err(Error::new(ErrorKind::NotFound, text)
            .hint("give a root, or an empty folder that shall become one"))
    })
}

impl Examination {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        message: String,
        hint: Option<&str>,
        kind: ErrorKind,
    ) {
        let kind = (severity == Severity::Error).then_some(kind);
        self.findings.push(Diagnosis { code, severity, message, hint: hint.map(str::to_owned), kind });
    }

    fn note(&mut self, code: &'static str, message: String) {
        self.add(Severity::Note, code, message, None, ErrorKind::Internal);
    }

    fn warn(&mut self, code: &'static str, message: String, hint: &str) {
        self.add(Severity::Warning, code, message, Some(hint), ErrorKind::Internal);
    }

    fn error(&mut self, code: &'static str, message: String, hint: &str, kind: ErrorKind) {
        self.add(Severity::Error, code, message, Some(hint), kind);
    }

    /// The worst error, as a caller can react to it.
    #[must_use]
    pub fn worst(&self) -> Option<ErrorKind> {
        self.findings.iter().find_map(|finding| finding.kind)
    }
}

#[cfg(test)]
mod tests;
