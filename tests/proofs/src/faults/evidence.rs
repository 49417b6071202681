//! What the product says of a damaged root: `verify` as `ckpt verify ROOT@seq:N` does it, and the audit of the log. Each statement is
//! kept with the check that made it, so that the proof can be asked what it would be worth without that check.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::num::NonZeroUsize;
use std::sync::Arc;

use dcp::commit::{CommitError, Log, Retry, Seq};
use dcp::digest::BlockTable;
use dcp::engine::{RegionReader, Verify};
use dcp::formats::native::{NativeSource, open_in};
use dcp::formats::{OpenOptions, Strictness};
use dcp::ops::verify::{VerifyOptions, verify};
use dcp::store::{StoreError, Stores};
use dcp::{Cancel, Catalog, Error, FileId, Finding, FindingCode, Result, Severity, Silent, Source};
use reshard::Region;
use serde::Serialize;

use super::ground::{Ground, Saved};
use crate::training::{Load, Outcome, location, log_options, whole};

/// A check of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Check {
    BlockHash,
    TableRoot,
    ManifestDigest,
    RecordBytes,
    Chain,
    Size,
    Presence,
    Other,
}

/// The checks that the proof is repeated without.
pub(crate) const CHECKS: [Check; 7] = [
    Check::BlockHash,
    Check::TableRoot,
    Check::ManifestDigest,
    Check::RecordBytes,
    Check::Chain,
    Check::Size,
    Check::Presence,
];

/// One statement.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) check: Check,
    pub(crate) text: String,
    pub(crate) tensor: Option<String>,
    pub(crate) range: Option<String>,
}

/// Everything that is said of some checkpoints and of the log, but by the check that is left out.
pub(crate) fn gather(
    ground: &Ground,
    suspects: &BTreeSet<usize>,
    without: Option<Check>,
) -> Outcome<Vec<Evidence>> {
    let mut found = Vec::new();
    for suspect in suspects {
        let saved = ground.saved.get(*suspect).ok_or("a checkpoint that is none")?;
        of_checkpoint(ground, saved, without, &mut found)?;
    }
    let audit = Log::audit_at(&ground.root, log_options(1))?;
    found.extend(audit.findings.iter().map(|it| Evidence {
        check: check_of_record(&it.error),
        text: it.error.to_string(),
        tensor: None,
        range: None,
    }));
    found.retain(|it| Some(it.check) != without);
    Ok(found)
}

fn of_checkpoint(
    ground: &Ground,
    saved: &Saved,
    without: Option<Check>,
    found: &mut Vec<Evidence>,
) -> Outcome<()> {
    let source = match opened(ground, saved.seq) {
        Ok(source) => source,
        Err(error) => {
            found.push(Evidence {
                check: check_of_error(&error),
                text: error.to_string(),
                tensor: None,
                range: None,
            });
            return Ok(());
        }
    };
    let options = VerifyOptions { threads: NonZeroUsize::MIN, ..VerifyOptions::default() };
    let report = match without {
        Some(Check::BlockHash) => verify(&Blind(source), &options, &Silent, &Cancel::new())?,
        _ => verify(&source, &options, &Silent, &Cancel::new())?,
    };
    found.extend(report.findings.iter().filter(|it| it.severity == Severity::Error).map(of_finding));
    Ok(())
}

/// What is not there will not come.
pub(super) fn patience() -> OpenOptions {
    OpenOptions::new().retry(Retry { tries: 1, ..Retry::default() })
}

fn opened(ground: &Ground, seq: Seq) -> Result<NativeSource> {
    let place = location(&ground.folder).map_err(|error| Error::internal(error.to_string()))?;
    let lenient = patience().strictness(Strictness::Lenient);
    open_in(&Stores::new(), place, Some(&format!("seq:{seq}")), lenient)
}

fn of_finding(finding: &Finding) -> Evidence {
    let file = finding.file.as_deref().unwrap_or_default();
    let check = match finding.code {
        FindingCode::BlockMismatch => Check::BlockHash,
        FindingCode::DigestMismatch if file.starts_with("commits/") => Check::RecordBytes,
        FindingCode::SizeMismatch if file.starts_with("commits/") => Check::RecordBytes,
        FindingCode::MissingFile if file.starts_with("commits/") => Check::Chain,
        // A table that was cut does not hash to its root either.
        FindingCode::SizeMismatch if finding.message.contains("block table") => Check::TableRoot,
        FindingCode::DigestMismatch => Check::TableRoot,
        FindingCode::Mixed => Check::Chain,
        FindingCode::SizeMismatch => Check::Size,
        FindingCode::MissingFile => Check::Presence,
        _ => Check::Other,
    };
    Evidence {
        check,
        text: format!("{file} {}", finding.message),
        tensor: finding.tensor.as_ref().map(ToString::to_string),
        range: finding.range.clone(),
    }
}

const fn check_of_record(error: &CommitError) -> Check {
    match error {
        CommitError::Mixed { .. } | CommitError::Incomplete { .. } => Check::Chain,
        CommitError::Damaged { .. } => Check::RecordBytes,
        _ => Check::Other,
    }
}

/// Which check refused to open it.
fn check_of_error(error: &Error) -> Check {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<CommitError>() {
            return check_of_record(error);
        }
        match inner.downcast_ref::<StoreError>() {
            Some(StoreError::NotFound { .. }) => return Check::Presence,
            // A manifest that was cut, or that grew, has another digest too.
            Some(StoreError::OutOfRange { .. } | StoreError::TooLarge { .. }) => {
                return Check::ManifestDigest;
            }
            _ => {}
        }
        cause = inner.source();
    }
    Check::ManifestDigest
}

/// A checkpoint whose block tables nobody looks at.
#[derive(Debug)]
struct Blind(NativeSource);

impl Source for Blind {
    fn catalog(&self) -> &Catalog {
        self.0.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(file, offset, buf)
    }

    fn blocks(&self, _file: FileId) -> Result<Option<Arc<BlockTable>>> {
        Ok(None)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        self.0.audit()
    }
}

/// Loads a checkpoint as a reader without block hashes would.
pub(crate) fn load_blind(ground: &Ground, saved: &Saved) -> Load {
    let source = match opened(ground, saved.seq) {
        Ok(source) => Blind(source),
        Err(error) => return Load::Refused(error.to_string()),
    };
    let reader = RegionReader::new(&source, Verify::Records);
    for (at, entry) in source.catalog().registry.entries().iter().enumerate() {
        let mut bytes = whole(entry, saved.step);
        let right = bytes.clone();
        bytes.fill(0);
        let Ok(all) = Region::whole(&entry.shape) else { continue };
        match reader.read_into(at, &all, &mut bytes) {
            Ok(()) if bytes == right => {}
            Ok(()) => return Load::Wrong(entry.id().to_string()),
            Err(error) => return Load::Refused(error.to_string()),
        }
    }
    Load::Right
}
