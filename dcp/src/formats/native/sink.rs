//! [`NativeSink`]: writes a checkpoint into a root, and commits it.

use bytes::Bytes;

use super::{
    attempt::{FileNames, attempt_of, below},
    catalog,
    layout::{self, Blob, LAYOUT},
    objects::ObjectBlob,
    part::{Part, Parts},
    publish::{Publication, publish},
};
use crate::{
    Committed, Error, ErrorKind, FileDone, Needs, Piece, Result, Sink, TargetFile, TargetLayout, TargetSpec,
    Written,
    commit::{DirName, Label, Log, LogOptions, Seq},
    digest::Sha256Hasher,
    manifest::Origin,
    store::{BlobWriter, Root},
};

/// As what a checkpoint is committed.
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// The run that it belongs to.
    pub run: Label,
    /// The incarnation of the run, for a trainer that another may have replaced; none for a person at a terminal.
    pub epoch: Option<u64>,
    /// The checkpoint that it goes on from; none for the run's newest at that moment.
    pub parent: Option<Seq>,
    /// The training step, where the spec has none.
    pub step: Option<u64>,
    /// What it is made from.
    pub origin: Option<Origin>,
    /// Clock, nonces, patience and name of the writer.
    pub log: LogOptions,
}

impl SinkOptions {
    /// Committed as the newest of `run`, by this program on this machine.
    #[must_use]
    pub fn new(run: Label) -> Self {
        Self { run, epoch: None, parent: None, step: None, origin: None, log: LogOptions::default() }
    }
}

/// Writes one checkpoint into a root.
#[derive(Debug)]
pub struct NativeSink {
    root: Root,
    options: SinkOptions,
    attempt: Option<Attempt>,
}

/// What was decided when the layout was.
#[derive(Debug)]
struct Attempt {
    log: Log,
    dir: DirName,
    step: u64,
    spec: TargetSpec,
    blobs: Vec<Blob>,
    objects: ObjectBlob,
    /// Path of each blob.
    paths: Vec<String>,
    finished: Vec<FileDone>,
}

impl NativeSink {
    /// A sink that writes into `root`, which is there and was probed (see [`Root::create`]).
    #[must_use]
    pub const fn new(root: Root, options: SinkOptions) -> Self {
        Self { root, options, attempt: None }
    }

    /// The folder that it writes into, once the layout is decided.
    #[must_use]
    pub fn attempt(&self) -> Option<&DirName> {
        self.attempt.as_ref().map(|attempt| &attempt.dir)
    }

    fn began(&self) -> Result<&Attempt> {
        self.attempt.as_ref().ok_or_else(|| Error::internal("a native sink was used before its layout"))
    }

    fn begin(&self, spec: &TargetSpec) -> Result<(Attempt, TargetLayout)> {
        let log = Log::open_with(&self.root, self.options.log.clone())?;
        let step = spec.step.or(self.options.step).unwrap_or(0);
        let mut hasher = Sha256Hasher::new();
        for text in [LAYOUT, "\0", spec.plan_digest.as_str(), "\0", self.options.run.as_str()] {
            hasher.update(text.as_bytes());
        }
        let dir = attempt_of(log.state(), step, &hasher.finish())?;
        let objects = ObjectBlob::of(&spec.objects)?;
        let mut blobs = layout::blobs(spec)?;
        if objects.is_needed() {
            let (head, size) = (objects.bytes.clone(), objects.bytes.len() as u64);
            blobs.push(Blob { names: FileNames::of_objects(), head, size, chunks: Vec::new() });
        }
        let mut spec = spec.clone();
        spec.step = spec.step.or(self.options.step);
        let (paths, finished) = self.paths(&log, &dir, &spec, &blobs)?;
        let layout = target_layout(&blobs, &paths);
        Ok((Attempt { log, dir, step, spec, blobs, objects, paths, finished }, layout))
    }

    /// Names of the blobs, and what is finished: the parts' for those, new ones for the others.
    fn paths(
        &self,
        log: &Log,
        dir: &DirName,
        spec: &TargetSpec,
        blobs: &[Blob],
    ) -> Result<(Vec<String>, Vec<FileDone>)> {
        let parts = Parts { root: &self.root, dir, plan: &spec.plan_digest };
        let (mut paths, mut finished) = (Vec::with_capacity(blobs.len()), Vec::new());
        for (at, blob) in blobs.iter().enumerate() {
            match parts.get(blob)? {
                Some(Part { done, .. }) => {
                    paths.push(done.path.clone());
                    finished.push(FileDone { file: at, ..done });
                }
                None => paths.push(blob.names.blob(self.options.log.nonces.draw()?)),
            }
        }
        match log.state().committed(dir) {
            Some(seq) if finished.len() < blobs.len() => Err(Error::new(
                ErrorKind::Conflict,
                format!("{}: this plan was committed already, as record {seq}", self.root.display_name()),
            )
            .hint(format!("use that checkpoint: its revision is seq:{seq}"))),
            _ => Ok((paths, finished)),
        }
    }
}

fn target_layout(blobs: &[Blob], paths: &[String]) -> TargetLayout {
    let file = |(blob, path): (&Blob, &String)| TargetFile {
        path: path.clone(),
        size: blob.size,
        head: vec![Piece { offset: 0, bytes: Bytes::clone(&blob.head) }],
    };
    let files = blobs.iter().zip(paths).map(file).collect();
    TargetLayout { files, chunks: blobs.iter().flat_map(|blob| blob.chunks.iter().cloned()).collect() }
}

impl Attempt {
    fn blob(&self, file: usize) -> Result<(&Blob, &str)> {
        let found = self.blobs.get(file).zip(self.paths.get(file));
        let (blob, path) =
            found.ok_or_else(|| Error::internal(format!("file {file} is not in the layout")))?;
        Ok((blob, path))
    }

    /// Everything that was finished, as the store has it.
    fn parts(&self, root: &Root) -> Result<Vec<(&Blob, Part)>> {
        let parts = Parts { root, dir: &self.dir, plan: &self.spec.plan_digest };
        let mut found = Vec::with_capacity(self.blobs.len());
        let mut missing = Vec::new();
        for blob in &self.blobs {
            match parts.get(blob)? {
                Some(part) => found.push((blob, part)),
                None => missing.push(blob.names.key.as_str()),
            }
        }
        let Some(first) = missing.first() else { return Ok(found) };
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "{}/{}: {} of {} files have no part, {first} the first",
                root.display_name(),
                self.dir,
                missing.len(),
                self.blobs.len()
            ),
        )
        .hint("other writers are not done, or were stopped; run the same command again to go on"))
    }
}

impl Sink for NativeSink {
    fn needs(&self) -> Needs {
        Needs { crc32: false, blocks: true }
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        let (attempt, layout) = self.begin(spec)?;
        self.attempt = Some(attempt);
        Ok(layout)
    }

    fn finished(&self) -> Result<Vec<FileDone>> {
        Ok(self.began()?.finished.clone())
    }

    fn blob(&self, file: usize) -> Result<Box<dyn BlobWriter>> {
        let attempt = self.began()?;
        let (blob, path) = attempt.blob(file)?;
        Ok(self.root.blob(&below(&attempt.dir, path)?, blob.size)?)
    }

    fn file_done(&self, done: &FileDone) -> Result<()> {
        let attempt = self.began()?;
        let (blob, _) = attempt.blob(done.file)?;
        Parts { root: &self.root, dir: &attempt.dir, plan: &attempt.spec.plan_digest }.put(blob, done)
    }

    fn commit(&mut self, written: &Written) -> Result<Committed> {
        let (root, options) = (self.root.clone(), self.options.clone());
        let attempt = self.attempt.as_mut().ok_or_else(|| Error::internal("a commit before the layout"))?;
        let files = attempt.parts(&root)?;
        let manifest = catalog::manifest(&attempt.spec, &files, &attempt.objects, options.origin)?;
        for ((entry, chunks), told) in manifest.catalog.iter().zip(&written.fingerprints) {
            if chunks.fingerprint != Some(*told) {
                return Err(Error::corrupt(format!(
                    "{}: the parts in {} add up to another fingerprint than the copy",
                    entry.id(),
                    attempt.dir
                ))
                .hint(format!("remove the folder {} and run again", attempt.dir)));
            }
        }
        let bytes = files.iter().map(|(blob, _)| blob.size).sum::<u64>();
        let tables =
            files.iter().filter_map(|(_, part)| part.done.blocks.as_ref()).map(|it| it.encode().len() as u64);
        let bytes = bytes + tables.sum::<u64>();
        let count = files.len() * 2 + 1;
        drop(files);
        let target = root.display_name().to_owned();
        if let Some(seq) = attempt.log.state().committed(&attempt.dir) {
            return Ok(Committed { target, sequence: Some(seq.get()), bytes, files: count });
        }
        let encoded = manifest.encode()?;
        let what = Publication {
            run: &options.run,
            epoch: options.epoch,
            parent: options.parent,
            step: attempt.step,
            attempt: &attempt.dir,
            manifest: &encoded,
        };
        let committed = publish(&mut attempt.log, &what)?;
        let bytes = bytes + encoded.bytes.len() as u64;
        Ok(Committed { target, sequence: Some(committed.seq.get()), bytes, files: count })
    }
}
