//! A training run in small: what its tensors hold at each step is known without reading anything, so a load can be told right from
//! wrong, and nothing but wrong bytes passes for wrong.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dcp::commit::{DirName, Label, Log, LogOptions, Retry, Seq};
use dcp::formats::native::Revision;
use dcp::load::Loader;
use dcp::save::{SaveOptions, SavePlan, SaveSpec, Session};
use dcp::store::{Root, SeededNonces};
use dcp::{Encoding, ObjectEntry, PathPart, ReshardRule};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::Region;

use crate::chance::Chance;

/// What proofs answer.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The run.
pub(crate) fn run() -> Outcome<Label> {
    Ok("main".parse()?)
}

/// Tensors as a trainer has them: cut over tensor- and data-parallel ranks, replicated, moments, a scalar, integers, an empty one.
/// `scale` times 8 rows.
pub(crate) fn registry(scale: u64) -> Outcome<Registry> {
    let rows = 8 * scale;
    let mut registry = Registry::new();
    for (name, role, dtype, shape, rule) in [
        ("embed.weight", Role::Param, Dtype::BF16, vec![2 * rows, 48], "tp:0,dp:0"),
        ("layers.0.w", Role::Param, Dtype::F32, vec![rows, 64], "tp:1,dp:0"),
        ("layers.0.w", Role::ExpAvg, Dtype::F32, vec![rows, 64], "tp:1,dp:0"),
        ("layers.0.w", Role::ExpAvgSq, Dtype::F32, vec![rows, 64], "tp:1,dp:0"),
        ("layers.0.w", Role::Slot("step".into()), Dtype::F32, vec![], "replicate"),
        ("layers.0.norm", Role::Param, Dtype::F32, vec![64], "replicate"),
        ("positions", Role::Buffer, Dtype::I64, vec![9], "replicate"),
        ("hollow", Role::Param, Dtype::F32, vec![0, 4], "dp:0"),
    ] {
        let mut entry = Entry::new(Fqn::new(name)?, role, dtype, Shape::new(&shape));
        entry.placement = Some(rule.parse()?);
        registry.push(entry)?;
    }
    Ok(registry)
}

/// What a tensor holds at a step: no byte of it follows from another, and none is zero.
pub(crate) fn whole(entry: &Entry, step: u64) -> Vec<u8> {
    let name = entry.id().to_string();
    let salt = name.bytes().fold(step, |salt, byte| salt.wrapping_mul(131).wrapping_add(u64::from(byte)));
    let mut chance = Chance::new(salt, 17);
    let len = usize::try_from(entry.bytes().unwrap_or(0)).unwrap_or(0);
    std::iter::repeat_with(|| chance.next().to_le_bytes())
        .flatten()
        .filter(|byte| *byte != 0)
        .take(len)
        .collect()
}

/// The bytes of a box of it, packed.
pub(crate) fn region(entry: &Entry, bytes: &[u8], region: &Region) -> Outcome<Vec<u8>> {
    Ok(crate::weights::cut(entry, bytes, region)?)
}

/// State that is no tensor: a small one, which lies in the manifest, and a large one, which lies in a blob.
pub(crate) fn objects(step: u64) -> Vec<ObjectEntry> {
    let object = |key: &str, bytes: Vec<u8>| ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key(key.to_owned())],
        encoding: Encoding::Json,
        bytes: Bytes::from(bytes),
        preview: None,
        reshard: ReshardRule::Global,
    };
    let large: Vec<String> = (0..14_000).map(|n| (n * 7 + step).to_string()).collect();
    vec![
        object("cursor", format!("{{\"seen\":{step}}}").into_bytes()),
        object("seen", format!("[{}]", large.join(",")).into_bytes()),
    ]
}

/// What is saved at a step.
pub(crate) fn spec(step: u64, mesh: &str, scale: u64) -> Outcome<SaveSpec> {
    Ok(SaveSpec::new(run()?, registry(scale)?, mesh.parse()?, step))
}

/// No chance but the seed's, and no waiting for what will not come.
pub(crate) fn log_options(seed: u64) -> LogOptions {
    let retry = Retry { tries: 1, ..Retry::default() };
    // What is proven here must not depend on the head hint: `flaky` and `newest` look after that.
    LogOptions { nonces: Arc::new(SeededNonces::new(seed)), retry, hint_every: None, ..LogOptions::default() }
}

/// As [`log_options`], for saves.
pub(crate) fn save_options(seed: u64) -> SaveOptions {
    SaveOptions { log: log_options(seed), ..SaveOptions::default() }
}

/// Writes what a rank has to write at a step.
pub(crate) fn write_rank(session: &Session, rank: u32, step: u64) -> Outcome<()> {
    let writer = session.writer(rank)?;
    for (tensor, cut) in session.plan().boxes_of(rank) {
        let entry = session.plan().tensor(tensor).ok_or("a tensor that the plan has not")?;
        writer.put(tensor, cut, &region(entry, &whole(entry, step), cut)?)?;
    }
    for (tensor, cut) in session.plan().replicas_of(rank) {
        let entry = session.plan().tensor(tensor).ok_or("a tensor that the plan has not")?;
        writer.hold(tensor, &cut, &region(entry, &whole(entry, step), &cut)?)?;
    }
    writer.finish()?;
    Ok(())
}

/// Saves what a plan has, by all of its ranks; its record and its folder.
pub(crate) fn save(root: &Root, plan: &SavePlan, seed: u64) -> Outcome<(Seq, DirName)> {
    let session = Session::open(root, plan, save_options(seed))?;
    for rank in 0..plan.ranks() {
        write_rank(&session, rank, plan.step())?;
    }
    let committed = session.commit()?;
    let seq = Seq::new(committed.sequence.ok_or("a commit without a number")?)?;
    Ok((seq, session.attempt().clone()))
}

/// Saves one step.
pub(crate) fn save_step(root: &Root, step: u64, mesh: &str, scale: u64) -> Outcome<(Seq, DirName)> {
    save(root, &SavePlan::new(spec(step, mesh, scale)?.with_objects(objects(step)))?, step)
}

/// What a load gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Load {
    /// Everything as it was saved.
    Right,
    /// An error; nothing wrong was handed out.
    Refused(String),
    /// Other bytes than were saved, without an error.
    Wrong(String),
}

/// Loads everything that a checkpoint holds, box by box and object by object, as a trainer does: by the log.
pub(crate) fn load(root: &Root, seq: Seq, step: u64) -> Load {
    // Whoever opens a log with a hole waits for it first; it is refused all the same.
    let opened = Log::open_with(root, log_options(3))
        .map_err(|error| error.to_string())
        .and_then(|_| Loader::open(root, &Revision::Seq(seq)).map_err(|error| error.to_string()));
    match opened {
        Ok(loader) => compare(&loader, step),
        Err(error) => Load::Refused(error),
    }
}

/// Compares what a loader gives with what was saved.
pub(crate) fn compare(loader: &Loader, step: u64) -> Load {
    let reader = loader.reader();
    let mut refused = None;
    for entry in loader.catalog().registry.entries() {
        let Ok(all) = Region::whole(&entry.shape) else { return Load::Wrong(format!("{}", entry.id())) };
        match reader.read_vec(&entry.id(), &all) {
            Ok(bytes) if bytes == whole(entry, step) => {}
            Ok(_) => return Load::Wrong(entry.id().to_string()),
            Err(error) => refused = Some(error.to_string()),
        }
    }
    if let Some(error) = refused {
        return Load::Refused(error);
    }
    let kept = |object: ObjectEntry| {
        loader.object(&object.key).is_some_and(|found| found.bytes == object.bytes).then_some(object.key)
    };
    match objects(step).into_iter().map(|object| (object.key.clone(), kept(object))).find(|it| it.1.is_none())
    {
        Some((key, _)) if !loader.catalog().objects.is_empty() => Load::Wrong(format!("object {key}")),
        _ => Load::Right,
    }
}

/// A folder for scratch, in memory where that is known to be.
pub(crate) fn scratch() -> Outcome<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Ok(made?)
}

/// A path as a location.
pub(crate) fn location(path: &Path) -> Outcome<&str> {
    Ok(path.to_str().ok_or("a folder whose name is not UTF-8")?)
}
