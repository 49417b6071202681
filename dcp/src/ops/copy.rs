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
//! copy goes on from the newest of its run in the target; its manifest's origin says what it was copied from.
//!
//! Invariants:
//! * no byte is written that its block's digest does not prove; a damaged source is refused by FQN and range, and nothing is visible;
//! * nothing is committed unless every recorded fingerprint is that of the copied bytes;
//! * the folder follows from the source's manifest and the run: a stopped copy goes on, and one that was made is not made again;
//! * an older checkpoint never becomes the newest of a run by being copied.

mod file;
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
    commit::{Action, DirName, Label, Log, LogOptions, State, Tag},
    digest::Sha256Digest,
    engine::RunOptions,
    fingerprint::Fingerprint,
    formats::native::{NativeSource, Publication, attempt_of, publish},
    manifest::{Manifest, Origin},
    store::Root,
};

/// As what a checkpoint is copied.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// The run that it is committed to; the source's own if none is given.
    pub run: Option<Label>,
    /// A name that it gets.
    pub tag: Option<Label>,
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
    /// What became visible.
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
/// As [`plan`]; `Corrupt` where a block, or a fingerprint, is not what is recorded (file, tensor and range named); `Cancelled`; what
/// the stores say. Nothing is visible then, and the same call goes on with what is finished.
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
    let targets = if copy.plan.before.is_some() { Vec::new() } else { copy.targets()? };
    let files_kept = targets.iter().filter(|target| target.is_kept()).count();
    let passed = match copy.plan.before {
        Some(_) => Passed::recorded(source.catalog()),
        None => pass(source, &targets, run, progress, cancel)?,
    };
    let proven = compare(source.catalog(), &passed.fingerprints)?;
    cancel.check()?;
    let committed = copy.commit(&targets)?;
    let ids = source.catalog().registry.entries().iter().map(fqn::Entry::id);
    Ok(CopyReport {
        committed,
        files_kept,
        bytes_copied: passed.bytes,
        proven: if copy.plan.before.is_some() { 0 } else { proven },
        seconds: began.elapsed().as_secs_f64(),
        fingerprints: ids.zip(passed.fingerprints).collect(),
        plan: copy.plan,
    })
}

impl<'a> Copy<'a> {
    fn new(source: &'a NativeSource, root: &'a Root, options: &'a CopyOptions) -> Result<Self> {
        let log = Log::open_with(root, options.log.clone()).place(root.display_name())?;
        let (commit, catalog) = (source.commit(), source.catalog());
        let run = options.run.clone().or_else(|| commit.map(|commit| commit.run.clone()));
        let run = run.ok_or_else(|| {
            Error::incompatible("no record says which run this checkpoint is of")
                .hint("give a run for the copy")
        })?;
        let step = commit.map(|commit| commit.step).or(catalog.step).unwrap_or(0);
        let text = format!("native copy 1\0{}\0{run}", source.manifest_digest());
        let identity = Sha256Digest::of(text.as_bytes());
        let folder = attempt_of(log.state(), step, &identity)?;
        let before = log.state().committed(&folder).map(crate::commit::Seq::get);
        if before.is_none() {
            refuse_older(log.state(), &run, step).place(root.display_name())?;
        }
        let mut plan = CopyPlan {
            run,
            step,
            folder,
            before,
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

    /// Commits what the store holds, and gives it its name.
    fn commit(&mut self, targets: &[Target]) -> Result<Committed> {
        let place = self.root.display_name();
        self.log.refresh().place(place)?;
        let mut committed = Committed {
            target: place.to_owned(),
            sequence: self.log.state().committed(&self.plan.folder).map(crate::commit::Seq::get),
            bytes: 0,
            files: targets.len() * 2 + 1,
        };
        if committed.sequence.is_none() {
            refuse_older(self.log.state(), &self.plan.run, self.plan.step).place(place)?;
            let manifest = self.manifest(targets, &mut committed)?;
            let encoded = manifest.encode()?;
            committed.bytes += encoded.bytes.len() as u64;
            let metrics = self.source.commit().map(|commit| commit.metrics.clone()).unwrap_or_default();
            let what = Publication {
                run: &self.plan.run,
                epoch: None,
                parent: None,
                step: self.plan.step,
                attempt: &self.plan.folder,
                also: &std::collections::BTreeSet::new(),
                metrics: &metrics,
                manifest: &encoded,
            };
            committed.sequence = Some(publish(&mut self.log, &what)?.seq.get());
        }
        if let (Some(name), Some(seq)) = (&self.options.tag, committed.sequence) {
            let checkpoint =
                crate::commit::Seq::new(seq).map_err(|error| Error::internal(error.to_string()))?;
            let action = Action::Tag(Tag { name: name.clone(), checkpoint });
            let draft = self.log.draft(&self.plan.run, action).place(place)?;
            self.log.append(&draft).place(place)?;
        }
        Ok(committed)
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

/// A copy of an older checkpoint must not become what a run resumes from.
fn refuse_older(state: &State, run: &Label, step: u64) -> Result<()> {
    match state.newest(run) {
        Some((seq, newest)) if newest.step > step => {
            let text = format!(
                "run {run} is at step {} (record {seq}): a copy of step {step} would become its newest checkpoint",
                newest.step
            );
            Err(Error::new(ErrorKind::Conflict, text).hint("commit it to a run of its own: --run NAME"))
        }
        _ => Ok(()),
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
