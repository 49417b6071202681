//! Opening: from a location and a revision to the record, its manifest and its files.

use super::{
    NativeSource, Revision,
    attempt::is_piece,
    facts::CommitFacts,
    files::{Files, cut},
};
use crate::{
    Error, ErrorKind, Format, Place, Result,
    commit::{Action, Checkpoint, CommitError, DirName, Log, LogOptions, ManifestRef, Record, Seq},
    digest::Sha256Digest,
    formats::OpenOptions,
    manifest::{Manifest, image_len, manifest_digest, manifest_name},
    store::{ObjectPath, Root, StoreError, Stores, object_path},
};

/// Most bytes of a manifest that no record tells the size of.
const LARGEST: u64 = 4 << 30;

/// Opens a checkpoint: a root (its newest checkpoint, or the one of `revision`), or a step's folder.
///
/// # Errors
/// `NotFound` where there is none, saying what there is; `Corrupt` where log, manifest and files contradict each other, the
/// file named; `Unsupported` for later versions.
pub fn open(location: &str, revision: Option<&str>) -> Result<NativeSource> {
    open_in(&Stores::new(), location, revision, OpenOptions::new())
}

/// As [`open`], with stores in memory, and with what is forgiven.
///
/// # Errors
/// As [`open`].
pub fn open_in(
    stores: &Stores,
    location: &str,
    revision: Option<&str>,
    options: OpenOptions,
) -> Result<NativeSource> {
    let root = Root::open(location, stores)?;
    let log = Log::open_with(&root, log_options(options))?;
    if log.head().is_some() {
        return open_log(stores, &root, log, revision, options);
    }
    if let Some((parent, dir)) = parent_of(stores, location, &root) {
        let log = Log::open_with(&parent, log_options(options))?;
        if let Some(seq) = log.state().committed(&dir).filter(|seq| log.state().checkpoints.contains_key(seq))
        {
            return committed(stores, &parent, log, &Revision::Seq(seq), options)
                .place(parent.display_name());
        }
    }
    open_log(stores, &root, log, revision, options)
}

/// As [`open_in`], of a root that was opened before.
///
/// # Errors
/// As [`open`].
pub fn open_root(
    stores: &Stores,
    root: &Root,
    revision: Option<&str>,
    options: OpenOptions,
) -> Result<NativeSource> {
    open_log(stores, root, Log::open_with(root, log_options(options))?, revision, options)
}

fn open_log(
    stores: &Stores,
    root: &Root,
    log: Log,
    revision: Option<&str>,
    options: OpenOptions,
) -> Result<NativeSource> {
    let wanted = revision.map(str::parse::<Revision>).transpose()?;
    if log.head().is_none() {
        return alone(stores, root, wanted.as_ref(), options).place(root.display_name());
    }
    let revision = wanted.unwrap_or(Revision::Latest { back: 0 });
    committed(stores, root, log, &revision, options).place(root.display_name())
}

fn log_options(options: OpenOptions) -> LogOptions {
    LogOptions { retry: options.retry, ..LogOptions::default() }
}

/// The root above a step's folder, and the folder's name in it.
fn parent_of(stores: &Stores, location: &str, root: &Root) -> Option<(Root, DirName)> {
    let is_step = root.list_dir(None).is_ok_and(|listing| {
        listing.objects.iter().any(|object| manifest_digest(object.path.as_ref()).is_some())
    });
    if !is_step {
        return None;
    }
    let trimmed = location.trim_end_matches('/');
    let (above, name) = match trimmed.rsplit_once('/') {
        Some((above, name)) if !above.is_empty() && !above.ends_with('/') => (above, name),
        Some(("", name)) => ("/", name),
        Some(_) => return None,
        None => (".", trimmed),
    };
    let dir = name.parse().ok()?;
    let parent = Root::open(above, stores).ok()?;
    let has_log = parent.head(&Seq::FIRST.path()).is_ok();
    has_log.then_some((parent, dir))
}

fn committed(
    stores: &Stores,
    root: &Root,
    log: Log,
    revision: &Revision,
    options: OpenOptions,
) -> Result<NativeSource> {
    let (seq, checkpoint) = match revision.resolve(log.state()) {
        Ok(found) => found,
        // A log that names no checkpoint is the beginning of one that may.
        Err(error) if log.state().checkpoints.is_empty() && log.state().retired.is_empty() => {
            let path = log.head().map_or(Seq::FIRST, Seq::next).path().to_string();
            return Err(error.caused_by(StoreError::NotFound { path }));
        }
        Err(error) => return Err(error),
    };
    let dir = checkpoint.attempt.clone();
    let manifest = manifest_of(root, seq, &dir, checkpoint.manifest)?;
    let record = Record::decode(&root.full_name(&seq.path()), &log.record(seq)?)?;
    let facts = CommitFacts::of(seq, checkpoint, &record, log.state());
    let mut source = assemble(stores, root, dir.as_str(), manifest, options)?;
    (source.committed, source.log) = (Some(facts), Some(log));
    Ok(described(source, &format!("committed as seq {seq}")))
}

/// Opens the checkpoint that a record commits, by the record's exact bytes: one reader chose it and told the others, who need
/// not read the log. That the record stands in the log, and is not void, is the word of whoever chose it.
///
/// # Errors
/// `Corrupt` for bytes that are no record, or whose checkpoint is not there; `Incompatible` for a record that commits nothing.
pub fn open_record(
    stores: &Stores,
    root: &Root,
    record: &[u8],
    options: OpenOptions,
) -> Result<NativeSource> {
    let record = Record::decode("the record that was handed over", record)?;
    let Action::Commit(commit) = &record.action else {
        return Err(Error::incompatible(format!("record {} commits no checkpoint", record.seq)));
    };
    let (seq, dir) = (record.seq, &commit.attempt);
    let manifest = manifest_of(root, seq, dir, commit.manifest).place(root.display_name())?;
    let facts = CommitFacts::of_record(&record, commit);
    let mut source = assemble(stores, root, dir.as_str(), manifest, options).place(root.display_name())?;
    source.committed = Some(facts);
    Ok(described(source, &format!("committed as seq {seq}")))
}

/// A committed checkpoint as one that others refer to: without its objects.
///
/// # Errors
/// `Corrupt` where its manifest is missing or damaged; the store's.
pub(super) fn base_of(root: &Root, seq: Seq, checkpoint: &Checkpoint) -> Result<NativeSource> {
    let dir = &checkpoint.attempt;
    let manifest = manifest_of(root, seq, dir, checkpoint.manifest).place(root.display_name())?;
    bare(&Stores::new(), root, dir.as_str(), manifest, false)
}

/// The manifest that record `seq` commits.
fn manifest_of(
    root: &Root,
    seq: Seq,
    dir: &DirName,
    wanted: ManifestRef,
) -> Result<(Sha256Digest, Manifest)> {
    let path = wanted.path(dir);
    let bytes = match root.get_at_most(&path, wanted.size) {
        Ok((bytes, _)) => bytes,
        Err(error @ StoreError::NotFound { .. }) => {
            return Err(Error::corrupt(format!(
                "record {seq} commits {path}, which is not there: the root is incomplete"
            ))
            .hint("copy it again, folders before commits/; or use an older revision")
            .caused_by(error));
        }
        Err(error) => return Err(error.into()),
    };
    if (bytes.len() as u64) < wanted.size {
        return Err(cut(root.full_name(&path), "manifest", bytes.len() as u64, wanted.size));
    }
    Ok((wanted.sha256, Manifest::decode(&bytes, &wanted.sha256).place(&path)?))
}

/// A step's folder by itself.
fn alone(
    stores: &Stores,
    root: &Root,
    revision: Option<&Revision>,
    options: OpenOptions,
) -> Result<NativeSource> {
    let listing = root.list_dir(None)?;
    let found = listing.objects.iter().filter_map(|object| manifest_digest(object.path.as_ref()));
    let wanted: Vec<Sha256Digest> = found.filter(|digest| is_meant(digest, revision)).collect();
    let digest = match wanted.as_slice() {
        [one] => *one,
        [] => return Err(nothing(root, revision)),
        several => {
            let names: Vec<String> =
                several.iter().map(|it| it.to_string().chars().take(8).collect()).collect();
            return Err(Error::incompatible(format!(
                "{} manifests and no commit log that chooses one",
                several.len()
            ))
            .caused_by(CommitError::Mixed {
                path: root.display_name().to_owned(),
                reason: format!("a step has one manifest, and here are {}", several.len()),
            })
            .hint(format!("open the root, or give one as the revision: {}", names.join(", "))));
        }
    };
    let path: ObjectPath = object_path(&manifest_name(&digest))?;
    let (bytes, _) = root.get_at_most(&path, LARGEST)?;
    let manifest = match Manifest::decode(&bytes, &digest) {
        Ok(manifest) => manifest,
        Err(error) => {
            let (size, whole) = (bytes.len() as u64, image_len(&bytes));
            return Err(match whole.filter(|whole| size < *whole) {
                Some(whole) => cut(root.full_name(&path), "manifest", size, whole),
                None => error.at(&path),
            });
        }
    };
    let source = assemble(stores, root, "", (digest, manifest), options)?;
    Ok(described(source, "sealed; only a root could say that it was committed"))
}

/// Whether a revision, where there is one, means the manifest: no record is there, so digits are all that can.
fn is_meant(digest: &Sha256Digest, revision: Option<&Revision>) -> bool {
    match revision {
        None | Some(Revision::Latest { back: 0 }) => true,
        Some(Revision::Digest(digits)) => digest.to_string().starts_with(digits),
        Some(_) => false,
    }
}

/// Why nothing can be opened here: there is no log, and perhaps a part of a store.
fn nothing(root: &Root, revision: Option<&Revision>) -> Error {
    let text = match revision {
        Some(revision) => format!("no checkpoint {revision}: there is no commit log here"),
        None => "no committed checkpoint: there is no commit log here".to_owned(),
    };
    let error = Error::new(ErrorKind::NotFound, text);
    let attempts = root.list_dir(None).map(|listing| listing.dirs).unwrap_or_default();
    let steps: Vec<&str> =
        attempts.iter().map(AsRef::as_ref).filter(|dir: &&str| dir.starts_with("step-")).collect();
    let hint = match steps.as_slice() {
        [] if !holds_pieces(root) => return error,
        [] => "a step's folder without its manifest: an attempt that was never committed, or a copy that was stopped"
            .to_owned(),
        [one] => format!(
            "the folder {one} is an attempt that was never committed; run its command again to go on, or copy commits/ as well"
        ),
        [first, ..] => format!(
            "{} folders, {first} the first, are attempts that were never committed, or commits/ was not copied",
            steps.len()
        ),
    };
    error.hint(hint).caused_by(StoreError::NotFound { path: root.full_name(&Seq::FIRST.path()) })
}

/// Whether blobs, block tables or parts of a step lie here.
fn holds_pieces(root: &Root) -> bool {
    let pieces = |dir: &str| root.list(Some(&ObjectPath::from(dir))).unwrap_or_default();
    ["data", "blocks", "parts"]
        .iter()
        .any(|dir| pieces(dir).iter().any(|object| is_piece(object.path.as_ref())))
}

fn assemble(
    stores: &Stores,
    root: &Root,
    dir: &str,
    (digest, manifest): (Sha256Digest, Manifest),
    options: OpenOptions,
) -> Result<NativeSource> {
    let lenient = options.is_lenient();
    let mut source = bare(stores, root, dir, (digest, manifest), lenient)?;
    source.fill_objects(lenient)?;
    Ok(source)
}

/// Without the bytes of large objects.
fn bare(
    stores: &Stores,
    root: &Root,
    dir: &str,
    (digest, manifest): (Sha256Digest, Manifest),
    lenient: bool,
) -> Result<NativeSource> {
    let files = Files::new(root.clone(), dir, &manifest.catalog, stores.clone(), lenient)?;
    Ok(NativeSource {
        root: root.clone(),
        dir: dir.to_owned(),
        digest,
        manifest,
        files,
        committed: None,
        log: None,
        forgiven: Vec::new(),
    })
}

/// Says in the catalog's variant what it is and how far it can be trusted.
fn described(mut source: NativeSource, state: &str) -> NativeSource {
    let catalog = &mut source.manifest.catalog;
    catalog.variant = match catalog.format {
        Format::Native => format!("{}, {state}", catalog.variant),
        foreign => format!("native seal of {} ({}), {state}", foreign.name(), catalog.variant),
    };
    source
}
