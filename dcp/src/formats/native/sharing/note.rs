//! [`Note`]: what became of each box of a group. It takes the place of a part: put once, after everything that it names is
//! durable.

use std::collections::HashMap;

use reshard::Region;
use serde::{Deserialize, Serialize};

use super::base::Piece;
use crate::{
    BlockRef, Error, ErrorKind, FileEntry, Location, Place, Result,
    commit::DirName,
    digest::{BlockTable, Sha256Digest},
    fingerprint::FingerprintSum,
    formats::{
        native::{
            attempt::{FileNames, below},
            layout::{self, Blob, Group},
            part::{Part, other_bytes},
            planned::Planned,
        },
        parallel,
    },
    manifest::check_path,
    store::{Nonce, ObjectPath, Root, StoreError, object_path},
};

const FORMAT: u32 = 1;

/// Most bytes of a block table that is looked at.
const LONGEST_TABLE: u64 = 256 << 20;

/// What became of each box of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    format: u32,
    /// The plan, as a guard against another one's folder.
    plan: String,
    /// Blobs of other attempts that are referred to.
    pub(super) files: Vec<SharedFile>,
    /// In the group's order.
    pub(super) boxes: Vec<Noted>,
    /// Blobs of the other boxes.
    pub(super) rest: Vec<Rest>,
}

/// A blob in another attempt's folder; paths are relative to the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SharedFile {
    pub(super) path: String,
    pub(super) size: u64,
    /// Bytes that it decodes to, where it is compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) logical: Option<u64>,
    pub(super) table: String,
    /// SHA-256 of the table.
    pub(super) root: Sha256Digest,
}

/// What became of a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Noted {
    /// What it adds to its tensor's fingerprint.
    pub(super) sum: FingerprintSum,
    /// Where it was found, each piece with its place in `files`; empty where it was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pieces: Vec<(u32, Piece)>,
}

/// A blob with boxes that were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rest {
    pub(super) nonce: Nonce,
    /// Their numbers in the group, in the order in which the blob was laid out.
    pub(super) boxes: Vec<u32>,
}

/// Boxes of a group that lie in blobs of other attempts.
#[derive(Debug)]
pub(crate) struct SharedBoxes {
    /// The rank that found them.
    pub(crate) rank: u32,
    /// The blobs, as a manifest names them.
    pub(crate) files: Vec<FileEntry>,
    pub(crate) boxes: Vec<SharedBox>,
}

/// A box that lies in blobs of other attempts.
#[derive(Debug)]
pub(crate) struct SharedBox {
    /// Position of the tensor.
    pub(crate) tensor: usize,
    pub(crate) region: Region,
    /// What it adds to the tensor's fingerprint.
    pub(crate) sum: FingerprintSum,
    /// Its pieces, each with the place of its blob among the files.
    pub(crate) pieces: Vec<(u32, Piece)>,
}

impl SharedFile {
    fn entry(&self) -> FileEntry {
        let blocks = Some(BlockRef { path: self.table.clone(), root: self.root });
        FileEntry {
            path: self.path.clone(),
            location: Location::InRoot,
            size: self.size,
            logical: self.logical,
            blocks,
        }
    }

    /// Checks that blob and table are there, the table being the one that was read: that one.
    pub(super) fn check(&self, root: &Root) -> Result<BlockTable> {
        let gone = |error: StoreError| match error {
            StoreError::NotFound { .. } => Error::from(error).hint(WITHOUT),
            other => other.into(),
        };
        let path = shared_path(&self.path)?;
        let size = root.head(&path).map_err(gone)?.size;
        let wrong = |path: &ObjectPath, why: String| {
            Error::corrupt(format!("{}: {why}", root.full_name(path))).hint(WITHOUT)
        };
        if size != self.size {
            return Err(wrong(&path, format!("{size} bytes, and {} when it was referred to", self.size)));
        }
        let path = shared_path(&self.table)?;
        let (bytes, _) = root.get_at_most(&path, LONGEST_TABLE).map_err(gone)?;
        if Sha256Digest::of(&bytes) != self.root {
            return Err(wrong(&path, "was changed since it was referred to".to_owned()));
        }
        let table = BlockTable::parse(&bytes).map_err(|error| wrong(&path, error.to_string()))?;
        let logical = table.is_coded().then(|| table.logical_len());
        if (table.file_len(), logical) != (self.size, self.logical) {
            return Err(wrong(&path, format!("is of a file of {} bytes", table.file_len())));
        }
        Ok(table)
    }
}

/// What to do when something that is referred to is gone.
pub(in crate::formats::native) const WITHOUT: &str =
    "save again without sharing: the same spec with `sharing: None` is another plan, and writes everything";

/// A path below the root, in the folder of an attempt.
pub(super) fn shared_path(path: &str) -> Result<ObjectPath> {
    directory_of(path)?;
    Ok(object_path(path)?)
}

/// The folder of an attempt that a path relative to the root begins with.
///
/// # Errors
/// `Corrupt` for a path that does not.
pub(in crate::formats::native) fn directory_of(path: &str) -> Result<DirName> {
    let wrong = |why: &dyn std::fmt::Display| Error::corrupt(format!("{path:?}, a path in the root: {why}"));
    check_path(path).map_err(|why| wrong(&why))?;
    let (dir, _) = path.split_once('/').ok_or_else(|| wrong(&"it is in no folder"))?;
    dir.parse().map_err(|error| wrong(&error))
}

impl Note {
    pub(super) fn new(planned: &Planned) -> Self {
        let plan = planned.spec.plan_digest.clone();
        Self { format: FORMAT, plan, files: Vec::new(), boxes: Vec::new(), rest: Vec::new() }
    }

    /// The note of a group, if it is finished.
    ///
    /// # Errors
    /// `Corrupt` for one of another plan; the store's.
    pub(crate) fn get(root: &Root, planned: &Planned, group: &Group) -> Result<Option<Self>> {
        let path = below(&planned.dir, &group.names.part())?;
        let Some(bytes) = planned.parts(root).note(&path)? else { return Ok(None) };
        let wrong = |why: String| {
            let hint = format!("remove the folder {} and run again", planned.dir);
            Error::corrupt(format!("{}: {why}", root.full_name(&path))).hint(hint)
        };
        let note: Self =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not a note: {error}")))?;
        if note.format != FORMAT || note.plan != planned.spec.plan_digest {
            return Err(wrong("another plan, or another version, left it here".to_owned()));
        }
        let told = note.is_of(group);
        if told { Ok(Some(note)) } else { Err(wrong("it is not of the boxes of this group".to_owned())) }
    }

    /// Whether each box of the group was found or written, once.
    fn is_of(&self, group: &Group) -> bool {
        let mut written: Vec<u32> = self.rest.iter().flat_map(|rest| rest.boxes.iter().copied()).collect();
        written.sort_unstable();
        let bare = self.boxes.iter().zip(0_u32..).filter(|(noted, _)| noted.pieces.is_empty());
        let known = |(file, _): &(u32, Piece)| usize::try_from(*file).is_ok_and(|at| at < self.files.len());
        self.boxes.len() == group.boxes.len()
            && bare.map(|(_, at)| at).eq(written)
            && self.boxes.iter().flat_map(|noted| &noted.pieces).all(known)
    }

    /// Puts the note. Another writer's being there is no error, where it put the same contents.
    ///
    /// # Errors
    /// `Conflict` where it put others; the store's.
    pub(super) fn put(&self, root: &Root, planned: &Planned, group: &Group) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()))?;
        match root.put_same(&below(&planned.dir, &group.names.part())?, json.into()) {
            Ok(()) => Ok(()),
            Err(StoreError::AlreadyExists { .. }) => {
                let first = Self::get(root, planned, group)?;
                let sums = |note: &Self| note.boxes.iter().map(|noted| noted.sum).collect::<Vec<_>>();
                if first.is_some_and(|first| sums(&first) == sums(self)) {
                    return Ok(());
                }
                Err(other_bytes(&planned.parts(root), &group.names.part()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The blobs that were written of the group, with their parts.
    ///
    /// # Errors
    /// `Corrupt` where a part is not there, or contradicts its blob.
    pub(crate) fn written(&self, root: &Root, planned: &Planned, group: &Group) -> Result<Vec<(Blob, Part)>> {
        let mut written = Vec::with_capacity(self.rest.len());
        for rest in &self.rest {
            let blob = rest.blob(planned, group)?;
            let part = planned.parts(root).get(&blob)?;
            let lost = || {
                let text = format!(
                    "{}/{}: its note is there, the part of {} is not",
                    root.display_name(),
                    planned.dir,
                    blob.names.key
                );
                Error::new(ErrorKind::Corrupt, text).hint("begin the save anew, with another salt")
            };
            let part = part.ok_or_else(lost)?;
            written.push((blob, part));
        }
        Ok(written)
    }

    /// Checks that the blobs which are referred to are there, each once, whatever many groups refer to it.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` where one is not there, or is not what it was.
    pub(crate) fn check_files(root: &Root, noted: &[(&Group, Self)]) -> Result<()> {
        let mut files: HashMap<&SharedFile, &Group> = HashMap::new();
        for (group, note) in noted {
            for file in &note.files {
                files.entry(file).or_insert(group);
            }
        }
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(file, _)| &file.path);
        let check = |(file, group): &(&SharedFile, &Group)| {
            file.check(root).map(drop).place(format!("referred to by {}", group.names.part()))
        };
        parallel::map(&files, check).map(drop)
    }

    /// The boxes of a group that were found, and where.
    pub(crate) fn shared(self, group: &Group) -> SharedBoxes {
        let files = self.files.iter().map(SharedFile::entry).collect();
        let each = group.boxes.iter().zip(self.boxes).filter(|(_, noted)| !noted.pieces.is_empty());
        let boxes = each.map(|((tensor, region), Noted { sum, pieces })| SharedBox {
            tensor: *tensor,
            region: region.clone(),
            sum,
            pieces,
        });
        SharedBoxes { rank: group.rank, files, boxes: boxes.collect() }
    }
}

impl Rest {
    /// The blob, laid out again.
    pub(super) fn blob(&self, planned: &Planned, group: &Group) -> Result<Blob> {
        let piece = |at: &u32| {
            let found = usize::try_from(*at).ok().and_then(|at| group.boxes.get(at));
            let (tensor, region) = found.ok_or_else(|| Error::internal("a box that is not in its group"))?;
            Ok((*tensor, region))
        };
        let pieces = self.boxes.iter().map(piece).collect::<Result<Vec<_>>>()?;
        let names = FileNames::rest_of(&group.names, self.nonce);
        layout::blob_of(&planned.spec, group.rank, names, &pieces)
    }
}
