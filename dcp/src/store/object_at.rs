//! An object as random-access bytes.

use std::io;

use super::error::StoreError;
use super::name::ObjectPath;
use super::root::Root;
use crate::read_at::ReadAt;

/// One object of a root, read by position. Its length is that of the moment when it was opened; an object that was cut since then gives
/// an error where it ends.
#[derive(Debug, Clone)]
pub struct ObjectAt {
    root: Root,
    path: ObjectPath,
    len: u64,
}

impl ObjectAt {
    pub(super) const fn new(root: Root, path: ObjectPath, len: u64) -> Self {
        Self { root, path, len }
    }

    /// The object's name below its root.
    #[must_use]
    pub const fn path(&self) -> &ObjectPath {
        &self.path
    }
}

impl ReadAt for ObjectAt {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        if range.end > self.len || offset > self.len {
            let path = self.root.full_name(&self.path);
            return Err(to_io(StoreError::OutOfRange { path, range, size: self.len }));
        }
        if buf.is_empty() {
            return Ok(());
        }
        self.root.read_exact_at(&self.path, offset, buf).map_err(to_io)
    }
}

fn to_io(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::NotFound { .. } => io::ErrorKind::NotFound,
        StoreError::OutOfRange { .. } => io::ErrorKind::UnexpectedEof,
        StoreError::Access { .. } | StoreError::Refused { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
