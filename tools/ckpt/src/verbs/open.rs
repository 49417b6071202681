//! Opening what a user names: detects the format by content, opens it by its adapter, and says what stands for its
//! integrity.

use std::path::Path;

use dcp::formats::native::{self, CommitFacts};
use dcp::formats::{Detected, OpenOptions, detect, open_detected};
use dcp::ops::standing::Standing;
use dcp::store::{Stores, local_path};
use dcp::{Error, ErrorKind, Format, Place, Result, Source};

use crate::target::Target;

/// An opened checkpoint.
pub(crate) struct Opened {
    /// What serves it.
    pub(crate) source: Box<dyn Source>,
    /// Where it is, as the next command takes it.
    pub(crate) location: String,
    /// The record that committed it, for a checkpoint of a native root.
    pub(crate) commit: Option<CommitFacts>,
    /// What proves its bytes, in a sentence.
    pub(crate) integrity: String,
    /// What to know before believing it.
    pub(crate) warnings: Vec<String>,
}

/// Opens `target`, looking as far as `options` say.
///
/// # Errors
/// `NotFound` where nothing is there or nothing of the kind; what the adapter says.
pub(crate) fn open(target: &Target, options: OpenOptions) -> Result<Opened> {
    let Some(path) = local_path(&target.location) else {
        return committed(target, options);
    };
    let found = found(&path, target)?;
    let format = found.format;
    if format == Format::Native {
        return committed(target, options);
    }
    if let Some(revision) = &target.revision {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{}: there is no revision {revision}: only a native root has revisions",
                found.path.display()
            ),
        )
        .hint(format!("this is {}; leave @{revision} out", format.name())));
    }
    let integrity = integrity(format).to_owned();
    let location = found.path.display().to_string();
    let source = open_detected(&found, options)?;
    Ok(Opened { source, location, commit: None, integrity, warnings: Vec::new() })
}

/// Detects; where nothing is there, says how the text was read.
fn found(path: &Path, target: &Target) -> Result<Detected> {
    detect(path).map_err(|error| {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        if path.exists() {
            return match attempt(path) {
                Some(name) => error.hint(format!(
                    "{name} in it is an attempt that was never committed; run the command that wrote it again"
                )),
                None => error,
            };
        }
        Error::new(ErrorKind::NotFound, format!("{}: there is no such file or folder", path.display()))
            .hint(format!("{target} was read as PATH[@REVISION][#GLOB], see `ckpt help targets`"))
    })
}

/// A folder of a native root that no record names, as a stopped first write leaves it.
fn attempt(path: &Path) -> Option<String> {
    let entries = std::fs::read_dir(path).ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find(|name| name.starts_with("step-") && path.join(name).join("data").is_dir())
}

fn committed(target: &Target, options: OpenOptions) -> Result<Opened> {
    let source = native::open_in(&Stores::new(), &target.location, target.revision.as_deref(), options)
        .map_err(|error| match Standing::of_error(&error) {
            Some(standing) => error.at(standing),
            None => error,
        })?;
    let (commit, integrity) = (source.commit().cloned(), source.integrity());
    let location = target.location.clone();
    Ok(Opened { source: Box::new(source), location, commit, integrity, warnings: Vec::new() })
}

const fn integrity(format: Format) -> &'static str {
    match format {
        Format::TorchDcp | Format::Pt => {
            "CRC-32 of each record: torch writes them and never checks them, `ckpt verify` does"
        }
        Format::Safetensors | Format::Hf | Format::Native => {
            "the format has no checksums; `ckpt seal` adds hashes and fingerprints"
        }
    }
}

/// The text of a file that an option names.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).place(path.display())
}
