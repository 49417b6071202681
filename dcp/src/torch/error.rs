//! What can be wrong with a torch archive.

use std::io;

use crate::pickle::PickleError;

/// A torch archive that was refused, or a record of one that is damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It is recognisably something else.
    #[error("not a torch zip archive: {found}; {remedy}")]
    NotAnArchive {
        /// What it looks like.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The structures of the zip contradict each other or the length of the file.
    #[error("damaged archive: {what} at byte {at}: {why}")]
    Structure {
        /// Structure concerned.
        what: &'static str,
        /// Where it is, in bytes from the start of the archive.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// A record that no torch writes, or that could not be read in place.
    #[error("record {record:?}: {why}")]
    Record {
        /// Its name.
        record: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The bytes of a record do not have the CRC-32 that was stored with them.
    #[error(
        "record {record:?} is damaged: its {len} bytes at {offset} have CRC-32 {found:08x}, but {stored:08x} was stored"
    )]
    Crc {
        /// Its name.
        record: String,
        /// Where its payload begins, in bytes from the start of the archive.
        offset: u64,
        /// Length of the payload.
        len: u64,
        /// CRC-32 in the central directory.
        stored: u32,
        /// CRC-32 of the bytes.
        found: u32,
    },
    /// A record that must be there is not.
    #[error("the archive has no record {0:?}; its records are not those of a checkpoint")]
    Missing(&'static str),
    /// The pickle of the archive was refused.
    #[error("record \"data.pkl\"")]
    Pickle(#[from] PickleError),
    /// The medium failed.
    #[error("cannot read the archive")]
    Io(#[from] io::Error),
}

impl ArchiveError {
    pub(super) fn structure(what: &'static str, at: u64, why: impl Into<String>) -> Self {
        Self::Structure { what, at, why: why.into() }
    }

    pub(super) fn record(record: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Record { record: record.into(), why: why.into() }
    }
}
