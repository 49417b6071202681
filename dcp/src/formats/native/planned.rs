//! [`Planned`]: one checkpoint as its plan has it, before and while it is written: the folder, the blobs, the parts, and the
//! way to the record. What the sink of a copy and the writers of a trainer share.
//!
//! Invariants: everything here follows from the spec, the run and the log, so that all writers of one plan agree without a
//! message; a commit believes the store alone.

use std::{collections::BTreeSet, sync::Arc};

use fqn::Entry;
use reshard::Region;

use super::{
    attempt::{FileNames, attempt_of},
    catalog,
    layout::{self, Blob, Heads, LAYOUT},
    objects::ObjectBlob,
    part::{Part, Parts},
    publish::{Publication, append_record, put_manifest},
};
use crate::{
    Committed, Error, ErrorKind, Result, TargetChunk, TargetSpec,
    commit::{CommitError, DirName, Label, Log, Metrics, Seq, State, Void},
    digest::Sha256Hasher,
    fingerprint::FingerprintSum,
    formats::parallel,
    manifest::{Manifest, Origin},
    store::Root,
};

/// The rank that writes the large objects.
const OBJECT_WRITER: u32 = 0;

/// One checkpoint as its plan has it.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The folder below the root.
    pub(crate) dir: DirName,
    /// What it shall hold.
    pub(crate) spec: Arc<TargetSpec>,
    run: Label,
    step: u64,
    objects: ObjectBlob,
}

/// As what a checkpoint is committed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// The incarnation of the run, for writers that may be fenced.
    pub(crate) epoch: Option<u64>,
    /// The checkpoint that it goes on from; none for the run's newest at that moment.
    pub(crate) parent: Option<Seq>,
    /// What it is made from.
    pub(crate) origin: Option<Origin>,
    /// What its saver measured.
    pub(crate) metrics: Metrics,
}

impl Planned {
    /// The checkpoint of a plan, in a root whose log says `state`.
    ///
    /// # Errors
    /// `Conflict` when the plan was written and retired too often, and limits of the format.
    pub(crate) fn new(state: &State, run: &Label, spec: Arc<TargetSpec>) -> Result<Self> {
        let step = spec.step.unwrap_or(0);
        let mut hasher = Sha256Hasher::new();
        for text in [LAYOUT, "\0", spec.plan_digest.as_str(), "\0", run.as_str()] {
            hasher.update(text.as_bytes());
        }
        let dir = attempt_of(state, step, &hasher.finish())?;
        let objects = ObjectBlob::of(&spec.objects)?;
        Ok(Self { dir, spec, run: run.clone(), step, objects })
    }

    /// All blobs, that of the large objects last.
    ///
    /// # Errors
    /// `Incompatible` for chunks that do not fill whole bytes.
    pub(crate) fn blobs(&self) -> Result<Vec<Blob>> {
        self.blobs_if(|_| true, Heads::Bytes)
    }

    /// All blobs, without their heads: to compare them with what was written.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub(crate) fn blobs_to_compare(&self) -> Result<Vec<Blob>> {
        self.blobs_if(|_| true, Heads::Digests)
    }

    /// The blobs that a rank writes.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub(crate) fn blobs_of(&self, rank: u32) -> Result<Vec<Blob>> {
        self.blobs_if(|writer| writer == rank, Heads::Bytes)
    }

    fn blobs_if(&self, wanted: impl Fn(u32) -> bool, heads: Heads) -> Result<Vec<Blob>> {
        let mut blobs = layout::blobs(&self.spec, &wanted, heads)?;
        if self.objects.is_needed() && wanted(OBJECT_WRITER) {
            let (head, size) = (self.objects.bytes.clone(), self.objects.bytes.len() as u64);
            let (names, rank) = (FileNames::of_objects(), OBJECT_WRITER);
            blobs.push(Blob::new(names, rank, head, size, Vec::new()));
        }
        Ok(blobs)
    }

    /// What is known of a tensor of the spec.
    pub(super) fn entry(&self, tensor: usize) -> Result<&Entry> {
        let found = self.spec.tensors.get(tensor).map(|tensor| &tensor.entry);
        found.ok_or_else(|| Error::internal(format!("a box of tensor {tensor}, which the plan has not")))
    }

    /// What a box adds to its tensor's fingerprint.
    pub(crate) fn sum(&self, tensor: usize, region: &Region, bytes: &[u8]) -> Result<FingerprintSum> {
        let (entry, mut sum) = (self.entry(tensor)?, FingerprintSum::default());
        sum.add_region(entry.dtype, &entry.shape, region, bytes)
            .map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
        Ok(sum)
    }

    /// Bytes of a chunk.
    pub(super) fn len_of(&self, chunk: &TargetChunk) -> Result<u64> {
        layout::len_of(&self.spec, &(chunk.tensor, &chunk.region))
    }

    /// Where the parts are.
    pub(crate) fn parts<'a>(&'a self, root: &'a Root) -> Parts<'a> {
        Parts { root, dir: &self.dir, plan: &self.spec.plan_digest }
    }

    /// The ranks that have not finished all they write, ascending.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn missing(&self, root: &Root) -> Result<BTreeSet<u32>> {
        let (parts, mut missing) = (self.parts(root), BTreeSet::new());
        let mut names = layout::names(&self.spec)?;
        if self.objects.is_needed() {
            names.push((OBJECT_WRITER, FileNames::of_objects()));
        }
        for (rank, names) in names {
            if !missing.contains(&rank) && !parts.has(&names)? {
                missing.insert(rank);
            }
        }
        Ok(missing)
    }

    /// A file that has no part any more, of a plan that was committed: what it says can't be made again.
    ///
    /// # Errors
    /// `Conflict` when the plan was committed.
    pub(crate) fn refuse_if_committed(&self, root: &Root, state: &State) -> Result<()> {
        let Some(seq) = state.committed(&self.dir) else { return Ok(()) };
        let text = format!("{}: this plan was committed already, as record {seq}", root.display_name());
        let hint = format!("use that checkpoint: its revision is seq:{seq}");
        Err(Error::new(ErrorKind::Conflict, text).hint(hint))
    }

    /// Everything that was finished, as the store has it.
    fn finished<'b>(&self, root: &Root, blobs: &'b [Blob]) -> Result<Vec<(&'b Blob, Part)>> {
        let parts = self.parts(root);
        let mut found = Vec::with_capacity(blobs.len());
        let mut missing = Vec::new();
        // Three small reads for each file, and a large mesh has thousands of files.
        for (blob, part) in blobs.iter().zip(parallel::map(blobs, |blob| parts.get(blob))?) {
            match part {
                Some(part) => found.push((blob, part)),
                None => missing.push(blob),
            }
        }
        let Some(first) = missing.first() else { return Ok(found) };
        let ranks: BTreeSet<u32> = missing.iter().map(|blob| blob.rank).collect();
        let (place, dir, lack, all) = (root.display_name(), &self.dir, missing.len(), blobs.len());
        let text = format!(
            "{place}/{dir}: {lack} of {all} files have no part, {} the first: not done: {}",
            first.names.key,
            ranks_text(&ranks)
        );
        Err(Error::new(ErrorKind::Conflict, text)
            .hint("other writers are not done, or were stopped; run the same command again to go on"))
    }

    /// Checks all parts, and commits. `check` sees the manifest and the parts before anything is put; `landed` is called once it is durable. An
    /// attempt that was committed before is success.
    ///
    /// # Errors
    /// `Conflict` when parts are missing, the ranks named, or the incarnation has ended; `Corrupt` where parts, files and plan
    /// contradict each other; the store's and the log's.
    pub(crate) fn commit(
        &self,
        log: &mut Log,
        terms: &Terms,
        check: impl FnOnce(&Manifest, &[(&Blob, Part)]) -> Result<()>,
        landed: impl FnOnce() -> Result<()>,
    ) -> Result<Committed> {
        let root = log.root().clone();
        refuse_condemned(log.state(), &self.dir).map_err(|error| error.at(root.display_name()))?;
        let blobs = self.blobs_to_compare()?;
        let files = self.finished(&root, &blobs)?;
        let manifest = catalog::manifest(&self.spec, &files, &self.objects, terms.origin.clone())?;
        check(&manifest, &files)?;
        let bytes = files.iter().map(|(blob, _)| blob.size).sum::<u64>();
        let tables =
            files.iter().filter_map(|(_, part)| part.done.blocks.as_ref()).map(|it| it.encode().len() as u64);
        let mut committed = Committed {
            target: root.display_name().to_owned(),
            sequence: log.state().committed(&self.dir).map(Seq::get),
            bytes: bytes + tables.sum::<u64>(),
            files: files.len() * 2 + 1,
        };
        drop(files);
        if committed.sequence.is_some() {
            return Ok(committed);
        }
        let encoded = manifest.encode()?;
        let what = Publication {
            run: &self.run,
            epoch: terms.epoch,
            parent: terms.parent,
            step: self.step,
            attempt: &self.dir,
            metrics: &terms.metrics,
            manifest: &encoded,
        };
        put_manifest(&root, &what)?;
        landed()?;
        committed.sequence = Some(append_record(log, &what)?.seq.get());
        committed.bytes += encoded.bytes.len() as u64;
        Ok(committed)
    }
}

/// Who slept through a collection of garbage finds parts missing, which says nothing; this says why.
fn refuse_condemned(state: &State, dir: &DirName) -> Result<()> {
    state.condemned.get(dir).map_or(Ok(()), |&seq| {
        let void = Void::Condemned { directory: dir.clone(), seq };
        Err(Error::from(CommitError::Rejected { void })
            .hint("begin the save anew: it goes into another directory"))
    })
}

/// `rank 3`, `ranks 3, 4, 9`; many are cut.
fn ranks_text(ranks: &BTreeSet<u32>) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(ToString::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", shown.join("")),
        count if count > SHOWN => format!("{count} ranks, of them {}", shown.join(", ")),
        _ => format!("ranks {}", shown.join(", ")),
    }
}
