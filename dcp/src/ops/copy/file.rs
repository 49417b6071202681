//! [`Target`]: one file of a copy: its names, its blob while it is written, its part when it is whole.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, FileEntry, FileId, Location, Place, Result,
    commit::DirName,
    digest::{BlockTable, Sha256Digest},
    fingerprint::FingerprintSum,
    store::{BlobWriter, Nonces, ObjectPath, Root, StoreError, object_path},
};

const FORMAT: u32 = 1;

/// Most bytes of a part.
const LONGEST: u64 = 256 << 20;

/// Where a copy goes.
#[derive(Debug)]
pub(super) struct Names<'a> {
    pub(super) root: &'a Root,
    pub(super) dir: &'a DirName,
    /// Names the copy, as a guard against another one's folder.
    pub(super) identity: Sha256Digest,
}

/// One file of a copy.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) id: FileId,
    /// Of the source.
    pub(super) entry: FileEntry,
    pub(super) table: Arc<BlockTable>,
    root: Root,
    dir: DirName,
    /// `c00012`.
    key: String,
    /// What an earlier run finished.
    kept: Option<Part>,
    part: Part,
    writer: RwLock<Option<Box<dyn BlobWriter>>>,
    /// Pieces that are not written.
    missing: AtomicUsize,
    sums: Mutex<HashMap<usize, FingerprintSum>>,
}

/// The note that a file is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    format: u32,
    identity: Sha256Digest,
    path: String,
    size: u64,
    table: String,
    root: Sha256Digest,
    sums: Vec<(usize, FingerprintSum)>,
}

/// A file as the store has it.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) path: String,
    pub(super) table: String,
    pub(super) root: Sha256Digest,
    pub(super) table_size: u64,
}

impl Target {
    /// A file of the source as a file of the copy; finished, where an earlier run left its part.
    ///
    /// # Errors
    /// `Corrupt` for a part of something else; the store's.
    pub(super) fn new(
        names: &Names<'_>,
        id: FileId,
        entry: &FileEntry,
        table: Arc<BlockTable>,
        nonces: &dyn Nonces,
    ) -> Result<Self> {
        let (key, nonce) = (format!("c{:05}", id.0), nonces.draw()?);
        let root = entry.blocks.as_ref().map(|blocks| blocks.root).unwrap_or(Sha256Digest::of(&[]));
        let part = Part {
            format: FORMAT,
            identity: names.identity,
            path: format!("data/{key}-{nonce}{}", ending(entry)),
            size: entry.size,
            table: format!("blocks/{key}-{nonce}.blocks"),
            root,
            sums: Vec::new(),
        };
        let mut target = Self {
            id,
            entry: entry.clone(),
            table,
            root: names.root.clone(),
            dir: names.dir.clone(),
            key,
            kept: None,
            part,
            writer: RwLock::new(None),
            missing: AtomicUsize::new(0),
            sums: Mutex::default(),
        };
        target.kept = target.found()?;
        Ok(target)
    }

    /// Whether an earlier run finished it.
    pub(super) const fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Says in how many pieces it will be written.
    pub(super) fn expect(&self, pieces: usize) {
        self.missing.store(pieces, Ordering::Release);
    }

    /// Writes a piece; the last makes it durable, with its table and its part.
    ///
    /// # Errors
    /// The store's; `Conflict` where another copy of the same was first, with other bytes.
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        sums: HashMap<usize, FingerprintSum>,
    ) -> Result<()> {
        self.open()?;
        {
            let writer = self.writer.read().unwrap_or_else(PoisonError::into_inner);
            let writer = writer.as_ref().ok_or_else(|| Error::internal("a file that was finished early"))?;
            writer.write_at(offset, bytes).place(&self.part.path)?;
        }
        let mut all = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.into_iter().for_each(|(tensor, sum)| *all.entry(tensor).or_default() += sum);
        drop(all);
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 { self.finish() } else { Ok(()) }
    }

    /// What its bytes add to fingerprints, when it is whole.
    pub(super) fn sums(&self) -> Vec<(usize, FingerprintSum)> {
        match &self.kept {
            Some(part) => part.sums.clone(),
            None => self
                .sums
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .map(|(t, s)| (*t, *s))
                .collect(),
        }
    }

    /// The file as the store has it now.
    ///
    /// # Errors
    /// `Corrupt` where it is not whole, or not what was copied.
    pub(super) fn finished(&self) -> Result<Done> {
        let part = self.found()?.ok_or_else(|| {
            Error::corrupt(format!(
                "{}/{}: {} was copied, and its part is gone",
                self.root.display_name(),
                self.dir,
                self.entry.path
            ))
        })?;
        let path = self.below(&part.table)?;
        let table = self.root.get(&path)?;
        if Sha256Digest::of(&table) != part.root {
            return Err(Error::corrupt(format!(
                "{}: is not the table that was copied",
                self.root.full_name(&path)
            )));
        }
        let table_size = table.len() as u64;
        Ok(Done { path: part.path, table: part.table, root: part.root, table_size })
    }

    fn open(&self) -> Result<()> {
        if self.writer.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let mut slot = self.writer.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(self.root.blob(&self.below(&self.part.path)?, self.entry.size)?);
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        let writer = self.writer.write().unwrap_or_else(PoisonError::into_inner).take();
        let writer =
            writer.ok_or_else(|| Error::internal(format!("{} was finished twice", self.part.path)))?;
        writer.finish().place(&self.part.path)?;
        let table = Bytes::from(self.table.encode());
        if Sha256Digest::of(&table) != self.part.root {
            return Err(Error::internal(format!("{}: its table has another encoding here", self.entry.path)));
        }
        self.root.put_same(&self.below(&self.part.table)?, table)?;
        let mut part = self.part.clone();
        part.sums = self.sums();
        part.sums.sort_unstable_by_key(|(tensor, _)| *tensor);
        let json = serde_json::to_vec(&part).map_err(|error| Error::internal(error.to_string()))?;
        match self.root.put_same(&self.below(&self.note())?, json.into()) {
            // Another copy of the same was faster: its blob counts, and it is the same by its digests.
            Err(StoreError::AlreadyExists { .. }) => self.found().map(drop),
            other => Ok(other?),
        }
    }

    /// The part that the store has, if there is one: of this file, with its blob.
    fn found(&self) -> Result<Option<Part>> {
        let path = self.below(&self.note())?;
        let bytes = match self.root.get_at_most(&path, LONGEST) {
            Ok((bytes, _)) => bytes,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let wrong = |why: &dyn std::fmt::Display| {
            Error::corrupt(format!("{}: {why}", self.root.full_name(&path)))
                .hint(format!("remove the folder {} and run again", self.dir))
        };
        let part: Part = serde_json::from_slice(&bytes).map_err(|error| wrong(&error))?;
        let named = |path: &str, folder: &str| path.starts_with(&format!("{folder}/{}-", self.key));
        let own = Part {
            path: part.path.clone(),
            table: part.table.clone(),
            sums: part.sums.clone(),
            ..self.part.clone()
        };
        if part != own || !named(&part.path, "data") || !named(&part.table, "blocks") {
            return Err(wrong(&"another copy, or another version, left it here"));
        }
        let size =
            self.root.head(&self.below(&part.path)?).map_err(Error::from).place("named by its part")?.size;
        if size != part.size {
            return Err(wrong(&format!("its blob has {size} bytes, it says {}", part.size)));
        }
        Ok(Some(part))
    }

    fn note(&self) -> String {
        format!("parts/{}.json", self.key)
    }

    fn below(&self, name: &str) -> Result<ObjectPath> {
        Ok(object_path(&format!("{}/{name}", self.dir))?)
    }
}

/// The ending of a blob's name: ours are safetensors files; sealed ones keep theirs, where it is a plain one.
fn ending(entry: &FileEntry) -> String {
    let name = entry.path.rsplit('/').next().unwrap_or_default();
    let plain = |ending: &&str| {
        (1..=16).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    match (&entry.location, name.rsplit_once('.').map(|(_, ending)| ending).filter(plain)) {
        (Location::External { .. }, None) => String::new(),
        (_, Some(ending)) => format!(".{ending}"),
        (_, None) => ".safetensors".to_owned(),
    }
}
