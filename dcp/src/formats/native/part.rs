//! Parts: the note, put once, that a blob and its block table are whole and durable.
//!
//! The name of a part has no nonce: of two writers of one file, the first to put the part decides whose blob counts, and
//! the other's is left for the garbage collection.

use bytes::Bytes;
use reshard::Region;
use serde::{Deserialize, Serialize};

use super::{
    attempt::{FileNames, below},
    layout::Blob,
};
use crate::{
    Error, ErrorKind, FileDone, Place, Result,
    commit::DirName,
    digest::{BlockTable, Sha256Digest},
    fingerprint::FingerprintSum,
    store::{ObjectPath, Root, StoreError},
};

const FORMAT: u32 = 1;

/// Most bytes of a part.
const LONGEST: u64 = 256 << 20;

/// What a writer finished.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    format: u32,
    /// The plan, as a guard against another one's folder.
    plan: String,
    /// SHA-256 of what stands before the first chunk: names and places of all chunks are in it.
    head: Sha256Digest,
    /// Path of the block table.
    pub(super) table: String,
    /// Its SHA-256.
    pub(super) root: Sha256Digest,
    pub(super) done: FileDone,
    /// What each of its boxes adds to its tensor's fingerprint, in the order of their bytes; empty for copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) boxes: Vec<FingerprintSum>,
}

/// Boxes that a rank holds and does not write, each with what it adds to its tensor's fingerprint.
pub(crate) type HeldBoxes = Vec<(usize, Region, FingerprintSum)>;

/// The note of what a rank holds and does not write.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldNote {
    format: u32,
    plan: String,
    boxes: HeldBoxes,
}

/// Where parts of one plan are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(super) root: &'a Root,
    pub(super) dir: &'a DirName,
    pub(super) plan: &'a str,
}

impl Part {
    /// The part of a blob that nobody wrote.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn made_up(blob: &Blob, done: FileDone, root: Sha256Digest) -> Self {
        let table = format!("blocks/{}", blob.names.key);
        let (plan, boxes) = (String::new(), Vec::new());
        Self { format: FORMAT, plan, head: blob.head_digest, table, root, done, boxes }
    }
}

impl Parts<'_> {
    /// Puts the block table, then the part; `boxes` as [`Part::boxes`] has them.
    ///
    /// # Errors
    /// The store's. Another writer's part being there already is none, unless that writer wrote other bytes: `Conflict`.
    pub(super) fn put(&self, blob: &Blob, done: &FileDone, boxes: Vec<FingerprintSum>) -> Result<()> {
        let table = done.blocks.as_ref().ok_or_else(|| Error::internal("a blob without a block table"))?;
        let name = blob.names.table(&done.path);
        let name =
            name.ok_or_else(|| Error::internal(format!("{} is no name of {}", done.path, blob.names.key)))?;
        let bytes = Bytes::from(table.encode());
        let root = Sha256Digest::of(&bytes);
        self.root.put_same(&below(self.dir, &name)?, bytes)?;
        let part = Part {
            format: FORMAT,
            plan: self.plan.to_owned(),
            head: blob.head_digest,
            table: name,
            root,
            done: done.clone(),
            boxes,
        };
        let json = serde_json::to_vec(&part).map_err(|error| Error::internal(error.to_string()))?;
        match self.root.put_same(&below(self.dir, &blob.names.part())?, json.into()) {
            Ok(()) => Ok(()),
            Err(StoreError::AlreadyExists { .. }) => self.check_same(blob, &part),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the writer that was first wrote the same bytes: a checkpoint must not mix two.
    ///
    /// Another version of zstd may have made other stored bytes of the same content: of compressed files the content is compared,
    /// by fingerprint.
    fn check_same(&self, blob: &Blob, ours: &Part) -> Result<()> {
        let coded = |part: &Part| part.done.logical.is_some();
        match self.get(blob)? {
            Some(first) if first.root == ours.root => Ok(()),
            Some(first) if coded(&first) && coded(ours) && first.done.sums == ours.done.sums => Ok(()),
            _ => Err(other_bytes(self, &blob.names.part())),
        }
    }

    /// Puts the note of what a rank holds and does not write.
    ///
    /// # Errors
    /// `Conflict` when the rank said otherwise before; the store's.
    pub(crate) fn put_held(&self, rank: u32, boxes: HeldBoxes) -> Result<()> {
        let note = HeldNote { format: FORMAT, plan: self.plan.to_owned(), boxes };
        let json = serde_json::to_vec(&note).map_err(|error| Error::internal(error.to_string()))?;
        let name = FileNames::held(rank);
        match self.root.put_same(&below(self.dir, &name)?, json.into()) {
            Err(StoreError::AlreadyExists { .. }) => Err(other_bytes(self, &name)),
            other => Ok(other?),
        }
    }

    /// The note of what a rank holds and does not write, if it is there.
    ///
    /// # Errors
    /// `Corrupt` for one of another plan; the store's.
    pub(crate) fn held(&self, rank: u32) -> Result<Option<HeldBoxes>> {
        let path = below(self.dir, &FileNames::held(rank))?;
        let Some(bytes) = self.note(&path)? else { return Ok(None) };
        let note: Option<HeldNote> = serde_json::from_slice(&bytes).ok();
        let note = note.filter(|note| note.format == FORMAT && note.plan == self.plan);
        note.map(|note| Some(note.boxes)).ok_or_else(|| {
            Error::corrupt(format!(
                "{}: another plan, or another version, left it here",
                self.root.full_name(&path)
            ))
            .hint(format!("remove the folder {} and run again", self.dir))
        })
    }

    /// Whether a rank's note of what it holds is there.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn has_held(&self, rank: u32) -> Result<bool> {
        self.is_there(&FileNames::held(rank))
    }

    /// Whether a file is finished, by its part alone.
    ///
    /// # Errors
    /// The store's.
    pub(super) fn has(&self, names: &FileNames) -> Result<bool> {
        self.is_there(&names.part())
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        match self.root.head(&below(self.dir, name)?) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A note, if it is there.
    ///
    /// # Errors
    /// The store's; `Corrupt` for one that is longer than any can be.
    pub(super) fn note(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        match self.root.get_at_most(path, LONGEST) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The part of a file of the layout, if it is finished: read from the store, with its blob's size and its table checked.
    ///
    /// # Errors
    /// `Corrupt` for a part of another plan, or whose blob or table is not what it says.
    pub(super) fn get(&self, blob: &Blob) -> Result<Option<Part>> {
        let path = below(self.dir, &blob.names.part())?;
        let Some(bytes) = self.note(&path)? else { return Ok(None) };
        let wrong = |why: String| {
            Error::corrupt(format!("{}: {why}", self.root.full_name(&path)))
                .hint(format!("remove the folder {} and run again", self.dir))
        };
        let mut part: Part =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not a part: {error}")))?;
        if part.format != FORMAT || part.plan != self.plan || part.head != blob.head_digest {
            return Err(wrong("another plan, or another version, left it here".to_owned()));
        }
        let named = blob.names.is_blob(&part.done.path)
            && Some(&part.table) == blob.names.table(&part.done.path).as_ref();
        if !named || part.done.logical_size() != blob.size {
            return Err(wrong(format!(
                "it names {} of {} bytes, not this file",
                part.done.path,
                part.done.logical_size()
            )));
        }
        self.check_blob(&part)
            .map_err(|error| error.hint(format!("remove the folder {} and run again", self.dir)))?;
        part.done.blocks = Some(self.table(&part)?);
        Ok(Some(part))
    }

    /// Reads a blob that an earlier writer finished, before it is trusted: what has rotted since, or never reached the disk, must
    /// not become part of a checkpoint in place of good bytes that are at hand.
    ///
    /// # Errors
    /// `Corrupt` where its bytes are not what its block table says; the store's.
    pub(super) fn prove(&self, part: &Part) -> Result<()> {
        let Some(table) = &part.done.blocks else { return Ok(()) };
        let path = below(self.dir, &part.done.path)?;
        let mut bytes = Vec::new();
        for (at, block) in table.blocks().enumerate() {
            let len = usize::try_from(block.stored.end - block.stored.start)
                .map_err(|_| Error::internal("a block that does not fit into memory"))?;
            bytes.resize(len, 0);
            self.root.read_exact_at(&path, block.stored.start, &mut bytes)?;
            table.check(at, &bytes).map_err(|error| {
                Error::corrupt(format!(
                    "{}: finished by an earlier writer and damaged since: {error}",
                    self.root.full_name(&path)
                ))
                .hint(format!("remove the folder {} and run again", self.dir))
            })?;
        }
        Ok(())
    }

    fn check_blob(&self, part: &Part) -> Result<()> {
        let path = below(self.dir, &part.done.path)?;
        let size = self.root.head(&path).map_err(Error::from).place("named by its part")?.size;
        if size == part.done.size {
            return Ok(());
        }
        let (name, said) = (self.root.full_name(&path), part.done.size);
        Err(Error::corrupt(format!(
            "{name}: {size} bytes, its part says {said}: it was changed after it was written"
        )))
    }

    fn table(&self, part: &Part) -> Result<BlockTable> {
        let path = below(self.dir, &part.table)?;
        let bytes = self.root.get(&path)?;
        let name = self.root.full_name(&path);
        let found = Sha256Digest::of(&bytes);
        if found != part.root {
            return Err(Error::corrupt(format!("{name}: hashes to {found}, its part says {}", part.root)));
        }
        let table = BlockTable::parse(&bytes).map_err(|error| Error::corrupt(format!("{name}: {error}")))?;
        let (done, coded) = (&part.done, part.done.logical.is_some());
        if (table.file_len(), table.logical_len(), table.is_coded())
            != (done.size, done.logical_size(), coded)
        {
            return Err(Error::corrupt(format!(
                "{name}: is of a file of {} bytes, {} decoded, not {} and {}",
                table.file_len(),
                table.logical_len(),
                done.size,
                done.logical_size()
            )));
        }
        Ok(table)
    }
}

/// Two writers of one plan, and two contents.
pub(super) fn other_bytes(parts: &Parts<'_>, file: &str) -> Error {
    let place = format!("{}/{}/{file}", parts.root.display_name(), parts.dir);
    Error::new(ErrorKind::Conflict, format!("{place}: this plan was written before, with other bytes"))
        .hint("two writers act as one rank, or a save was repeated with changed state: give the new one a salt, or an epoch, of its own")
}
