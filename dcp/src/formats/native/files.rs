//! The files of a checkpoint, wherever the manifest says they are: in its folder, in the root, or outside.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    Catalog, Error, ErrorKind, FileEntry, FileId, Location, Place, Result,
    codec::Decoder,
    digest::{BlockTable, BlockTableError, Sha256Digest},
    store::{ObjectInfo, ObjectPath, Root, StoreError, Stores, object_path},
};

/// Bytes of a block table's header, and of each block in it.
const TABLE_HEAD: u64 = 32;
const TABLE_BLOCK: u64 = 4 + 4 + 1 + 32;

/// Most bytes of a block table that has more blocks than the chunks of this checkpoint tell: those of other checkpoints made blocks too.
const SHARED_TABLE: u64 = 256 << 20;

/// The files of one checkpoint.
#[derive(Debug)]
pub(super) struct Files {
    root: Root,
    bases: Vec<Base>,
    files: Vec<File>,
    stores: Stores,
    /// Whether foreign files that have changed are read all the same: for checks, which name what differs.
    lenient: bool,
}

/// A folder outside.
#[derive(Debug)]
struct Base {
    location: String,
    root: OnceLock<Root>,
}

#[derive(Debug)]
struct File {
    /// Which of the bases; none for our own root.
    base: Option<usize>,
    path: ObjectPath,
    entry: FileEntry,
    /// Its block table: where, the root hash, and the most bytes that it can have.
    table: Option<(ObjectPath, Sha256Digest, u64)>,
    loaded: Mutex<Option<Arc<BlockTable>>>,
    /// Set once a foreign file was found to be the one that was sealed.
    known: OnceLock<()>,
}

/// What a look at a file found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    Same,
    Missing(String),
    Size(u64),
    /// Written again since it was sealed.
    Changed,
}

impl Files {
    /// The files of `catalog`, whose own folder is `dir` below `root`: empty when the root is that folder.
    ///
    /// # Errors
    /// `Corrupt` for names that no store takes; `NotFound` for files of another step, when only this step's folder was opened.
    pub(super) fn new(
        root: Root,
        dir: &str,
        catalog: &Catalog,
        stores: Stores,
        lenient: bool,
    ) -> Result<Self> {
        let mut files = Self { root, bases: Vec::new(), files: Vec::new(), stores, lenient };
        let mut chunks = vec![0_u64; catalog.files.len()];
        for file in catalog.tensors.iter().flat_map(|tensor| tensor.chunks.files()) {
            let count = usize::try_from(file.0).ok().and_then(|at| chunks.get_mut(at));
            count.into_iter().for_each(|count| *count += 1);
        }
        for (entry, chunks) in catalog.files.iter().zip(chunks) {
            let file = files.file(dir, entry, chunks).place(&entry.path)?;
            files.files.push(file);
        }
        Ok(files)
    }

    fn file(&mut self, dir: &str, entry: &FileEntry, chunks: u64) -> Result<File> {
        let in_step = |path: &str| if dir.is_empty() { path.to_owned() } else { format!("{dir}/{path}") };
        let in_root = |path: &str| if dir.is_empty() { Err(alone()) } else { Ok(path.to_owned()) };
        let (base, path) = match &entry.location {
            Location::InStep => (None, in_step(&entry.path)),
            Location::InRoot => (None, in_root(&entry.path)?),
            Location::External { base, .. } => (Some(self.base(base)), entry.path.clone()),
        };
        // Each chunk has two ends, and each stretch between two ends a rest that fills no block. A blob that is shared, or is the copy of
        // one, was cut at chunks of other checkpoints as well; but each block has a byte.
        let blocks =
            entry.logical_size() / u64::from(crate::digest::BLOCK_LEN) + chunks.saturating_mul(2) + 2;
        let bytes_of = |blocks: u64| TABLE_HEAD.saturating_add(blocks.saturating_mul(TABLE_BLOCK));
        let longest = bytes_of(blocks).max(bytes_of(entry.size).min(SHARED_TABLE));
        let table = match (&entry.blocks, &entry.location) {
            (None, _) => None,
            (Some(blocks), Location::InRoot) => {
                Some((object_path(&in_root(&blocks.path)?)?, blocks.root, longest))
            }
            (Some(blocks), _) => Some((object_path(&in_step(&blocks.path))?, blocks.root, longest)),
        };
        let (loaded, known) = (Mutex::default(), OnceLock::new());
        Ok(File { base, path: object_path(&path)?, entry: entry.clone(), table, loaded, known })
    }

    fn base(&mut self, location: &str) -> usize {
        let known = self.bases.iter().position(|base| base.location == location);
        known.unwrap_or_else(|| {
            self.bases.push(Base { location: location.to_owned(), root: OnceLock::new() });
            self.bases.len() - 1
        })
    }

    fn get(&self, file: FileId) -> Result<&File> {
        let found = usize::try_from(file.0).ok().and_then(|at| self.files.get(at));
        found.ok_or_else(|| Error::internal(format!("file {} of {}", file.0, self.files.len())))
    }

    /// The store that a file lies in.
    fn store(&self, file: &File) -> Result<&Root> {
        let Some(base) = file.base.and_then(|at| self.bases.get(at)) else { return Ok(&self.root) };
        if let Some(root) = base.root.get() {
            return Ok(root);
        }
        let opened = Root::open_foreign(&base.location, &self.stores).map_err(|error| {
            let hint = "the sealed files must stay where they were; put them back, or seal them again at their new place";
            Error::from(error).hint(hint)
        })?;
        Ok(base.root.get_or_init(|| opened))
    }

    /// What messages call a file.
    fn name(&self, file: &File) -> String {
        match file.base.and_then(|at| self.bases.get(at)) {
            Some(base) => format!("{}/{}", base.location.trim_end_matches('/'), file.path),
            None => self.root.full_name(&file.path),
        }
    }

    /// Reads logical bytes by position. Of a compressed file whole blocks are read and decoded, whatever is asked for: who reads
    /// more than once keeps them.
    ///
    /// # Errors
    /// `Corrupt` where the file ends early, its blocks can't be decoded, or it is a foreign one that was changed since it was
    /// sealed; the store's.
    pub(super) fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let entry = &self.get(file)?.entry;
        if !entry.is_coded() {
            return self.read_stored_at(file, offset, buf);
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= entry.logical_size());
        let (Some(end), Some(table)) = (end, self.blocks(file)?) else {
            let text = format!("{} bytes at {offset} reach behind the end of {}", buf.len(), entry.path);
            return Err(Error::corrupt(text));
        };
        let mut decoder = Decoder::new().map_err(|error| Error::internal(error.to_string()))?;
        let (mut stored, mut logical, mut rest) = (Vec::new(), Vec::new(), buf);
        for number in table.covering(&(offset..end)) {
            let block = table.block(number).ok_or_else(|| Error::internal("a block is gone"))?;
            stored.resize(length(block.stored.end - block.stored.start)?, 0);
            logical.resize(length(block.logical.end - block.logical.start)?, 0);
            self.read_stored_at(file, block.stored.start, &mut stored)?;
            decoder
                .decode(block.codec, &stored, &mut logical)
                .map_err(|error| Error::corrupt(format!("{}: block {number}: {error}", entry.path)))?;
            let (from, to) = (offset.max(block.logical.start), end.min(block.logical.end));
            let cut = length(from - block.logical.start)?..length(to - block.logical.start)?;
            let part = logical.get(cut).unwrap_or_default();
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(part);
            rest = later;
        }
        Ok(())
    }

    /// Reads stored bytes by position.
    ///
    /// # Errors
    /// As [`Self::read_exact_at`].
    pub(super) fn read_stored_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let file = self.get(file)?;
        let store = self.store(file)?;
        if file.base.is_some() && !self.lenient && file.known.get().is_none() {
            self.check_identity(file)?;
            file.known.get_or_init(|| ());
        }
        store.read_exact_at(&file.path, offset, buf).map_err(Error::from)
    }

    fn check_identity(&self, file: &File) -> Result<()> {
        let (name, size) = (self.name(file), file.entry.size);
        let error = match self.look(file)? {
            Look::Same => return Ok(()),
            Look::Missing(error) => return Err(Error::new(ErrorKind::NotFound, error)),
            Look::Size(now) => {
                format!("{name}: changed since it was sealed: {now} bytes, sealed with {size}")
            }
            Look::Changed => {
                format!("{name}: changed since it was sealed: it was written to at a later time")
            }
        };
        Err(Error::corrupt(error)
            .hint("`ckpt verify` names the bytes that differ; seal it again if the change is meant"))
    }

    /// Looks at a file without reading it.
    ///
    /// # Errors
    /// The store's, unless it says that the file is missing.
    pub(super) fn look_at(&self, file: FileId) -> Result<Look> {
        self.look(self.get(file)?)
    }

    fn look(&self, file: &File) -> Result<Look> {
        let head = self.store(file).and_then(|store| store.head(&file.path).map_err(Error::from));
        let info = match head {
            Ok(info) => info,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Look::Missing(error.to_string())),
            Err(error) => return Err(error),
        };
        if info.size != file.entry.size {
            return Ok(Look::Size(info.size));
        }
        Ok(if same(&file.entry.location, &info) { Look::Same } else { Look::Changed })
    }

    /// The block table of a file, kept once it was read.
    ///
    /// # Errors
    /// `Corrupt` when it is not the one that the manifest names.
    pub(super) fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        let file = self.get(file)?;
        let Some((path, root, longest)) = &file.table else { return Ok(None) };
        if let Some(table) = &*file.loaded.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(Arc::clone(table)));
        }
        let name = self.root.full_name(path);
        let (bytes, _) = self.root.get_at_most(path, *longest)?;
        let found = Sha256Digest::of(&bytes);
        if found != *root {
            let found_len = bytes.len() as u64;
            let whole = match BlockTable::parse(&bytes) {
                Err(BlockTableError::Length { expected, .. }) => expected,
                _ => TABLE_HEAD,
            };
            if found_len < whole {
                return Err(cut(name, "block table", found_len, whole));
            }
            return Err(Error::corrupt(format!(
                "{name}: block table hashes to {found}, the manifest says {root}: it was changed, or is another file's"
            )));
        }
        let table = BlockTable::parse(&bytes).map_err(|error| Error::corrupt(format!("{name}: {error}")))?;
        if table.file_len() != file.entry.size {
            return Err(Error::corrupt(format!(
                "{name}: block table is of a file of {} bytes, the manifest says {}",
                table.file_len(),
                file.entry.size
            )));
        }
        if (table.logical_len(), table.is_coded()) != (file.entry.logical_size(), file.entry.is_coded()) {
            return Err(Error::corrupt(format!(
                "{name}: block table is of a file that decodes to {} bytes, the manifest says {}",
                table.logical_len(),
                file.entry.logical_size()
            )));
        }
        let table = Arc::new(table);
        *file.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&table));
        Ok(Some(table))
    }

    /// Bytes of a file, proven by its blocks where it has a table.
    ///
    /// # Errors
    /// `Corrupt`, naming the file and the bytes that differ; as [`Self::read_exact_at`].
    pub(super) fn proven(&self, file: FileId, start: u64, len: u64) -> Result<Vec<u8>> {
        // The manifest's reader has seen to it that the file is plain.
        let end = start.checked_add(len).filter(|end| self.get(file).is_ok_and(|it| *end <= it.entry.size));
        let end = end
            .ok_or_else(|| Error::corrupt(format!("bytes {start} and {len} more lie outside their file")))?;
        let table = self.blocks(file)?;
        let around = table.as_ref().map_or(start..end, |table| table.around(&(start..end)));
        if let Look::Missing(error) = self.look_at(file)? {
            let path = self.get(file).map(|file| self.name(file))?;
            return Err(Error::corrupt(error).caused_by(StoreError::NotFound { path }));
        }
        let mut bytes = vec![0; length(around.end - around.start)?];
        self.read_exact_at(file, around.start, &mut bytes)?;
        let cut =
            |from: u64, to: u64| Ok::<_, Error>(length(from - around.start)?..length(to - around.start)?);
        if let Some(table) = table {
            for block in table.covering(&(start..end)) {
                let Some(it) = table.block(block) else { continue };
                let stored = bytes.get(cut(it.stored.start, it.stored.end)?).unwrap_or_default();
                let name = || self.get(file).map(|file| self.name(file)).unwrap_or_default();
                table.check(block, stored).map_err(|error| Error::corrupt(format!("{}: {error}", name())))?;
            }
        }
        Ok(bytes.get(cut(start, end)?).unwrap_or_default().to_vec())
    }
}

/// An object that ends before its end.
pub(super) fn cut(path: String, what: &str, size: u64, whole: u64) -> Error {
    let text = format!("{path}: {what} of {whole} bytes was cut short: {size} are there");
    Error::corrupt(text).hint("copy it again from where it came").caused_by(StoreError::OutOfRange {
        path,
        range: 0..whole,
        size,
    })
}

fn alone() -> Error {
    Error::new(ErrorKind::NotFound, "lies in another step of a root, and only this step's folder was opened")
        .hint("open the root")
}

fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::unsupported("more bytes than fit into memory"))
}

/// Whether an object of the right size is the one that was seen when its place was written down.
fn same(location: &Location, info: &ObjectInfo) -> bool {
    let Location::External { etag, mtime_ns, .. } = location else { return true };
    let same_tag = etag.as_deref().is_none_or(|etag| info.etag.as_deref().map(bare) == Some(bare(etag)));
    same_tag && mtime_ns.is_none_or(|then| nanoseconds(info.modified) == Some(then))
}

/// An entity tag without quotes, and without the mark of a weak one: the answers of one store differ in both.
fn bare(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

/// Nanoseconds since 1970; `None` beyond 64 bits.
pub(crate) fn nanoseconds(time: SystemTime) -> Option<i64> {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).ok(),
        Err(before) => i64::try_from(before.duration().as_nanos()).ok().map(|before| -before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_an_entity_tag_do_not_make_another_file_of_it() {
        let sealed = |tag: &str| Location::External {
            base: "s3://bucket".to_owned(),
            etag: Some(tag.to_owned()),
            mtime_ns: None,
        };
        let now = |tag: &str| ObjectInfo {
            path: ObjectPath::from("model.safetensors"),
            size: 7,
            modified: UNIX_EPOCH,
            etag: Some(tag.to_owned()),
        };
        for (then, seen) in [("\"abc\"", "abc"), ("abc", "\"abc\""), ("W/\"abc\"", "\"abc\"")] {
            assert!(same(&sealed(then), &now(seen)), "{then} {seen}");
        }
        assert!(!same(&sealed("\"abc\""), &now("\"abd\"")));
    }
}
