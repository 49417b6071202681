//! Open files, kept so that many small reads of one blob open it once.
//!
//! A file that is open stays the one that was opened, whatever happens to its name: two reads of one blob never mix generations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::Result;
use super::fs::FsFile;

/// How many files are kept open. The usual limit of a process is 1,024.
const MOST: usize = 128;

/// A bounded cache of open files; the one unused for longest is closed first.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    open: HashMap<String, (Arc<dyn FsFile>, u64)>,
    /// Counts uses, to know which was longest ago.
    uses: u64,
    /// Counts what was forgotten, to know whether anything was while a file was being opened.
    forgotten: u64,
}

impl OpenFiles {
    /// The open file of that name, opened by `open` unless it is kept. What is opened while a name is forgotten is not kept: it may be what the
    /// name stood for before.
    pub(crate) fn get(
        &self,
        name: &str,
        open: impl FnOnce() -> Result<Arc<dyn FsFile>>,
    ) -> Result<Arc<dyn FsFile>> {
        let forgotten = match self.used(name) {
            Ok(file) => return Ok(file),
            Err(forgotten) => forgotten,
        };
        // Opened without the lock: a slow server must not hold up the readers of other files.
        let file = open()?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.forgotten != forgotten {
            return Ok(file);
        }
        files.uses += 1;
        let uses = files.uses;
        let (kept, _) = files.open.entry(name.to_owned()).or_insert((file, uses));
        let kept = Arc::clone(kept);
        if files.open.len() > MOST {
            let oldest = files.open.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
            oldest.and_then(|name| files.open.remove(&name));
        }
        Ok(kept)
    }

    /// Closes the file of that name. Whoever gives the name to another file, or takes it away, does so before: of those who open it later
    /// nobody gets the old one.
    pub(crate) fn forget(&self, name: &str) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.forgotten += 1;
        files.open.remove(name);
    }

    /// The file that is kept; what was forgotten until now if none is.
    fn used(&self, name: &str) -> Result<Arc<dyn FsFile>, u64> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.uses += 1;
        let uses = files.uses;
        let forgotten = files.forgotten;
        let (file, used) = files.open.get_mut(name).ok_or(forgotten)?;
        *used = uses;
        Ok(Arc::clone(file))
    }
}
