//! Appending to the log.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use super::Record;
use crate::{Error, ErrorKind, Result, data::Sample};

/// Appends to the log. There is one per run at a time.
#[derive(Debug)]
pub struct Writer {
    file: File,
    incarnation: u64,
}

impl Writer {
    /// Opens the log, ends a line that a crash cut, and says where this incarnation begins.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn open(path: &Path, incarnation: u64, step: u64, cursor: u64) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut writer = Self { file, incarnation };
        if writer.is_cut().map_err(failed)? {
            writer.file.write_all(b"\n").map_err(failed)?;
        }
        writer.append(&Record::Start { incarnation, step, cursor })?;
        Ok(writer)
    }

    fn is_cut(&mut self) -> io::Result<bool> {
        if self.file.seek(SeekFrom::End(0))? == 0 {
            return Ok(false);
        }
        let mut last = [0];
        self.file.seek(SeekFrom::End(-1))?;
        self.file.read_exact(&mut last)?;
        Ok(last != *b"\n")
    }

    /// A step is done.
    ///
    /// # Errors
    /// `Io`.
    pub fn step(&mut self, step: u64, cursor: u64, samples: &[Sample]) -> Result<()> {
        let incarnation = self.incarnation;
        self.append(&Record::Step { incarnation, step, cursor, samples: samples.to_vec() })
    }

    /// One write per record: a process that is killed cuts at most its last line.
    fn append(&mut self, record: &Record) -> Result<()> {
        let failed = |error: String| Error::new(ErrorKind::Io, format!("log of consumed samples: {error}"));
        let mut line = serde_json::to_vec(record).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|error| failed(error.to_string()).caused_by(error))
    }
}
