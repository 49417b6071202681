//! What a checkpoint's folder holds: its metadata, global or one per rank, and the sizes of its blobs.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::Path,
};

use super::{decode, metadata::Metadata};
use crate::{Error, ErrorKind, Place, Result, formats::blobs::read_small};

/// Largest metadata that is read: that of about ten million shards.
const MOST_METADATA: u64 = 2 << 30;

/// Name of the global metadata.
pub(crate) const METADATA: &str = ".metadata";

/// Names and sizes of regular files, and which of them are metadata.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Size by name, folders excluded.
    pub sizes: BTreeMap<String, u64>,
    /// Metadata of single ranks (`__R.metadata`), by rank.
    pub rank_metadata: BTreeMap<u64, String>,
}

impl Listing {
    /// Lists the folder at `path`.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(path: &Path) -> Result<Self> {
        let mut listing = Self::default();
        for entry in fs::read_dir(path).place(path.display())? {
            let entry = entry.place(path.display())?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(found) = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file) else { continue };
            if let Some(rank) = rank_of(&name) {
                listing.rank_metadata.insert(rank, name.clone());
            }
            listing.sizes.insert(name, found.len());
        }
        Ok(listing)
    }

    /// Whether the folder is a checkpoint of this format.
    #[must_use]
    pub fn is_checkpoint(&self) -> bool {
        self.sizes.contains_key(METADATA) || !self.rank_metadata.is_empty()
    }

    /// How many ranks saved, where file names tell: by default every rank writes one file, an empty one if it has nothing
    /// to write. `None` for other ways of writing, and where files are left from another save (not among `named`).
    #[must_use]
    pub fn ranks(&self, named: &HashSet<&str>) -> Option<u64> {
        let blobs = || self.sizes.iter().filter(|(name, _)| name.ends_with(".distcp"));
        let count = u64::try_from(blobs().count()).ok().filter(|count| *count > 0)?;
        let is_one_of = |rank: u64| self.sizes.contains_key(&format!("__{rank}_0.distcp"));
        let told = blobs().all(|(name, size)| *size == 0 || named.contains(name.as_str()));
        (told && (0..count).all(is_one_of)).then_some(count)
    }

    /// Whether each rank wrote metadata of its own, and there is no global one.
    #[must_use]
    pub fn is_per_rank(&self) -> bool {
        !self.sizes.contains_key(METADATA) && !self.rank_metadata.is_empty()
    }

    /// Reads the metadata: the global one, or those of all ranks, merged.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Corrupt` for what is refused, and for ranks that contradict each other.
    pub(super) fn metadata(&self, path: &Path) -> Result<Metadata> {
        let one = |name: &str| {
            let bytes = read_small(&path.join(name), name, MOST_METADATA)?;
            decode(&bytes).map_err(|error| error.at(name))
        };
        if self.sizes.contains_key(METADATA) {
            return one(METADATA);
        }
        let mut names = self.rank_metadata.values();
        let Some(first) = names.next() else { return Err(self.nothing(path)) };
        let mut merged = one(first)?;
        for name in names {
            let conflict =
                |key| Error::corrupt(format!("{name}: {key} has another dtype or shape than in {first}"));
            merged.merge(one(name)?).map_err(conflict)?;
        }
        Ok(merged)
    }

    fn nothing(&self, path: &Path) -> Error {
        let text = format!("{}: no {METADATA} and no __R{METADATA}", path.display());
        let error = Error::new(ErrorKind::NotFound, text);
        let unfinished = self.sizes.keys().any(|name| name.ends_with(".distcp"));
        if unfinished {
            error.hint("there are .distcp files: the save that wrote them never finished")
        } else {
            error
        }
    }
}

/// The rank in `__R.metadata`.
fn rank_of(name: &str) -> Option<u64> {
    name.strip_prefix("__")?.strip_suffix(METADATA)?.parse().ok()
}
