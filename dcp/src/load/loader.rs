//! [`Loader`]: an opened checkpoint of a root, and [`BoxReader`]: its boxes, read and proven.

use bytes::Bytes;
use fqn::TensorId;
use reshard::Region;

use super::{
    good::{self, Level},
    group::GroupReader,
};
use crate::{
    Catalog, Error, ErrorKind, Finding, ObjectEntry, Place, Result, Source,
    commit::{Checkpoint, Label, Log, Seq},
    engine::{RegionReader, Verify},
    formats::{
        OpenOptions,
        native::{CommitFacts, NativeSource, Revision, open_record},
    },
    store::{Root, Stores},
};

/// An opened checkpoint. Threads share it by reference.
#[derive(Debug)]
pub struct Loader {
    source: NativeSource,
    record: Bytes,
}

impl Loader {
    /// Opens the newest checkpoint of a run, or says what there is.
    ///
    /// # Errors
    /// `NotFound` when the run has none; `Corrupt` where log, record and manifest contradict each other; the store's.
    pub fn newest(root: &Root, run: &Label) -> Result<Self> {
        let log = Log::open(root).place(root.display_name())?;
        let (seq, checkpoint) = log.state().newest(run).ok_or_else(|| none(root, &log, run))?;
        Self::of(&log, seq, checkpoint)
    }

    /// Opens the checkpoint that a revision means, of whatever run.
    ///
    /// # Errors
    /// As [`Self::newest`].
    pub fn open(root: &Root, revision: &Revision) -> Result<Self> {
        let log = Log::open(root).place(root.display_name())?;
        let (seq, checkpoint) = revision.resolve(log.state()).place(root.display_name())?;
        Self::of(&log, seq, checkpoint)
    }

    /// Opens the checkpoint of a record, by its exact bytes: see [`Self::record`].
    ///
    /// # Errors
    /// `Corrupt` for bytes that are no record, or whose checkpoint is not in this root; `Incompatible` for a record that commits
    /// nothing; the store's.
    pub fn open_record(root: &Root, record: Bytes) -> Result<Self> {
        let source = open_record(&Stores::new(), root, &record, OpenOptions::new())?;
        Ok(Self { source, record })
    }

    fn of(log: &Log, seq: Seq, checkpoint: &Checkpoint) -> Result<Self> {
        Self::open_record(log.root(), good::record_of(log, seq, checkpoint)?)
    }

    /// The bytes of the record that commits it: what one rank hands to the others.
    #[must_use]
    pub const fn record(&self) -> &Bytes {
        &self.record
    }

    /// What the record says.
    ///
    /// # Errors
    /// Never for a loader that was opened.
    pub fn commit(&self) -> Result<&CommitFacts> {
        self.source.commit().ok_or_else(|| Error::internal("a loader without a record"))
    }

    /// What it holds.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        self.source.catalog()
    }

    /// Non-tensor state, by its key.
    #[must_use]
    pub fn object(&self, key: &str) -> Option<&ObjectEntry> {
        self.catalog().objects.iter().find(|object| object.key == key)
    }

    /// It as a source: for everything else that works on checkpoints.
    #[must_use]
    pub fn source(&self) -> &dyn Source {
        &self.source
    }

    /// Begins to read boxes. Each reader looks through the whole catalog once, and caches blocks: make one, and share it.
    #[must_use]
    pub fn reader(&self) -> BoxReader<'_> {
        BoxReader { catalog: self.catalog(), reader: RegionReader::new(&self.source, Verify::Records) }
    }

    /// Begins to read boxes without the blocks around them, for a group of ranks that prove them together: see [`GroupReader`].
    #[must_use]
    pub fn group_reader(&self) -> GroupReader<'_> {
        let reader = RegionReader::new(&self.source, Verify::None);
        GroupReader::new(BoxReader { catalog: self.catalog(), reader })
    }

    /// Checks it as [`super::newest_good`] does: everything that is wrong with it, worst first; none of severity `Error` when it
    /// is good.
    ///
    /// # Errors
    /// Only where it could not be looked at.
    pub fn check(&self, level: Level) -> Result<Vec<Finding>> {
        good::check(&self.source, level)
    }
}

/// Reads boxes of a checkpoint, each proven by the SHA-256 of the blocks that it lies in. Threads share it by reference.
#[derive(Debug)]
pub struct BoxReader<'a> {
    catalog: &'a Catalog,
    reader: RegionReader<'a>,
}

impl<'a> BoxReader<'a> {
    /// Fills `bytes` with a box: row-major, packed, little-endian.
    ///
    /// # Errors
    /// `NotFound` for a tensor that is not in the checkpoint; `Incompatible` for a box outside of it, or of other than so many bytes;
    /// `Corrupt`, file and box named, where its bytes are damaged or missing; the store's.
    pub fn read(&self, tensor: &TensorId, region: &Region, bytes: &mut [u8]) -> Result<()> {
        let at = self.position(tensor)?;
        let needed = self.reader.bytes(at, region)?;
        if needed != bytes.len() as u64 {
            let text = format!("{tensor}{region} has {needed} bytes, room was given for {}", bytes.len());
            return Err(Error::incompatible(text));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.reader.read_into(at, region, bytes)
    }

    /// A box in memory of its own.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_vec(&self, tensor: &TensorId, region: &Region) -> Result<Vec<u8>> {
        let needed = self.reader.bytes(self.position(tensor)?, region)?;
        let needed = usize::try_from(needed);
        let mut bytes = vec![
            0;
            needed.map_err(|_| Error::incompatible(format!(
                "{tensor}{region} does not fit into memory"
            )))?
        ];
        self.read(tensor, region, &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes and calls that it took so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.reader.counts()
    }

    pub(super) const fn catalog(&self) -> &'a Catalog {
        self.catalog
    }

    pub(super) fn position(&self, tensor: &TensorId) -> Result<usize> {
        let missing = || {
            let text = format!(
                "{tensor} is not in the checkpoint, which has {} tensors",
                self.catalog.tensors.len()
            );
            Error::new(ErrorKind::NotFound, text)
                .hint("`ckpt inspect` lists them; a renamed tensor needs its old name here")
        };
        self.catalog.registry.position(tensor).ok_or_else(missing)
    }
}

fn none(root: &Root, log: &Log, run: &Label) -> Error {
    let text = format!("{}: no checkpoint of run {run}", root.display_name());
    let others: std::collections::BTreeSet<&str> =
        log.state().checkpoints.values().map(|checkpoint| checkpoint.run.as_str()).collect();
    let error = Error::new(ErrorKind::NotFound, text);
    match others.is_empty() {
        true => error,
        false => error
            .hint(format!("there are checkpoints of {}", others.into_iter().collect::<Vec<_>>().join(", "))),
    }
}
