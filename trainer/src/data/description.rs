//! What a corpus is, in a few numbers: stored in every checkpoint, so that a run is not resumed on other data unnoticed.

use std::{fs::File, io::Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Corpus, DataError, corpus::Part};

/// What a corpus is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// SHA-256 over names, lengths and digests of all files, in order.
    pub sha256: String,
    /// All bytes.
    pub bytes: u64,
    /// The files that are not empty, in order.
    pub files: Vec<FileMark>,
}

/// A file of a corpus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMark {
    /// Path within the folder, with slashes.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its content.
    pub sha256: String,
}

impl Corpus {
    /// Reads everything once. On large folders one rank does this and tells the others.
    ///
    /// # Errors
    /// What can't be read, and files that changed since they were listed.
    pub fn describe(&self) -> Result<Description, DataError> {
        let files = self.parts().iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        let mut digest = Sha256::new();
        for file in &files {
            // Lengths first, so that no two lists of files give the same bytes.
            digest.update((file.name.len() as u64).to_le_bytes());
            digest.update(file.name.as_bytes());
            digest.update(file.bytes.to_le_bytes());
            digest.update(file.sha256.as_bytes());
        }
        Ok(Description { sha256: hex(&digest.finalize()), bytes: self.bytes(), files })
    }
}

fn mark(part: &Part) -> Result<FileMark, DataError> {
    let failed = |source| DataError::Read { path: part.path.clone(), source };
    let mut file = File::open(&part.path).map_err(failed)?;
    let (mut digest, mut buffer, mut bytes) = (Sha256::new(), vec![0; 1 << 20], 0_u64);
    loop {
        let length = file.read(&mut buffer).map_err(failed)?;
        let Some(read) = buffer.get(..length).filter(|read| !read.is_empty()) else { break };
        digest.update(read);
        bytes += length as u64;
    }
    if bytes != part.bytes {
        return Err(DataError::Changed { path: part.path.clone(), at: bytes.min(part.bytes) });
    }
    Ok(FileMark { name: part.name.clone(), bytes, sha256: hex(&digest.finalize()) })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Most differences that a message names.
const NAMED: usize = 3;

impl Description {
    /// Refuses `now` unless it is the data that `self` describes.
    ///
    /// # Errors
    /// `Data`, with the files that are new, gone or changed.
    pub fn require(&self, now: &Self) -> Result<(), DataError> {
        if self.sha256 == now.sha256 {
            return Ok(());
        }
        let find = |files: &[FileMark], name: &str| files.iter().position(|file| file.name == name);
        let mut said: Vec<String> = self
            .files
            .iter()
            .filter_map(|old| match find(&now.files, &old.name) {
                None => Some(format!("{} is gone", old.name)),
                Some(at) => now.files.get(at).and_then(|new| changed(old, new)),
            })
            .collect();
        let new = now.files.iter().filter(|file| find(&self.files, &file.name).is_none());
        said.extend(new.map(|file| format!("{} is new", file.name)));
        let more = said.len().saturating_sub(NAMED);
        said.truncate(NAMED);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        said.push(format!("{} bytes then, {} now", self.bytes, now.bytes));
        Err(DataError::Differs(said.join("; ")))
    }
}

fn changed(old: &FileMark, new: &FileMark) -> Option<String> {
    if old.bytes != new.bytes {
        return Some(format!("{} had {} bytes and has {}", old.name, old.bytes, new.bytes));
    }
    (old.sha256 != new.sha256).then(|| format!("{} has other content of the same length", old.name))
}
