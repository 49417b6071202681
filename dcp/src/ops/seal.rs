//! [`seal`]: gives a foreign folder a native manifest. The folder stays as it is; the manifest's chunks point into it.
//!
//! ```text
//!  foreign files ── one read, all cores ──► SHA-256 of each block ─► block tables
//!                                      ├──► CRC-32 of each record    (compared with the format's own)
//!                                      └──► fingerprints of tensors
//!  catalog + tables + fingerprints ─► manifest, chunks in place ─► commit
//! ```
//!
//! From then on the folder can be verified, compared, resharded and converted like any checkpoint of the store, and a file
//! that changes is noticed: by size and time when it is opened, by its blocks when it is read.
//!
//! Invariants:
//! * each byte of each file is read once, whole files from their first byte to their last; only tensors that lie strided
//!   or across each other are read again, for their fingerprint;
//! * nothing is committed unless every tensor is tiled exactly, every CRC-32 fits, and the files were the same after the
//!   read as before it;
//! * the attempt's folder follows from the manifest, so sealing the same files again changes nothing.
//!
//! Files that exist only inflated (compressed entries of a torch DCP) can't be pointed into: they are refused, and
//! converting says what to do.

mod pass;
mod place;
pub(super) mod prints;

use std::{collections::BTreeSet, time::Instant};

use bytes::Bytes;
use fqn::{Registry, TensorId};
use serde::Serialize;

use self::{pass::Pass, place::Place as Sealed};
use crate::{
    BlockRef, Cancel, Catalog, Committed, Error, FileEntry, FileId, Location, Place, Progress, Result,
    Source,
    commit::{Label, Log, LogOptions},
    digest::{BlockLayout, BlockTable, Sha256Digest},
    engine::{RunOptions, tensors::Tensors},
    fingerprint::Fingerprint,
    formats::native::{ObjectBlob, Publication, attempt_of, publish},
    manifest::{EncodedManifest, Manifest},
    store::{Root, Stores, object_path},
};

/// What is sealed, and as what.
#[derive(Debug, Clone)]
pub struct SealOptions {
    /// Folder or URL that the paths of the source's files are relative to: for a single file, the folder it lies in.
    pub base: String,
    /// The run that it is committed to.
    pub run: Label,
    /// The training step, where the source does not say.
    pub step: Option<u64>,
    /// The source's registry with placement rules put in; the same tensors in the same order.
    pub registry: Option<Registry>,
    /// Facts to keep beside the source's own, see [`Catalog::extra`].
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Clock, nonces, patience and name of the writer.
    pub log: LogOptions,
    /// Where the base is looked up.
    pub stores: Stores,
}

impl SealOptions {
    /// Seals what lies in `base` as the newest checkpoint of `run`.
    #[must_use]
    pub fn new(base: impl Into<String>, run: Label) -> Self {
        let (log, stores) = (LogOptions::default(), Stores::new());
        Self {
            base: base.into(),
            run,
            step: None,
            registry: None,
            extra: serde_json::Map::new(),
            log,
            stores,
        }
    }
}

/// What was sealed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SealReport {
    /// What became visible.
    pub committed: Committed,
    /// Whether the same files had been sealed into this root before, so that nothing changed.
    pub before: bool,
    /// Files that were hashed.
    pub files: usize,
    /// Bytes that were hashed.
    pub bytes_hashed: u64,
    /// Bytes that were read, those of tensors that had to be read again included.
    pub bytes_read: u64,
    /// Records whose CRC-32 was compared.
    pub records: usize,
    /// Tensors that lie strided or across each other.
    pub gathered: usize,
    /// Seconds from the first check to the commit.
    pub seconds: f64,
    /// Fingerprint of every tensor.
    pub fingerprints: Vec<(TensorId, Fingerprint)>,
}

/// Seals what `source` holds into `root`.
///
/// # Errors
/// `Corrupt` where tensors are not tiled or a CRC-32 differs (file, tensor and range named), `Unsupported` for compressed
/// entries, `Conflict` when the files changed meanwhile, `Incompatible` for a registry of other tensors, `Cancelled`, and
/// what the stores say. Nothing is committed then.
pub fn seal(
    source: &dyn Source,
    root: &Root,
    options: &SealOptions,
    run: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<SealReport> {
    let began = Instant::now();
    let mut catalog = catalog_of(source, options)?;
    check_cover(source.catalog())?;
    let place = Sealed::look(source.catalog(), options)?;
    let pass = Pass::new(source)?;
    let found = pass.run(run, progress, cancel)?;
    place.look_again(source.catalog())?;
    let tables: Vec<Table> =
        found.tables.iter().enumerate().map(|(at, table)| Table::new(at, table)).collect();
    for ((entry, seen), table) in catalog.files.iter_mut().zip(&place.seen).zip(&tables) {
        entry.location =
            Location::External { base: place.base.clone(), etag: seen.etag.clone(), mtime_ns: seen.mtime_ns };
        entry.blocks = Some(table.reference.clone());
    }
    for (chunks, fingerprint) in catalog.tensors.iter_mut().zip(&found.fingerprints) {
        chunks.fingerprint = Some(*fingerprint);
    }
    let ids = catalog.registry.entries().iter().map(fqn::Entry::id);
    let fingerprints = ids.zip(found.fingerprints.iter().copied()).collect();
    cancel.check()?;
    let (committed, before) = commit(root, options, catalog, tables)?;
    Ok(SealReport {
        committed,
        before,
        files: found.tables.len(),
        bytes_hashed: found.hashed,
        bytes_read: found.read,
        records: found.records,
        gathered: found.gathered,
        seconds: began.elapsed().as_secs_f64(),
        fingerprints,
    })
}

/// The source's catalog as it will stand in the manifest, but for places, tables and fingerprints.
fn catalog_of(source: &dyn Source, options: &SealOptions) -> Result<Catalog> {
    let mut catalog = source.catalog().clone();
    if let Some(foreign) = catalog.files.iter().find(|file| file.location != Location::InStep) {
        return Err(Error::incompatible(format!(
            "{}: belongs to a native store, which needs no seal",
            foreign.path
        )));
    }
    if let Some(registry) = &options.registry {
        let mut pairs = registry.entries().iter().zip(catalog.registry.entries());
        let same = pairs.all(|(a, b)| a.id() == b.id() && a.dtype == b.dtype && a.shape == b.shape);
        if !same || registry.len() != catalog.registry.len() {
            return Err(Error::incompatible(
                "the registry to seal with has other tensors than the checkpoint",
            )
            .hint("a seal keeps names, dtypes and shapes; convert to change them"));
        }
        catalog.registry = registry.clone();
    }
    catalog.step = catalog.step.or(options.step);
    catalog.extra.extend(options.extra.clone());
    Ok(catalog)
}

fn check_cover(catalog: &Catalog) -> Result<()> {
    let tensors = Tensors::new(catalog);
    for (at, entry) in catalog.registry.entries().iter().enumerate() {
        tensors.get(at)?.covered().place(entry.id())?;
    }
    Ok(())
}

/// A block table, and how the manifest refers to it.
struct Table {
    reference: BlockRef,
    bytes: Bytes,
}

impl Table {
    /// The table of the catalog's file number `at`. Its name stands for its content.
    fn new(at: usize, table: &BlockTable) -> Self {
        let bytes = Bytes::from(table.encode());
        let root = Sha256Digest::of(&bytes);
        let digits: String = root.to_string().chars().take(16).collect();
        Self { reference: BlockRef { path: format!("blocks/f{at:05}-{digits}.blocks"), root }, bytes }
    }
}

fn commit(
    root: &Root,
    options: &SealOptions,
    mut catalog: Catalog,
    mut tables: Vec<Table>,
) -> Result<(Committed, bool)> {
    let objects = ObjectBlob::of(&catalog.objects)?;
    let last = u32::try_from(catalog.files.len()).map_err(|_| Error::unsupported("more than 2^32 files"))?;
    if objects.is_needed() {
        let (entry, table) = blob_of(&objects, tables.len())?;
        catalog.files.push(entry);
        tables.push(table);
    }
    let places = objects.place(&mut catalog.objects, FileId(last));
    let blob = catalog.files.get(usize::try_from(last).unwrap_or(usize::MAX)).map(|file| file.path.clone());
    let step = catalog.step.unwrap_or(0);
    let mut manifest = Manifest::new(catalog);
    manifest.objects = places;
    let encoded = manifest.encode()?;
    let mut log = Log::open_with(root, options.log.clone())?;
    let identity = Sha256Digest::of(format!("native seal 1\0{}\0{}", encoded.digest, options.run).as_bytes());
    let attempt = attempt_of(log.state(), step, &identity)?;
    let before = log.state().committed(&attempt).is_some();
    if !before {
        if let Some(path) = blob {
            root.put_same(&object_path(&format!("{attempt}/{path}"))?, objects.bytes.clone())?;
        }
        for table in &tables {
            root.put_same(
                &object_path(&format!("{attempt}/{}", table.reference.path))?,
                table.bytes.clone(),
            )?;
        }
    }
    let (run, metrics, also) = (&options.run, Default::default(), BTreeSet::new());
    let what = Publication {
        run,
        epoch: None,
        parent: None,
        step,
        attempt: &attempt,
        also: &also,
        metrics: &metrics,
        manifest: &encoded,
    };
    let committed = publish(&mut log, &what)?;
    Ok((report(root, committed.seq.get(), &encoded, &objects, &tables), before || committed.before))
}

/// The blob of large objects, as a file and its table. Its name stands for its content.
fn blob_of(objects: &ObjectBlob, at: usize) -> Result<(FileEntry, Table)> {
    let bytes = &objects.bytes;
    let wrong = |error: &dyn std::fmt::Display| Error::internal(format!("large objects: {error}"));
    let layout = BlockLayout::new(bytes.len() as u64, []).map_err(|error| wrong(&error))?;
    let table = crate::digest::table_of(&bytes.to_vec(), layout, 1).map_err(|error| wrong(&error))?;
    let table = Table::new(at, &table);
    let digits: String = Sha256Digest::of(bytes).to_string().chars().take(16).collect();
    let entry = FileEntry {
        path: format!("data/objects-{digits}.safetensors"),
        location: Location::InStep,
        size: bytes.len() as u64,
        logical: None,
        blocks: Some(table.reference.clone()),
    };
    Ok((entry, table))
}

/// What was written: nothing of the foreign files.
fn report(
    root: &Root,
    seq: u64,
    manifest: &EncodedManifest,
    objects: &ObjectBlob,
    tables: &[Table],
) -> Committed {
    let bytes = tables.iter().map(|table| table.bytes.len()).sum::<usize>()
        + objects.bytes.len()
        + manifest.bytes.len();
    Committed {
        target: root.display_name().to_owned(),
        sequence: Some(seq),
        bytes: bytes as u64,
        files: tables.len() + usize::from(objects.is_needed()) + 1,
    }
}

#[cfg(test)]
mod tests;
