//! What is damaged: a root that a trainer saved into, with three steps, a tag and a verification, and one that a conversion wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use dcp::commit::{Action, Log, Seq, Tag, Verified};
use dcp::engine::{RunOptions, run as copy};
use dcp::formats::native::{NativeSink, SinkOptions, open};
use dcp::ops::prepare::{Request, prepare};
use dcp::save::begin_epoch;
use dcp::store::{Root, Stores};
use dcp::{Cancel, Format, Silent, Source};
use serde::Serialize;

use crate::training::{self, Outcome, location, log_options, save_options, scratch};

/// What an object is to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A blob of tensors.
    Data,
    /// A blob of objects.
    Objects,
    /// A block table.
    Table,
    /// A writer's note.
    Part,
    /// A manifest.
    Manifest,
    /// A record of the log.
    Record,
}

/// All of them.
pub(crate) const KINDS: [Kind; 6] =
    [Kind::Data, Kind::Objects, Kind::Table, Kind::Part, Kind::Manifest, Kind::Record];

/// A checkpoint that was committed.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) seq: Seq,
    pub(crate) step: u64,
    pub(crate) dir: String,
}

/// One object of a root.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    /// Below the root.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// The checkpoint whose folder it lies in; none for records.
    pub(crate) of: Option<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A root, and what was put into it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) name: &'static str,
    pub(crate) folder: PathBuf,
    pub(crate) root: Root,
    pub(crate) saved: Vec<Saved>,
    pub(crate) objects: Vec<Object>,
    /// Keeps the folder.
    _scratch: tempfile::TempDir,
}

impl Ground {
    /// The root that a trainer saved into.
    pub(crate) fn saved(scale: u64) -> Outcome<Self> {
        let scratch = scratch()?;
        let root = Root::create(location(scratch.path())?, &Stores::new())?;
        let run = training::run()?;
        begin_epoch(&root, &run, &save_options(90))?;
        let mut saved = Vec::new();
        for (step, mesh) in [(1, "dp=2,tp=2"), (2, "dp=2,tp=2"), (3, "dp=3,tp=1")] {
            let (seq, dir) = training::save_step(&root, step, mesh, scale)?;
            saved.push(Saved { seq, step, dir: dir.to_string() });
            if step < 3 {
                let mut log = Log::open_with(&root, log_options(90 + step))?;
                let action = match step {
                    1 => Action::Tag(Tag { name: "best".parse()?, checkpoint: seq }),
                    _ => Action::Verified(Verified { checkpoint: seq, whole: true }),
                };
                log.append(&log.draft(&run, action)?)?;
            }
        }
        Self::of("saved", scratch, root, saved)
    }

    /// A root that a conversion wrote onto another mesh.
    pub(crate) fn converted(from: &Self) -> Outcome<Self> {
        let scratch = scratch()?;
        let root = Root::create(location(scratch.path())?, &Stores::new())?;
        let source = open(location(&from.folder)?, Some("step:2"))?;
        let request = Request { to: Some("dp=1,tp=3".parse()?), ..Request::new(Format::Native) };
        let prepared = prepare(source.catalog(), &request)?;
        let mut options = SinkOptions::new(training::run()?);
        options.log = log_options(99);
        let mut sink = NativeSink::new(root.clone(), options);
        let (committed, _) =
            copy(&source, &mut sink, &prepared.copy, &RunOptions::default(), &Silent, &Cancel::new())?;
        let seq = Seq::new(committed.sequence.ok_or("a conversion without a record")?)?;
        let dir = sink.attempt().ok_or("a conversion without a folder")?.to_string();
        Self::of("converted", scratch, root, vec![Saved { seq, step: 2, dir }])
    }

    fn of(name: &'static str, scratch: tempfile::TempDir, root: Root, saved: Vec<Saved>) -> Outcome<Self> {
        let folder = scratch.path().to_path_buf();
        let mut objects = Vec::new();
        for (path, bytes) in files(&folder)? {
            let of = saved.iter().position(|it| path.starts_with(&it.dir));
            objects.push(Object {
                kind: kind(&path).ok_or_else(|| format!("{path}: no object of a store"))?,
                path,
                of,
                bytes,
            });
        }
        Ok(Self { name, folder, root, saved, objects, _scratch: scratch })
    }

    /// The place of an object.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// The last record.
    pub(crate) fn last_record(&self) -> Option<&Object> {
        self.objects.iter().filter(|it| it.kind == Kind::Record).max_by_key(|it| it.path.clone())
    }
}

/// All files below a folder, by their paths.
pub(crate) fn files(folder: &Path) -> Outcome<BTreeMap<String, Vec<u8>>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                found.insert(location(&path)?.to_owned(), fs::read(folder.join(&path))?);
            }
        }
    }
    Ok(found)
}

/// What an object is, by its path.
pub(crate) fn kind(path: &str) -> Option<Kind> {
    let (first, rest) = path.split_once('/')?;
    Some(match rest {
        _ if first == "commits" => Kind::Record,
        rest if rest.starts_with("manifest-") => Kind::Manifest,
        rest if rest.starts_with("data/objects-") => Kind::Objects,
        rest if rest.starts_with("data/") => Kind::Data,
        rest if rest.starts_with("blocks/") => Kind::Table,
        rest if rest.starts_with("parts/") => Kind::Part,
        _ => return None,
    })
}
