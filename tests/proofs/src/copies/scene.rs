//! What is copied: a root, two roots into one place, a newer copy over an older one, two states that went apart, a step's folder.

use std::collections::BTreeMap;
use std::time::Duration;

use dcp::commit::{Action, Log, LogOptions, Retire, Tag, Verified};
use dcp::store::{Root, Stores};

use crate::faults::files;
use crate::training::{self, Outcome, location, log_options, save_step, scratch};

/// Objects by their paths.
pub(super) type State = BTreeMap<String, Vec<u8>>;

/// A blob and its block table.
#[derive(Debug, Clone)]
pub(super) struct Blob {
    pub(super) path: String,
    pub(super) table: String,
}

/// All that a checkpoint needs.
#[derive(Debug, Clone)]
pub(super) struct Bundle {
    pub(super) step: u64,
    pub(super) dir: String,
    pub(super) manifest: String,
    pub(super) blobs: Vec<Blob>,
    /// Of the manifest, the blobs and the tables.
    pub(super) objects: State,
}

/// A place, what lies there, and what is copied into it.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) there: State,
    pub(super) copied: State,
    pub(super) bundles: Vec<Bundle>,
    /// Whether the place is a step's folder and no root.
    pub(super) is_step: bool,
    /// Whether head hints lie among the objects.
    pub(super) hinted: bool,
    /// Whether a name that is taken is left as it is (`cp -n`, `rsync --ignore-existing`).
    pub(super) keeps: bool,
}

/// A root while it is written.
struct Writing {
    scratch: tempfile::TempDir,
    root: Root,
    seed: u64,
    /// Whether each state of it ends with a record after which a head hint was put.
    hints: bool,
}

impl Writing {
    fn new(seed: u64, hints: bool) -> Outcome<Self> {
        let scratch = scratch()?;
        let root = Root::create(location(scratch.path())?, &Stores::new())?;
        Ok(Self { scratch, root, seed, hints })
    }

    /// Goes on from a state.
    fn from(state: &State, seed: u64, hints: bool) -> Outcome<Self> {
        let writing = Self::new(seed, hints)?;
        for (path, bytes) in state {
            let file = writing.scratch.path().join(path);
            std::fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
            std::fs::write(file, bytes)?;
        }
        Ok(writing)
    }

    fn save(&mut self, step: u64, mesh: &str) -> Outcome<dcp::commit::Seq> {
        Ok(save_step(&self.root, step, mesh, 1)?.0)
    }

    fn append(&mut self, action: Action) -> Outcome<()> {
        self.append_with(action, None)
    }

    fn append_with(&mut self, action: Action, hint_every: Option<Duration>) -> Outcome<()> {
        self.seed += 1;
        let mut log = Log::open_with(&self.root, LogOptions { hint_every, ..log_options(self.seed) })?;
        log.append(&log.draft(&training::run()?, action)?)?;
        Ok(())
    }

    fn state(&mut self) -> Outcome<State> {
        if self.hints {
            let log = Log::open_with(&self.root, log_options(0))?;
            let newest = log.state().newest(&training::run()?).map(|(seq, _)| seq);
            let checkpoint = newest.ok_or("a root without a checkpoint")?;
            self.append_with(Action::Verified(Verified { checkpoint, whole: true }), Some(Duration::ZERO))?;
        }
        files(self.scratch.path())
    }
}

/// All scenes.
pub(super) fn scenes() -> Outcome<Vec<Scene>> {
    let plain = plain(false)?;
    let mut step = plain.clone();
    let newest = plain.bundles.last().ok_or("no checkpoint was saved")?.clone();
    let below = format!("{}/", newest.dir);
    let inside = |state: &State| -> State {
        state
            .iter()
            .filter_map(|(path, bytes)| Some((path.strip_prefix(&below)?.to_owned(), bytes.clone())))
            .collect()
    };
    (step.name, step.is_step) = ("a step's folder", true);
    step.copied = inside(&plain.copied);
    let blobs = newest
        .blobs
        .iter()
        .map(|it| Blob { path: it.path.replace(&below, ""), table: it.table.replace(&below, "") });
    step.bundles = vec![Bundle {
        blobs: blobs.collect(),
        manifest: newest.manifest.replace(&below, ""),
        objects: inside(&newest.objects),
        ..newest
    }];
    let two = two_roots(false)?;
    let mut kept = two.clone();
    (kept.name, kept.keeps) = ("two roots, names kept", true);
    let without = vec![plain, step, two, kept, continued(false)?, forked(false)?];
    let hinted = [
        ("a root with its hint", self::plain(true)?),
        ("two roots with their hints", two_roots(true)?),
        ("an older copy and its hint, continued", continued(true)?),
        ("two states with hints that went apart", forked(true)?),
    ];
    let hinted = hinted.map(|(name, scene)| Scene { name, hinted: true, ..scene });
    Ok(without.into_iter().chain(hinted).collect())
}

/// Three commits, a tag, and one that was retired.
fn plain(hints: bool) -> Outcome<Scene> {
    let mut writing = Writing::new(1, hints)?;
    let first = writing.save(1, "dp=2,tp=1")?;
    let second = writing.save(2, "dp=1,tp=2")?;
    writing.append(Action::Tag(Tag { name: "best".parse()?, checkpoint: second }))?;
    writing.append(Action::Retire(Retire { checkpoint: first }))?;
    writing.save(3, "dp=1,tp=1")?;
    let copied = writing.state()?;
    scene("a root", State::new(), copied)
}

/// Two roots that have nothing to do with each other, of one plan: the same names of folders, other names of blobs.
fn two_roots(hints: bool) -> Outcome<Scene> {
    let mut one = Writing::new(10, hints)?;
    one.save(1, "dp=1,tp=1")?;
    one.save(2, "dp=2,tp=1")?;
    let mut other = Writing::new(20, hints)?;
    other.save(2, "dp=1,tp=2")?;
    other.save(3, "dp=1,tp=1")?;
    other.append(Action::Tag(Tag { name: "best".parse()?, checkpoint: dcp::commit::Seq::FIRST }))?;
    scene("two roots", one.state()?, other.state()?)
}

/// An older copy of a root, and the same root later.
fn continued(hints: bool) -> Outcome<Scene> {
    let mut writing = Writing::new(30, hints)?;
    writing.save(1, "dp=1,tp=1")?;
    let older = writing.state()?;
    writing.save(2, "dp=2,tp=1")?;
    writing.append(Action::Tag(Tag { name: "best".parse()?, checkpoint: dcp::commit::Seq::FIRST }))?;
    scene("an older copy, continued", older, writing.state()?)
}

/// Two copies of a root that were both written to.
fn forked(hints: bool) -> Outcome<Scene> {
    let mut writing = Writing::new(40, hints)?;
    writing.save(1, "dp=1,tp=1")?;
    let base = writing.state()?;
    writing.save(2, "dp=2,tp=1")?;
    let mut other = Writing::from(&base, 50, hints)?;
    other.append(Action::Tag(Tag { name: "best".parse()?, checkpoint: dcp::commit::Seq::FIRST }))?;
    other.save(3, "dp=1,tp=1")?;
    scene("two states that went apart", writing.state()?, other.state()?)
}

fn scene(name: &'static str, there: State, copied: State) -> Outcome<Scene> {
    let mut bundles = bundles(&there)?;
    for bundle in self::bundles(&copied)? {
        if bundles.iter().all(|it| it.manifest != bundle.manifest) {
            bundles.push(bundle);
        }
    }
    Ok(Scene { name, there, copied, bundles, is_step: false, hinted: false, keeps: false })
}

/// The checkpoints in a state that is whole, by the names of their folders.
fn bundles(state: &State) -> Outcome<Vec<Bundle>> {
    let manifests = state.keys().filter(|path| path.contains("/manifest-"));
    manifests
        .map(|manifest| {
            let dir = manifest.split('/').next().unwrap_or_default().to_owned();
            let step = dir.split('-').nth(1).unwrap_or_default().parse()?;
            let data = format!("{dir}/data/");
            let blobs: Vec<Blob> = state
                .keys()
                .filter(|path| path.starts_with(&data))
                .map(|path| Blob {
                    path: path.clone(),
                    table: path.replace("/data/", "/blocks/").replace(".safetensors", ".blocks"),
                })
                .collect();
            let needed = blobs.iter().flat_map(|it| [&it.path, &it.table]).chain([manifest]);
            let objects = needed.filter_map(|path| Some((path.clone(), state.get(path)?.clone())));
            Ok(Bundle { step, dir, manifest: manifest.clone(), objects: objects.collect(), blobs })
        })
        .collect()
}
