//! [`Staged`]: the half of a sink that is alike for all formats of others: files written beside the target's place
//! and given its name at one moment.

use std::path::{Path, PathBuf};

use crate::{
    Committed, Error, FileDone, Result, TargetLayout, Written,
    staging::{Staging, TargetKind},
    store::BlobWriter,
};

/// A target of a foreign format, before, while and after it is written.
#[derive(Debug)]
pub(crate) struct Staged {
    target: PathBuf,
    kind: TargetKind,
    staging: Option<Staging>,
    /// Path and size of each file.
    files: Vec<(String, u64)>,
}

impl Staged {
    /// Nothing is touched yet.
    pub(crate) fn new(target: &Path, kind: TargetKind) -> Self {
        Self { target: target.to_path_buf(), kind, staging: None, files: Vec::new() }
    }

    /// The name of a target that is one file.
    pub(crate) fn file_name(&self) -> Result<String> {
        let name = self.target.file_name().and_then(|name| name.to_str());
        let text = || Error::incompatible(format!("{} is no name for a file", self.target.display()));
        name.map(str::to_owned).ok_or_else(text)
    }

    /// Begins to stage `layout`.
    pub(crate) fn begin(&mut self, plan_digest: &str, layout: &TargetLayout) -> Result<()> {
        self.files = layout.files.iter().map(|file| (file.path.clone(), file.size)).collect();
        self.staging = Some(Staging::open(&self.target, plan_digest, self.kind)?);
        Ok(())
    }

    fn staging(&self) -> Result<&Staging> {
        self.staging.as_ref().ok_or_else(|| Error::internal("the target was not laid out"))
    }

    /// Files that an earlier run finished.
    pub(crate) fn finished(&self) -> Result<Vec<FileDone>> {
        Ok(self.staging()?.finished())
    }

    /// Opens a file.
    pub(crate) fn blob(&self, file: usize) -> Result<Box<dyn BlobWriter>> {
        let found = self
            .files
            .get(file)
            .ok_or_else(|| Error::internal(format!("file {file} is not in the layout")))?;
        self.staging()?.blob(&found.0, found.1)
    }

    /// Remembers a file.
    pub(crate) fn file_done(&self, done: &FileDone) -> Result<()> {
        self.staging()?.file_done(done)
    }

    /// Gives the target its name.
    pub(crate) fn publish(&mut self, written: &Written) -> Result<Committed> {
        let staging =
            self.staging.take().ok_or_else(|| Error::internal("the target was published before"))?;
        staging.publish()?;
        Ok(Committed {
            target: self.target.display().to_string(),
            sequence: None,
            bytes: written.files.iter().map(|file| file.size).fold(0, u64::saturating_add),
            files: written.files.len(),
        })
    }
}

/// The methods of [`crate::Sink`] that only stage, for a sink with a field `staged`.
macro_rules! delegate_staging {
    () => {
        fn finished(&self) -> $crate::Result<Vec<$crate::FileDone>> {
            self.staged.finished()
        }

        fn blob(&self, file: usize) -> $crate::Result<Box<dyn $crate::store::BlobWriter>> {
            self.staged.blob(file)
        }

        fn file_done(&self, done: &$crate::FileDone) -> $crate::Result<()> {
            self.staged.file_done(done)
        }

        fn commit(&mut self, written: &$crate::Written) -> $crate::Result<$crate::Committed> {
            self.staged.publish(written)
        }
    };
}
pub(crate) use delegate_staging;
