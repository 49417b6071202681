//! TensorBoard's event files, written without its library: scalars by tag and step.
//!
//! ```text
//!  Events::scalars ─► proto (Event, Summary) ─► record (length, checksums) ─► events.out.tfevents.*
//! ```
//!
//! Invariants: a file is appended record by record, so that what a crash cuts is the last record alone, which readers
//! skip; every incarnation of a run writes a file of its own, whose first events say that what others recorded of later
//! steps is void, as after a resume it is.

mod crc32c;
mod proto;
mod record;

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use crate::{Error, ErrorKind, Result};

/// One event file.
#[derive(Debug)]
pub struct Events {
    file: File,
    path: PathBuf,
}

impl Events {
    /// Creates `folder/events.out.tfevents.SECONDS.rank-RANK.INCARNATION`. Steps from `first` on are void in the files of
    /// earlier incarnations.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn create(folder: &Path, rank: usize, incarnation: u64, first: u64, now_us: u64) -> Result<Self> {
        let name = format!("events.out.tfevents.{:010}.rank-{rank}.{incarnation}", now_us / 1_000_000);
        let path = folder.join(name);
        let open = || {
            fs::create_dir_all(folder)?;
            OpenOptions::new().append(true).create(true).open(&path)
        };
        let file = open().map_err(|error| failed(&path, error))?;
        let mut events = Self { file, path };
        events.write(&[proto::version(now_us), proto::start(now_us, first)])?;
        Ok(events)
    }

    /// Writes the scalars of a step.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn scalars(&mut self, step: u64, now_us: u64, scalars: &[(String, f64)]) -> Result<()> {
        self.write(&[proto::scalars(now_us, step, scalars)])
    }

    fn write(&mut self, events: &[Vec<u8>]) -> Result<()> {
        let bytes: Vec<u8> = events.iter().flat_map(|event| record::framed(event)).collect();
        self.file.write_all(&bytes).map_err(|error| failed(&self.path, error))
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display()))
        .hint("see that metrics.folder can be written and the disk has space")
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file back by the format's definition: every record's checksums, then tags, steps and values.
    fn read(path: &Path) -> Vec<(u64, String, f32)> {
        let bytes = fs::read(path).unwrap();
        let mut at = 0;
        let mut found = Vec::new();
        while at < bytes.len() {
            let length = usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(word(at + 8), crc32c::masked(&bytes[at..at + 8]));
            let data = &bytes[at + 12..at + 12 + length];
            assert_eq!(word(at + 12 + length), crc32c::masked(data));
            found.extend(proto::tests::scalars_of(data));
            at += length + 16;
        }
        found
    }

    #[test]
    fn what_is_written_reads_back_with_sound_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::create(folder.path(), 0, 3, 8, 1_700_000_000_000_000).unwrap();
        events
            .scalars(8, 1_700_000_001_000_000, &[("loss".to_owned(), 2.5), ("lr".to_owned(), 1e-3)])
            .unwrap();
        events.scalars(300, 1_700_000_002_000_000, &[("loss".to_owned(), 1.25)]).unwrap();
        let path = folder.path().join("events.out.tfevents.1700000000.rank-0.3");
        let expected =
            [(8, "loss".to_owned(), 2.5), (8, "lr".to_owned(), 1e-3), (300, "loss".to_owned(), 1.25)];
        assert_eq!(read(&path), expected);
    }
}
