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
}

impl OpenFiles {
    /// The open file of that name, opened by `open` unless it is kept.
    pub(crate) fn get(
        &self,
        name: &str,
        open: impl FnOnce() -> Result<Arc<dyn FsFile>>,
    ) -> Result<Arc<dyn FsFile>> {
        if let Some(file) = self.used(name) {
            return Ok(file);
        }
        // Opened without the lock: a slow server must not hold up the readers of other files.
        let file = open()?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Closes the file of that name.
    pub(crate) fn forget(&self, name: &str) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).open.remove(name);
    }

    fn used(&self, name: &str) -> Option<Arc<dyn FsFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.uses += 1;
        let uses = files.uses;
        files.open.get_mut(name).map(|(file, used)| {
            *used = uses;
            Arc::clone(file)
        })
    }
}
