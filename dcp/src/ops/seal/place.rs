//! Where the sealed files are, and proof that they stayed the same while they were read.

use std::path::Path;

use super::SealOptions;
use crate::{
    Catalog, Error, ErrorKind, Place as _, Result,
    formats::native::nanoseconds,
    store::{Root, local_path, object_path},
};

/// The folder of the sealed files.
#[derive(Debug)]
pub(super) struct Place {
    root: Root,
    /// Absolute.
    pub(super) base: String,
    /// What each file was before it was read.
    pub(super) seen: Vec<Seen>,
}

/// What is known about a file without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    size: u64,
    pub(super) etag: Option<String>,
    pub(super) mtime_ns: Option<i64>,
}

impl Place {
    /// Looks at every file of the catalog.
    ///
    /// # Errors
    /// `Unsupported` for files that are none of their own, `Corrupt` for sizes other than the catalog's.
    pub(super) fn look(catalog: &Catalog, options: &SealOptions) -> Result<Self> {
        let base = absolute(&options.base)?;
        let root = Root::open_foreign(&base, &options.stores)?;
        let mut place = Self { root, base, seen: Vec::new() };
        place.seen = place.see(catalog)?;
        for (file, seen) in catalog.files.iter().zip(&place.seen) {
            if file.size != seen.size {
                let (path, has, says) = (&file.path, seen.size, file.size);
                return Err(Error::corrupt(format!("{path}: {has} bytes, the checkpoint says {says}")));
            }
        }
        Ok(place)
    }

    fn see(&self, catalog: &Catalog) -> Result<Vec<Seen>> {
        let local = self.root.local().is_some();
        let each = catalog.files.iter().map(|file| {
            let info = object_path(&file.path).and_then(|path| self.root.head(&path)).map_err(|error| {
                let error = Error::from(error);
                if error.kind() == ErrorKind::NotFound { inflated(&file.path) } else { error }
            })?;
            // The tag of a local file holds its inode, which no copy keeps.
            let etag = info.etag.filter(|_| !local);
            Ok(Seen { size: info.size, etag, mtime_ns: nanoseconds(info.modified) })
        });
        each.collect()
    }

    /// Looks at every file again.
    ///
    /// # Errors
    /// `Conflict`, naming the first file that is not as it was.
    pub(super) fn look_again(&self, catalog: &Catalog) -> Result<()> {
        let now = self.see(catalog)?;
        let changed =
            catalog.files.iter().zip(self.seen.iter().zip(&now)).find(|(_, (then, now))| then != now);
        changed.map_or(Ok(()), |(file, _)| {
            Err(Error::new(ErrorKind::Conflict, format!("{}: was written to while it was sealed", file.path))
                .hint("seal a checkpoint once its save is over"))
        })
    }
}

fn inflated(path: &str) -> Error {
    Error::unsupported(format!("{path}: is no file of its own, so a manifest can't point into it"))
        .hint("compressed entries can't be sealed; `ckpt convert` writes them into a native store")
}

fn absolute(base: &str) -> Result<String> {
    let Some(folder) = local_path(base) else { return Ok(base.to_owned()) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".").to_path_buf() } else { folder };
    let whole = std::path::absolute(&folder).place(base)?;
    let text = whole
        .to_str()
        .ok_or_else(|| Error::unsupported(format!("{}: the path is not UTF-8", whole.display())))?;
    Ok(text.trim_end_matches('/').to_owned())
}
