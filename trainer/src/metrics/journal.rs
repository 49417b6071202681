//! The file of one rank: a record a line, `{"step", "time_us", "rank", "name", "value"}`.
//!
//! Invariants: appended, never rewritten; what a crash cut is ended by the next who opens the file; all records of a step
//! go out in one write. An f32 also has its `bits`, in hexadecimal, since a decimal may hide which NaN or zero it was.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};

use crate::{Error, ErrorKind, Result};

/// A measured value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// What the model computed; to the bit.
    F32(f32),
    /// Anything else that is measured.
    F64(f64),
    /// Counts.
    U64(u64),
    /// Names.
    Text(String),
}

impl Value {
    /// As a number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::F32(value) => Some(f64::from(*value)),
            Self::F64(value) => Some(*value),
            Self::U64(value) => Some(*value as f64),
            Self::Text(_) => None,
        }
    }
}

/// One record, as it is read back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Record {
    /// Training step.
    pub step: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    /// Who measured.
    pub rank: usize,
    /// What.
    pub name: String,
    /// How much; null for what is not finite.
    pub value: serde_json::Value,
    /// The bits of an f32, in hexadecimal.
    #[serde(default)]
    pub bits: Option<String>,
}

struct Line<'a>(u64, u64, usize, &'a str, &'a Value);

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(step, time_us, rank, name, value) = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("step", step)?;
        map.serialize_entry("time_us", time_us)?;
        map.serialize_entry("rank", rank)?;
        map.serialize_entry("name", name)?;
        match value {
            // Not finite becomes null, which JSON has; the bits say which.
            Value::F32(value) => {
                map.serialize_entry("value", value)?;
                map.serialize_entry("bits", &format!("{:08x}", value.to_bits()))?;
            }
            Value::F64(value) => map.serialize_entry("value", value)?,
            Value::U64(value) => map.serialize_entry("value", value)?,
            Value::Text(value) => map.serialize_entry("value", value)?,
        }
        map.end()
    }
}

/// The file of one rank.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    rank: usize,
    pending: Vec<u8>,
}

impl Journal {
    /// Opens `folder/rank_00000.jsonl`, creating both.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn open(folder: &Path, rank: usize) -> Result<Self> {
        let path = folder.join(format!("rank_{rank:05}.jsonl"));
        let open = || -> io::Result<File> {
            fs::create_dir_all(folder)?;
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            end_cut_line(&mut file)?;
            Ok(file)
        };
        let file = open().map_err(|error| failed(&path, error))?;
        Ok(Self { file, path, rank, pending: Vec::new() })
    }

    /// Adds a record, to be written by [`Journal::flush`].
    ///
    /// # Errors
    /// `Internal` for what can't be written as JSON.
    pub fn add(&mut self, step: u64, time_us: u64, name: &str, value: &Value) -> Result<()> {
        let line = Line(step, time_us, self.rank, name, value);
        serde_json::to_writer(&mut self.pending, &line)
            .map_err(|error| Error::internal(format!("metric {name}: {error}")).caused_by(error))?;
        self.pending.push(b'\n');
        Ok(())
    }

    /// Writes what was added.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.file.write_all(&pending).map_err(|error| failed(&self.path, error))
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display()))
        .hint("see that metrics.folder can be written and the disk has space")
        .caused_by(error)
}

fn end_cut_line(file: &mut File) -> io::Result<()> {
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}
