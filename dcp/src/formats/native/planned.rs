//! [`Planned`]: one checkpoint as its plan has it, before and while it is written: the folder, the blobs, the parts, and the
//! way to the record. What the sink of a copy and the writers of a trainer share.
//!
//! Invariants: everything here follows from the spec, the run and the log, so that all writers of one plan agree without a
//! message; a commit believes the store alone.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use fqn::Entry;
use reshard::Region;

use super::{
    attempt::{FileNames, attempt_of},
    catalog,
    layout::{self, Blob, Group, Heads, LAYOUT},
    objects::ObjectBlob,
    part::{Part, Parts},
    publish::{Publication, append_record, put_manifest},
    sharing::{Note, SharedBoxes, WITHOUT, directory_of},
};
use crate::{
    Committed, Error, ErrorKind, Location, Result, TargetChunk, TargetSpec, codec,
    commit::{CommitError, DirName, Label, Log, Metrics, Seq, State, Void},
    digest::Sha256Hasher,
    fingerprint::{FingerprintSum, RegionSum},
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
    /// By tensor: whether its boxes may be found in an earlier checkpoint. Empty where none may.
    shareable: Vec<bool>,
}

/// Everything that was finished, as the store has it.
#[derive(Debug)]
pub(crate) struct Finished<'b> {
    /// Files of the attempt, that of the large objects last.
    pub(super) files: Vec<(Cow<'b, Blob>, Part)>,
    /// What is referred to.
    pub(super) shared: Vec<SharedBoxes>,
}

impl Finished<'_> {
    /// What each box of a tensor, by its position, adds to the tensor's fingerprint, and the rank that wrote or found it.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (usize, &Region, u32, FingerprintSum)> {
        let written = self.files.iter().flat_map(|(blob, part)| {
            let boxes = blob.chunks.iter().zip(&part.boxes);
            boxes.map(|(chunk, sum)| (chunk.tensor, &chunk.region, blob.rank, *sum))
        });
        let found = self
            .shared
            .iter()
            .flat_map(|shared| shared.boxes.iter().map(|it| (it.tensor, &it.region, shared.rank, it.sum)));
        written.chain(found)
    }
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
        if !spec.codecs.is_none() {
            hasher.update(format!("\0{}\0{}", codec::VERSION, spec.codecs).as_bytes());
        }
        let dir = attempt_of(state, step, &hasher.finish())?;
        let objects = ObjectBlob::of(&spec.objects)?;
        Ok(Self { dir, spec, run: run.clone(), step, objects, shareable: Vec::new() })
    }

    /// The same with tensors whose boxes may be found in an earlier checkpoint.
    pub(crate) fn sharing(mut self, shareable: impl Fn(&Entry) -> bool) -> Self {
        // A tensor without elements has no bytes that could be anywhere.
        let may = |entry: &Entry| !entry.shape.contains(&0) && shareable(entry);
        self.shareable = self.spec.tensors.iter().map(|tensor| may(&tensor.entry)).collect();
        self
    }

    fn is_shareable(&self, tensor: usize) -> bool {
        self.shareable.get(tensor).copied().unwrap_or(false)
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
        let plain = |tensor, rank| !self.is_shareable(tensor) && wanted(rank);
        let mut blobs = layout::blobs(&self.spec, plain, heads)?;
        if self.objects.is_needed() && wanted(OBJECT_WRITER) {
            let (head, size) = (self.objects.bytes.clone(), self.objects.bytes.len() as u64);
            let (names, rank) = (FileNames::of_objects(), OBJECT_WRITER);
            blobs.push(Blob::new(names, rank, head, size, Vec::new()));
        }
        Ok(blobs)
    }

    /// All groups of boxes that may be found in an earlier checkpoint.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    fn groups(&self) -> Result<Vec<Group>> {
        layout::groups(&self.spec, |tensor, _| self.is_shareable(tensor))
    }

    /// The groups of a rank.
    ///
    /// # Errors
    /// As [`Self::blobs`].
    pub(crate) fn groups_of(&self, rank: u32) -> Result<Vec<Group>> {
        layout::groups(&self.spec, |tensor, writer| writer == rank && self.is_shareable(tensor))
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

    /// The same of a box whose bytes come piece by piece.
    pub(super) fn summing(&self, tensor: usize, region: &Region) -> Result<RegionSum> {
        let entry = self.entry(tensor)?;
        RegionSum::new(entry.dtype, &entry.shape, region)
            .ok_or_else(|| Error::internal(format!("{}: {region} is no box of it", entry.id())))
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
        let parts = self.parts(root);
        let mut names = layout::names(&self.spec, |tensor, _| !self.is_shareable(tensor))?;
        names.extend(self.groups()?.into_iter().map(|group| (group.rank, group.names)));
        if self.objects.is_needed() {
            names.push((OBJECT_WRITER, FileNames::of_objects()));
        }
        let there = parallel::map(&names, |(_, names)| parts.has(names))?;
        let missing = names.into_iter().zip(there).filter(|(_, there)| !there).map(|((rank, _), _)| rank);
        Ok(missing.collect())
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

    /// A plan whose folder is or will be deleted: what is written there now is no part of any checkpoint.
    ///
    /// # Errors
    /// `Conflict` where a record says so.
    pub(crate) fn refuse_given_up(&self, root: &Root, state: &State) -> Result<()> {
        refuse_condemned(state, &self.dir).map_err(|error| error.at(root.display_name()))?;
        let Some(seq) = state.retired.get(&self.dir) else { return Ok(()) };
        let text =
            format!("{}: this plan was committed as record {seq}, and forgotten since", root.display_name());
        Err(Error::new(ErrorKind::Conflict, text).hint("run all workers again: they go into another folder"))
    }

    /// Everything that was finished, as the store has it.
    fn finished<'b>(&self, root: &Root, blobs: &'b [Blob], groups: &[Group]) -> Result<Finished<'b>> {
        let parts = self.parts(root);
        let mut found = Finished { files: Vec::with_capacity(blobs.len()), shared: Vec::new() };
        let (mut missing, mut noted) = (Vec::new(), Vec::new());
        // Small reads for each, and a large mesh has thousands.
        for (group, note) in groups.iter().zip(parallel::map(groups, |group| Note::get(root, self, group))?) {
            match note {
                Some(note) => noted.push((group, note)),
                None => missing.push((group.rank, &group.names)),
            }
        }
        let written = parallel::map(&noted, |(group, note)| note.written(root, self, group))?;
        found.files.extend(written.into_iter().flatten().map(|(blob, part)| (Cow::Owned(blob), part)));
        Note::check_files(root, &noted)?;
        found.shared.extend(noted.into_iter().map(|(group, note)| note.shared(group)));
        for (blob, part) in blobs.iter().zip(parallel::map(blobs, |blob| parts.get(blob))?) {
            match part {
                Some(part) => found.files.push((Cow::Borrowed(blob), part)),
                None => missing.push((blob.rank, &blob.names)),
            }
        }
        let Some((_, first)) = missing.first() else { return Ok(found) };
        let ranks: BTreeSet<u32> = missing.iter().map(|(rank, _)| *rank).collect();
        let (place, dir, lack) = (root.display_name(), &self.dir, missing.len());
        let text = format!(
            "{place}/{dir}: {lack} of {} files have no part, {} the first: not done: {}",
            blobs.len() + groups.len(),
            first.key,
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
        check: impl FnOnce(&Manifest, &Finished<'_>) -> Result<()>,
        landed: impl FnOnce() -> Result<()>,
    ) -> Result<Committed> {
        let root = log.root().clone();
        refuse_condemned(log.state(), &self.dir).map_err(|error| error.at(root.display_name()))?;
        let blobs = self.blobs_to_compare()?;
        let finished = self.finished(&root, &blobs, &self.groups()?)?;
        let manifest = catalog::manifest(&self.spec, &finished, &self.objects, terms.origin.clone())?;
        check(&manifest, &finished)?;
        let also = directories(&manifest)?;
        let files = &finished.files;
        let bytes = files.iter().map(|(_, part)| part.done.size).sum::<u64>();
        let tables =
            files.iter().filter_map(|(_, part)| part.done.blocks.as_ref()).map(|it| it.encode().len() as u64);
        let mut committed = Committed {
            target: root.display_name().to_owned(),
            sequence: log.state().committed(&self.dir).map(Seq::get),
            bytes: bytes + tables.sum::<u64>(),
            files: files.len() * 2 + 1,
        };
        drop(finished);
        if committed.sequence.is_some() {
            // By another writer, which may have been stopped before its record was durable.
            log.settle()?;
            return Ok(committed);
        }
        refuse_if_condemned(&root, log.state(), &also)?;
        let encoded = manifest.encode()?;
        let what = Publication {
            run: &self.run,
            epoch: terms.epoch,
            parent: terms.parent,
            step: self.step,
            attempt: &self.dir,
            metrics: &terms.metrics,
            also: &also,
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

/// Folders of other attempts that the manifest refers to.
fn directories(manifest: &Manifest) -> Result<BTreeSet<DirName>> {
    let files = manifest.catalog.files.iter();
    let in_root = files.filter(|file| file.location == Location::InRoot);
    in_root.map(|file| directory_of(&file.path)).collect()
}

/// Says early, and with what to do, what the log would refuse.
fn refuse_if_condemned(root: &Root, state: &State, directories: &BTreeSet<DirName>) -> Result<()> {
    let condemned = directories.iter().find_map(|dir| Some((dir, state.condemned.get(dir)?)));
    let Some((dir, seq)) = condemned else { return Ok(()) };
    let text = format!(
        "{}: unchanged tensors refer to {dir}, which record {seq} has condemned since: it may be deleted by now",
        root.display_name()
    );
    Err(Error::new(ErrorKind::Conflict, text).hint(WITHOUT))
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
