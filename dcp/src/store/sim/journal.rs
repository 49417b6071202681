//! What was done to a file system, operation by operation, by inode: names may change their meaning, inodes do not.

use std::sync::Arc;

/// A file or a directory, whatever it is called. The root is number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub(super) u32);

impl Ino {
    pub(super) const ROOT: Self = Self(0);
}

/// One operation that changes a file system, or makes a change durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A file got its first name.
    Create {
        /// The directory.
        dir: Ino,
        /// The name in it.
        name: Arc<str>,
        /// The file, new and empty.
        file: Ino,
    },
    /// A file got a further name.
    Link {
        /// The directory.
        dir: Ino,
        /// The name in it.
        name: Arc<str>,
        /// The file.
        file: Ino,
    },
    /// A name was taken away.
    Unlink {
        /// The directory.
        dir: Ino,
        /// The name in it.
        name: Arc<str>,
    },
    /// A file got another name, in place of what was there.
    Rename {
        /// The directory of the old name, and that name.
        from: (Ino, Arc<str>),
        /// The directory of the new name, and that name.
        to: (Ino, Arc<str>),
        /// The file.
        file: Ino,
    },
    /// A directory was made.
    Mkdir {
        /// The directory above.
        dir: Ino,
        /// The name in it.
        name: Arc<str>,
        /// The new directory.
        made: Ino,
    },
    /// A directory was removed.
    Rmdir {
        /// The directory above.
        dir: Ino,
        /// The name in it.
        name: Arc<str>,
    },
    /// Bytes were written.
    Write {
        /// The file.
        file: Ino,
        /// Where.
        offset: u64,
        /// What.
        data: Arc<[u8]>,
    },
    /// Space was asked for ahead: the file is so long at least.
    Reserve {
        /// The file.
        file: Ino,
        /// Its least length.
        size: u64,
    },
    /// Content and length of a file were made durable.
    SyncFile {
        /// The file.
        file: Ino,
    },
    /// The names in a directory were made durable.
    SyncDir {
        /// The directory.
        dir: Ino,
    },
}
