//! [`NativeSink`]: writes a checkpoint into a root, and commits it.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use super::{
    attempt::below,
    layout::Blob,
    part::Part,
    planned::{Finished, Planned, Terms},
};
use crate::{
    Committed, Error, FileDone, Needs, Piece, Place, Result, Sink, TargetFile, TargetLayout, TargetSpec,
    Written,
    commit::{DirName, Label, Log, LogOptions, Metrics, Seq},
    digest::BlockCodec,
    engine::Share,
    formats::parallel,
    manifest::{Manifest, Origin},
    store::{BlobWriter, Root, object_path},
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
    /// What was measured of it.
    pub metrics: Metrics,
    /// Which of the files this process writes, where several share the work.
    pub share: Share,
    /// Clock, nonces, patience and name of the writer.
    pub log: LogOptions,
}

impl SinkOptions {
    /// Committed as the newest of `run`, by this program on this machine.
    #[must_use]
    pub fn new(run: Label) -> Self {
        let (epoch, parent, step, origin, metrics) = Default::default();
        Self { run, epoch, parent, step, origin, metrics, share: Share::WHOLE, log: LogOptions::default() }
    }
}

/// What an earlier run of a plan left in a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing.
    Nothing,
    /// A folder that is not finished: the same plan goes on with it.
    Stopped,
    /// A checkpoint.
    Committed(Seq),
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
    planned: Planned,
    blobs: Vec<Blob>,
    /// Path of each blob.
    paths: Vec<String>,
    /// Those that this process writes.
    mine: Range<usize>,
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
        self.attempt.as_ref().map(|attempt| &attempt.planned.dir)
    }

    /// What an earlier run of the same plan left. Nothing is touched.
    ///
    /// # Errors
    /// The store's and the log's.
    pub fn earlier(&self, spec: &TargetSpec) -> Result<Earlier> {
        let log = Log::open_with(&self.root, self.options.log.clone())?;
        let planned = self.planned(&log, spec)?;
        if let Some(seq) = log.state().committed(&planned.dir) {
            return Ok(Earlier::Committed(seq));
        }
        let within = self.root.list_dir(Some(&object_path(planned.dir.as_str())?))?;
        let empty = within.objects.is_empty() && within.dirs.is_empty();
        Ok(if empty { Earlier::Nothing } else { Earlier::Stopped })
    }

    fn planned(&self, log: &Log, spec: &TargetSpec) -> Result<Planned> {
        let mut spec = spec.clone();
        spec.step = spec.step.or(self.options.step);
        Planned::new(log.state(), &self.options.run, Arc::new(spec))
    }

    fn began(&self) -> Result<&Attempt> {
        self.attempt.as_ref().ok_or_else(|| Error::internal("a native sink was used before its layout"))
    }

    fn begin(&self, spec: &TargetSpec) -> Result<(Attempt, TargetLayout)> {
        let log = Log::open_with(&self.root, self.options.log.clone())?;
        let planned = self.planned(&log, spec)?;
        let blobs = planned.blobs()?;
        let mine = self.options.share.files(&blobs.iter().map(|blob| blob.size).collect::<Vec<_>>());
        let (paths, finished) = self.paths(&log, &planned, &blobs, &mine)?;
        let layout = target_layout(&blobs, &paths);
        Ok((Attempt { log, planned, blobs, paths, mine, finished }, layout))
    }

    /// Names of the blobs, and what is finished: the parts' for those, new ones for the others. Files that this worker has to answer for
    /// are read before they are trusted; those of others are theirs.
    fn paths(
        &self,
        log: &Log,
        planned: &Planned,
        blobs: &[Blob],
        mine: &Range<usize>,
    ) -> Result<(Vec<String>, Vec<FileDone>)> {
        let parts = planned.parts(&self.root);
        let (mut paths, mut finished) = (Vec::with_capacity(blobs.len()), Vec::new());
        for (at, (blob, part)) in blobs.iter().zip(parallel::map(blobs, |blob| parts.get(blob))?).enumerate()
        {
            match part {
                Some(part) => {
                    if mine.contains(&at) {
                        parts.prove(&part)?;
                    }
                    let Part { done, .. } = part;
                    paths.push(done.path.clone());
                    finished.push(FileDone { file: at, ..done });
                }
                None => {
                    planned.refuse_if_committed(&self.root, log.state())?;
                    paths.push(blob.names.blob(self.options.log.nonces.draw()?));
                }
            }
        }
        Ok((paths, finished))
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

    fn mine(&self, layout: &TargetLayout) -> Range<usize> {
        self.attempt.as_ref().map_or(0..layout.files.len(), |attempt| attempt.mine.clone())
    }

    fn finished_by_others(&self, files: &[usize]) -> Result<Vec<FileDone>> {
        let attempt = self.began()?;
        let parts = attempt.planned.parts(&self.root);
        let found = parallel::map(files, |&file| {
            let part = parts.get(attempt.blob(file)?.0)?;
            Ok(part.map(|part| FileDone { file, ..part.done }))
        });
        let found: Vec<FileDone> = found?.into_iter().flatten().collect();
        if found.len() < files.len() {
            // Whoever waits for others for long may wait in a folder that was collected as garbage.
            let log = Log::open_with(&self.root, self.options.log.clone())?;
            attempt.planned.refuse_given_up(&self.root, log.state())?;
        }
        Ok(found)
    }

    fn blob(&self, file: usize) -> Result<Box<dyn BlobWriter>> {
        let attempt = self.began()?;
        let (blob, path) = attempt.blob(file)?;
        let path = below(&attempt.planned.dir, path)?;
        Ok(if blob.is_coded() {
            self.root.blob_up_to(&path, blob.size)
        } else {
            self.root.blob(&path, blob.size)
        }?)
    }

    fn codecs(&self, file: usize) -> Result<Vec<BlockCodec>> {
        Ok(self.began()?.blob(file)?.0.codecs.clone())
    }

    fn file_done(&self, done: &FileDone) -> Result<()> {
        let attempt = self.began()?;
        let (blob, _) = attempt.blob(done.file)?;
        attempt.planned.parts(&self.root).put(blob, done, Vec::new())
    }

    fn commit(&mut self, written: &Written) -> Result<Committed> {
        let SinkOptions { epoch, parent, origin, metrics, .. } = self.options.clone();
        let attempt = self.attempt.as_mut().ok_or_else(|| Error::internal("a commit before the layout"))?;
        let (planned, log) = (&attempt.planned, &mut attempt.log);
        log.refresh().place(self.root.display_name())?;
        let same = |manifest: &Manifest, _: &Finished<'_>| {
            let mut each = manifest.catalog.iter().zip(&written.fingerprints);
            each.try_for_each(|((entry, chunks), told)| {
                if chunks.fingerprint == Some(*told) {
                    return Ok(());
                }
                Err(Error::corrupt(format!(
                    "{}: the parts in {} add up to another fingerprint than the copy",
                    entry.id(),
                    planned.dir
                ))
                .hint(format!("remove the folder {} and run again", planned.dir)))
            })
        };
        planned.commit(log, &Terms { epoch, parent, origin, metrics }, same, || Ok(()))
    }
}
