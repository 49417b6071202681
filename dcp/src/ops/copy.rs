//! [`copy`]: makes a checkpoint of a native store anew in a root, so that it needs no other folder: blobs byte for byte.
//!
//! ```text
//!  files of the source, wherever they lie ─ whole blocks, any thread ─► SHA-256 compared ─► blob of the new folder
//!   (its folder, other folders of its root, sealed files)         └──► fingerprint sums ─► compared with the manifest's
//!  all files ─► parts, read back from the store ─► manifest: every file in its own folder ─► commit
//! ```
//!
//! Kept are tensors, mesh, step, metrics, objects, extra facts, later keys of the manifest, block tables, codecs, and the run unless
//! another is given. Not kept is the place in the source's log: its parent, tags, pins and verifications are about records of that log. The
//! copy goes on from the newest of its run in the target; its manifest's origin says what it was copied from. Blobs are copied whole, with
//! their block tables, also those that the source shares with other checkpoints and uses in part.
//!
//! Invariants:
//! * no byte is written that its block's digest does not prove; a damaged source is refused by FQN and range, and nothing is visible;
//! * nothing is committed unless every recorded fingerprint is that of the copied bytes;
//! * the folder follows from the source's manifest and the run: a stopped copy goes on, and one that was made is not made again;
//! * an older checkpoint never becomes the newest of a run by being copied, whatever others commit to it at the same time: the record is tied
//!   to the newest by which that was decided;
//! * success is told only of a record that is durable, whoever wrote it.

mod file;
mod follow;
mod pass;

use std::time::Instant;

use fqn::TensorId;
use serde::Serialize;

use self::{
    file::Target,
    pass::{Passed, pass},
};
use crate::{
    BlockRef, Cancel, Catalog, Committed, Error, ErrorKind, FileId, Location, Place, Progress, Result,
    Source,
    commit::{CommitError, DirName, Label, Log, LogOptions, Seq},
    digest::Sha256Digest,
    engine::RunOptions,
    fingerprint::Fingerprint,
    formats::native::{NativeSource, Publication, append_record_while, attempt_of, put_manifest},
    manifest::{EncodedManifest, Manifest, Origin},
    retention,
    store::Root,
};

/// Times that others may be faster.
const ROUNDS: u32 = 1000;

/// As what a checkpoint is copied.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// The run that it is committed to; the source's own if none is given.
    pub run: Option<Label>,
    /// A name that it gets.
    pub tag: Option<Label>,
    /// Whether it is left out if it was copied before and forgotten in the target: so it is with a root that is copied time and again.
    pub leave_forgotten: bool,
    /// What the source is called, for the copy's origin.
    pub place: String,
    /// Clock, nonces, patience and name of the writer.
    pub log: LogOptions,
}

/// What a copy will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyPlan {
    /// The run.
    pub run: Label,
    /// The training step.
    pub step: u64,
    /// The folder below the target.
    pub folder: DirName,
    /// The record that made this very copy before, if there is one.
    pub before: Option<u64>,
    /// The record that made such a copy before, which was forgotten in the target since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<u64>,
    /// Files that are copied.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Of these files, those that the source shares with other folders of its root.
    pub shared_files: usize,
    /// Bytes of them.
    pub shared_bytes: u64,
    /// Of these files, those that lie outside, sealed.
    pub sealed_files: usize,
}

/// What was copied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CopyReport {
    /// What was to be done.
    pub plan: CopyPlan,
    /// What became visible; without a sequence number where it was left out (see [`CopyOptions::leave_forgotten`]).
    pub committed: Committed,
    /// Files that an earlier run of the same copy had finished.
    pub files_kept: usize,
    /// Bytes that were read and proven by their blocks.
    pub bytes_copied: u64,
    /// Tensors whose fingerprints were compared with the source's.
    pub proven: usize,
    /// Seconds from the first check to the commit.
    pub seconds: f64,
    /// Fingerprint of every tensor.
    pub fingerprints: Vec<(TensorId, Fingerprint)>,
}

/// Everything that is known before a byte is read.
struct Copy<'a> {
    source: &'a NativeSource,
    root: &'a Root,
    options: &'a CopyOptions,
    plan: CopyPlan,
    log: Log,
    /// Names the copy in its parts.
    identity: Sha256Digest,
}

/// Says what a copy will do, and does nothing.
///
/// # Errors
/// `Conflict` where an older checkpoint would become the newest of its run; `Incompatible` for files that no block table proves; the
/// log's.
pub fn plan(source: &NativeSource, root: &Root, options: &CopyOptions) -> Result<CopyPlan> {
    Copy::new(source, root, options).map(|copy| copy.plan)
}

/// Copies a checkpoint into `root`, which is there and was probed (see [`Root::create`]); it may be the source's own.
///
/// # Errors
/// As [`plan`]; `Conflict` too where a copy that was made before is forgotten meanwhile; `Corrupt` where a block, or a fingerprint, is not
/// what is recorded (file, tensor and range named); `Cancelled`; what the stores say. Nothing is visible then, and the same call goes on with
/// what is finished.
pub fn copy(
    source: &NativeSource,
    root: &Root,
    options: &CopyOptions,
    run: &RunOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<CopyReport> {
    let began = Instant::now();
    let mut copy = Copy::new(source, root, options)?;
    let copies = copy.plan.before.is_none() && !copy.is_left();
    let targets = if copies { copy.targets()? } else { Vec::new() };
    let files_kept = targets.iter().filter(|target| target.is_kept()).count();
    let passed = if copies {
        pass(source, &targets, run, progress, cancel)?
    } else {
        Passed::recorded(source.catalog())
    };
    let proven = compare(source.catalog(), &passed.fingerprints)?;
    cancel.check()?;
    let committed = if copy.is_left() { copy.nothing(0) } else { copy.commit(&targets)? };
    let ids = source.catalog().registry.entries().iter().map(fqn::Entry::id);
    Ok(CopyReport {
        committed,
        files_kept,
        bytes_copied: passed.bytes,
        proven: if copies { proven } else { 0 },
        seconds: began.elapsed().as_secs_f64(),
        fingerprints: ids.zip(passed.fingerprints).collect(),
        plan: copy.plan,
    })
}

impl<'a> Copy<'a> {
    fn new(source: &'a NativeSource, root: &'a Root, options: &'a CopyOptions) -> Result<Self> {
        let mut log = Log::open_with(root, options.log.clone()).place(root.display_name())?;
        log.prove().place(root.display_name())?;
        let (commit, catalog) = (source.commit(), source.catalog());
        let run = options.run.clone().or_else(|| commit.map(|commit| commit.run.clone()));
        let run = run.ok_or_else(|| {
            Error::incompatible("no record says which run this checkpoint is of")
                .hint("give a run for the copy")
        })?;
        let step = commit.map(|commit| commit.step).or(catalog.step).unwrap_or(0);
        let identity = follow::identity(&source.manifest_digest(), &run);
        let folder = attempt_of(log.state(), step, &identity)?;
        let before = log.state().committed(&folder);
        let forgotten = match before {
            Some(_) => None,
            None => follow::forgotten(&log, step, &identity)?,
        };
        if before.is_none() && !(options.leave_forgotten && forgotten.is_some()) {
            follow::follow(source, log.state(), &run, step).place(root.display_name())?;
        }
        let (before, forgotten) = (before.map(Seq::get), forgotten.map(Seq::get));
        let mut plan = CopyPlan {
            run,
            step,
            folder,
            before,
            forgotten,
            files: catalog.files.len(),
            bytes: 0,
            shared_files: 0,
            shared_bytes: 0,
            sealed_files: 0,
        };
        for file in &catalog.files {
            if file.blocks.is_none() {
                let text = format!("{}: no block table proves its bytes", file.path);
                return Err(Error::incompatible(text).hint("`ckpt convert` writes it anew, with digests"));
            }
            plan.bytes += file.size;
            match file.location {
                Location::InStep => {}
                Location::InRoot => {
                    plan.shared_files += 1;
                    plan.shared_bytes += file.size;
                }
                Location::External { .. } => plan.sealed_files += 1,
            }
        }
        Ok(Self { source, root, options, plan, log, identity })
    }

    fn targets(&self) -> Result<Vec<Target>> {
        let entries = self.source.catalog().files.iter().zip(0_u32..);
        let target = |(entry, at)| {
            let table = self.source.blocks(FileId(at))?;
            let table = table.ok_or_else(|| Error::internal("a block table that is gone"))?;
            let names = file::Names { root: self.root, dir: &self.plan.folder, identity: self.identity };
            Target::new(&names, FileId(at), entry, table, self.options.log.nonces.as_ref())
        };
        entries.map(target).collect()
    }

    /// Whether it is left out.
    const fn is_left(&self) -> bool {
        self.options.leave_forgotten && self.plan.forgotten.is_some()
    }

    fn nothing(&self, files: usize) -> Committed {
        Committed { target: self.root.display_name().to_owned(), sequence: None, bytes: 0, files }
    }

    /// Commits what the store holds, and gives it its name.
    fn commit(&mut self, targets: &[Target]) -> Result<Committed> {
        let place = self.root.display_name();
        self.log.refresh().place(place)?;
        let there = self.log.state().committed(&self.plan.folder);
        self.stays(there).place(place)?;
        let mut committed = self.nothing(targets.len() * 2 + 1);
        let seq = match there {
            Some(seq) => {
                // Whoever wrote it may have been stopped before it was durable.
                self.log.settle().place(place)?;
                seq
            }
            None => {
                let manifest = self.manifest(targets, &mut committed)?;
                let encoded = manifest.encode()?;
                committed.bytes += encoded.bytes.len() as u64;
                self.publish(&encoded)?
            }
        };
        committed.sequence = Some(seq.get());
        if let Some(name) = &self.options.tag {
            retention::tag(&mut self.log, name, seq)?;
        }
        Ok(committed)
    }

    /// Whether the copy that was made before, and so not made now, is still there.
    fn stays(&self, there: Option<Seq>) -> Result<()> {
        let is_live = |seq: Seq| self.log.state().checkpoints.contains_key(&seq);
        match self.plan.before {
            Some(before) if !there.is_some_and(is_live) => {
                let text = format!(
                    "the copy that was made before (record {before}) was forgotten in the target meanwhile"
                );
                Err(Error::new(ErrorKind::Conflict, text).hint("run it again"))
            }
            _ => Ok(()),
        }
    }

    /// Appends the record, as long as the copy is newer than the newest of its run.
    fn publish(&mut self, manifest: &EncodedManifest) -> Result<Seq> {
        let place = self.root.display_name();
        let metrics = self.source.commit().map(|commit| commit.metrics.clone()).unwrap_or_default();
        let what = Publication {
            run: &self.plan.run,
            epoch: None,
            parent: None,
            step: self.plan.step,
            attempt: &self.plan.folder,
            also: &std::collections::BTreeSet::new(),
            metrics: &metrics,
            manifest,
        };
        put_manifest(self.root, &what)?;
        for _ in 0..ROUNDS {
            let newest = follow::follow(self.source, self.log.state(), &self.plan.run, self.plan.step);
            match append_record_while(&mut self.log, &what, newest.place(place)?) {
                Ok(committed) => return Ok(committed.seq),
                // Somebody committed in between: whether this one is older than that is decided anew.
                Err(CommitError::Passed { .. }) => {}
                Err(error) => return Err(error).place(place),
            }
        }
        Err(CommitError::Contended { rounds: ROUNDS }).place(place)
    }

    /// The source's manifest with every file in the copy's own folder, as the parts in the store say.
    fn manifest(&self, targets: &[Target], committed: &mut Committed) -> Result<Manifest> {
        let mut manifest = self.source.stored_manifest()?;
        if manifest.catalog.files.len() != targets.len() {
            return Err(Error::internal("the source's manifest has other files than when it was opened"));
        }
        let place = match self.source.commit() {
            Some(commit) => format!("{}@seq:{}", self.options.place, commit.seq),
            None => self.options.place.clone(),
        };
        let (format, variant) = (manifest.catalog.format, manifest.catalog.variant.clone());
        for (entry, target) in manifest.catalog.files.iter_mut().zip(targets) {
            let done = target.finished()?;
            committed.bytes += entry.size + done.table_size;
            (entry.path, entry.location) = (done.path, Location::InStep);
            entry.blocks = Some(BlockRef { path: done.table, root: done.root });
        }
        manifest.origin = Some(Origin { format, variant, place });
        Ok(manifest)
    }
}

/// Compares fingerprints with those that are recorded; how many there were.
fn compare(catalog: &Catalog, found: &[Fingerprint]) -> Result<usize> {
    let mut proven = 0;
    for ((entry, chunks), found) in catalog.iter().zip(found) {
        match chunks.fingerprint {
            None => {}
            Some(recorded) if recorded == *found => proven += 1,
            Some(recorded) => {
                let text = format!(
                    "{}: the copied bytes have fingerprint {found}, recorded is {recorded}",
                    entry.id()
                );
                return Err(Error::corrupt(text).hint(
                    "blocks are as they were written, so this was written wrong; nothing was committed",
                ));
            }
        }
    }
    Ok(proven)
}

#[cfg(test)]
mod tests;
