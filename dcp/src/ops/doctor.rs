//! [`examine`]: whether a place is fit to hold a root, and what is not as it should be in the one that is there.
//!
//! Invariants: it changes nothing (it puts and removes probes); what can't be asked is said, never passed over; only what endangers
//! checkpoints is an error.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    Error, ErrorKind, Place, Result, Severity,
    commit::{Log, LogOptions, Seq, State},
    retention::{Bulk, Foreign, Standing, Survey, Times},
    store::{FileSystem, Root, StoreError, Trust},
};

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Stable code, as scripts see it.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What, where and why.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What a caller can do about an error.
    #[serde(skip)]
    pub kind: Option<ErrorKind>,
}

/// What an examination found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Examination {
    /// Everything that was found, worst first.
    pub findings: Vec<Diagnosis>,
    /// The file system, of a folder.
    pub file_system: Option<FileSystem>,
    /// By how many milliseconds the clock of the store is ahead of this machine's.
    pub clock_offset_ms: Option<i64>,
    /// The last record.
    pub head: Option<Seq>,
    /// Records of the log.
    pub records: u64,
    /// Records that have no effect.
    pub voids: usize,
    /// Checkpoints that exist.
    pub checkpoints: usize,
    /// Everything that the store lists of it, without folders of others that nobody looked into.
    pub total: Bulk,
}

/// An offset of clocks that is worth telling.
const OFFSET: u64 = 5_000;

/// How long a save may take before one that has no record is worth telling.
const LONG: Duration = Duration::from_secs(86_400);

/// Examines the place of a root.
///
/// # Errors
/// `NotFound` for a folder of something else; the store's where it can't be asked at all.
pub fn examine(root: &Root, options: &LogOptions) -> Result<Examination> {
    refuse_others(root)?;
    let mut found = Examination::default();
    found.probe(root);
    found.place(root);
    let times = found.clock(root, options)?;
    match Log::open_with(root, options.clone()) {
        Ok(log) => found.root(&log, &times)?,
        Err(crate::commit::CommitError::Store(error)) => return Err(error.into()),
        Err(error) => found.add(Severity::Error, "log", error.to_string(), None, Error::from(error).kind()),
    }
    found.findings.sort_by_key(|it| std::cmp::Reverse(it.severity));
    Ok(found)
}

/// A folder that holds something else is none of ours: nothing is put there.
fn refuse_others(root: &Root) -> Result<()> {
    let listing = root.list_dir(None).place(root.display_name())?;
    let names = || listing.dirs.iter().chain(listing.objects.iter().map(|object| &object.path));
    let ours = |name: &str| name == "commits" || name.starts_with("step-") || name.starts_with('.');
    if names().any(|name| ours(name.as_ref())) {
        return Ok(());
    }
    names().next().map_or(Ok(()), |name| {
        let text = format!(
            "{}: holds {name}, and no commit log: it is no root of the native store",
            root.display_name()
        );
        Err(Error::new(ErrorKind::NotFound, text)
            .hint("give a root, or an empty folder that shall become one"))
    })
}

impl Examination {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        message: String,
        hint: Option<&str>,
        kind: ErrorKind,
    ) {
        let kind = (severity == Severity::Error).then_some(kind);
        self.findings.push(Diagnosis { code, severity, message, hint: hint.map(str::to_owned), kind });
    }

    fn note(&mut self, code: &'static str, message: String) {
        self.add(Severity::Note, code, message, None, ErrorKind::Internal);
    }

    fn warn(&mut self, code: &'static str, message: String, hint: &str) {
        self.add(Severity::Warning, code, message, Some(hint), ErrorKind::Internal);
    }

    fn error(&mut self, code: &'static str, message: String, hint: &str, kind: ErrorKind) {
        self.add(Severity::Error, code, message, Some(hint), kind);
    }

    /// Whether the store refuses what is there.
    fn probe(&mut self, root: &Root) {
        match root.probe() {
            Ok(()) => {
                let links = if root.local().is_some() { ", by hard links" } else { "" };
                self.note("create", format!("of two creations of one object the second is refused{links}"));
            }
            Err(StoreError::Access { .. }) => self.warn(
                "read-only",
                "nothing can be written here: whether a second creation would be refused was not tried"
                    .to_owned(),
                "right for a copy; a run needs to write",
            ),
            Err(error) => {
                let kind = Error::from(error).kind();
                let text = root
                    .probe()
                    .err()
                    .map_or_else(|| "it passed when tried again".to_owned(), |it| it.to_string());
                self.error("create", text, "use a store, or a file system, that refuses it", kind);
            }
        }
    }

    /// The file system of a folder.
    fn place(&mut self, root: &Root) {
        let Some(local) = root.local() else {
            self.note(
                "uploads",
                "unfinished multipart uploads can't be listed through this interface; a lifecycle rule of the bucket removes them"
                    .to_owned(),
            );
            return;
        };
        let found = match FileSystem::of(Path::new(local.name())) {
            Ok(found) => found,
            Err(error) => {
                return self.warn(
                    "file-system",
                    format!("it does not tell its kind: {error}"),
                    "see `df -T`",
                );
            }
        };
        let text = format!("{}: {}", found.name, found.meaning);
        match found.trust {
            Trust::Durable => self.note("file-system", text),
            Trust::Depends => self.note("file-system", text),
            Trust::Volatile => self.warn("file-system", text, "use a folder on a disk for what shall last"),
        }
        self.file_system = Some(found);
    }

    /// How far the store's clock is from this machine's.
    fn clock(&mut self, root: &Root, options: &LogOptions) -> Result<Times> {
        let before = options.clock.now();
        // Where nothing can be created, that was told already.
        let times = Times::read(root, options.nonces.as_ref()).or_else(|_| Times::listed(root));
        let times = times.place(root.display_name())?;
        let after = options.clock.now();
        if !times.is_present() {
            return Ok(times);
        }
        // Some stores tell times by the second.
        let offset = offset_ms(times.now(), before, after);
        self.clock_offset_ms = Some(offset);
        if offset.unsigned_abs() > OFFSET {
            let side = if offset > 0 { "ahead of" } else { "behind" };
            let text = format!(
                "the store's clock is {:.1} s {side} this machine's",
                offset.unsigned_abs() as f64 / 1000.0
            );
            self.warn("clock", text, "ages are counted by the store's clock alone; correct whichever is wrong, for those who read times");
        } else {
            self.note("clock", "the store's clock agrees with this machine's".to_owned());
        }
        Ok(times)
    }

    /// What is in the root.
    fn root(&mut self, log: &Log, times: &Times) -> Result<()> {
        let (root, state) = (log.root(), log.state());
        let audit = log.audit().place(root.display_name())?;
        (self.head, self.records, self.voids) = (audit.head, audit.records, audit.voids.len());
        self.checkpoints = state.checkpoints.len();
        if audit.head.is_none() {
            self.note("log", "no record yet: nothing was ever committed here".to_owned());
        } else if audit.findings.is_empty() {
            self.note("log", format!("{} records, each follows the one before it", audit.records));
        }
        for finding in audit.findings {
            let kind = ErrorKind::Corrupt;
            let text = format!("record {}: {}", finding.seq, finding.error);
            self.error(
                "log",
                text,
                "copy the log again from where it is whole; what it says from here on is not sure",
                kind,
            );
        }
        for (seq, void) in audit.voids {
            self.note("void", format!("record {seq} has no effect: {void}"));
        }
        let survey = Survey::read(root, state, Foreign::Name).place(root.display_name())?;
        self.total = survey.total();
        self.checkpoints(state, &survey);
        self.garbage(state, &survey, times);
        self.space(state, &survey);
        Ok(())
    }

    /// Whether the manifests are there, and who was verified.
    fn checkpoints(&mut self, state: &State, survey: &Survey) {
        for (seq, checkpoint) in &state.checkpoints {
            let path = checkpoint.manifest.path(&checkpoint.attempt);
            let folder = survey.folders.get(checkpoint.attempt.as_str());
            let found = folder.and_then(|folder| folder.objects.iter().find(|object| object.path == path));
            let text = match found {
                None => format!("checkpoint seq:{seq} (step {}): {path} is not there", checkpoint.step),
                Some(object) if object.size != checkpoint.manifest.size => {
                    format!(
                        "checkpoint seq:{seq}: {path} has {} bytes, its record says {}",
                        object.size, checkpoint.manifest.size
                    )
                }
                Some(_) => continue,
            };
            self.error(
                "incomplete",
                text,
                "the root was copied in part, or changed: copy it again",
                ErrorKind::Corrupt,
            );
        }
        let verified = state.checkpoints.values().filter(|checkpoint| checkpoint.verified.is_some()).count();
        if !state.checkpoints.is_empty() && verified == 0 {
            self.note("unverified", "no checkpoint was ever recorded as verified; `ckpt verify --record` does, and keeps the newest such one".to_owned());
        }
    }

    /// What is left lying about.
    fn garbage(&mut self, state: &State, survey: &Survey, times: &Times) {
        let (mut stopped, mut oldest) = (Bulk::default(), None::<(SystemTime, &str)>);
        let (mut condemned, mut retired, mut unfinished) =
            (Bulk::default(), Bulk::default(), Bulk::default());
        survey.unfinished.iter().for_each(|file| unfinished.add(file.bytes));
        for (name, folder, standing) in survey.standings(state) {
            folder.unfinished.iter().for_each(|file| unfinished.add(file.bytes));
            let one = Bulk { objects: 1, bytes: folder.bytes() };
            match standing {
                Standing::Needed(_) => {}
                Standing::Retired(_) => retired.extend(one),
                Standing::Condemned(_) => condemned.extend(one),
                Standing::Unnamed if folder.is_attempt(name) => {
                    if folder.has_manifest(name) {
                        let text = format!(
                            "{name} has a manifest, and no record names it: its save was stopped at the last moment, or its record was lost"
                        );
                        self.warn("sealed", text, "`ckpt verify` that folder; the command that wrote it commits it when it is run again, `ckpt gc --sealed` removes it");
                    }
                    stopped.extend(one);
                    let wrote = folder.last_write.map(|time| (time, name));
                    oldest = match (oldest, wrote) {
                        (Some(first), Some(wrote)) => Some(first.min(wrote)),
                        (first, wrote) => first.or(wrote),
                    };
                }
                Standing::Unnamed => self.foreign(name),
            }
        }
        survey.foreign.iter().for_each(|folder| self.foreign(&folder.name));
        if let Some((time, name)) = oldest {
            let idle = times.since(time);
            let text = format!(
                "{} of saves without a record, {} bytes; the longest idle, {name}, was written to {} h ago",
                many(stopped.objects),
                stopped.bytes,
                idle.as_secs() / 3600
            );
            if idle > LONG {
                self.warn("uncommitted", text, "they were stopped; `ckpt gc` removes them");
            } else {
                self.note("uncommitted", text);
            }
        }
        for (code, bulk, what) in [
            ("retired", retired, "of retired checkpoints, which `ckpt gc` condemns"),
            ("condemned", condemned, "condemned, which `ckpt gc` deletes after the grace period"),
        ] {
            if bulk.objects > 0 {
                self.note(code, format!("{} {what}: {} bytes", many(bulk.objects), bulk.bytes));
            }
        }
        if unfinished.objects > 0 || !survey.probes.is_empty() {
            let (files, probes) = (unfinished.objects, survey.probes.len());
            let text = format!(
                "{files} unfinished files of {} bytes, and {probes} probes; `ckpt gc` removes those that are old",
                unfinished.bytes
            );
            self.note("leftovers", text);
        }
    }

    fn foreign(&mut self, name: &str) {
        self.note("foreign", format!("{name} is no part of the store; nothing here touches it"));
    }

    /// Whether another checkpoint as large as the newest fits.
    fn space(&mut self, state: &State, survey: &Survey) {
        let Some(file_system) = &self.file_system else { return };
        let (free, files) = (file_system.free_bytes, file_system.free_files);
        let newest = state.checkpoints.values().next_back();
        let newest =
            newest.and_then(|it| survey.folders.get(it.attempt.as_str())).map(|folder| folder.bulk());
        let needed = newest.unwrap_or_default();
        if needed.bytes > free {
            let text = format!("{free} bytes are free, and the newest checkpoint has {}", needed.bytes);
            self.warn("space", text, "the next save would fail: `ckpt forget` and `ckpt gc`, or enlarge it");
        } else {
            self.note("space", format!("{free} bytes are free"));
        }
        if files.is_some_and(|files| files < needed.objects) {
            let text = format!(
                "{} files can still be made, and the newest checkpoint has {}",
                files.unwrap_or(0),
                needed.objects
            );
            self.warn(
                "files",
                text,
                "the next save would fail: remove files, or enlarge the table of inodes",
            );
        }
    }

    /// The worst error, as a caller can react to it.
    #[must_use]
    pub fn worst(&self) -> Option<ErrorKind> {
        self.findings.iter().find_map(|finding| finding.kind)
    }
}

fn many(count: u64) -> String {
    if count == 1 { "1 folder".to_owned() } else { format!("{count} folders") }
}

/// Zero when the store's time lies between the two, or within the second that coarse stores tell.
fn offset_ms(store: SystemTime, before: SystemTime, after: SystemTime) -> i64 {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match (store.duration_since(after), before.duration_since(store)) {
        (Ok(ahead), _) => ms(ahead),
        (_, Ok(behind)) => -ms(behind.saturating_sub(Duration::from_secs(1))),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        retention::tests::{saved, stages, stopped},
        save::tests::memory,
        store::{Put, object_path},
    };

    fn codes(found: &Examination, severity: Severity) -> Vec<&'static str> {
        found.findings.iter().filter(|it| it.severity == severity).map(|it| it.code).collect()
    }

    #[test]
    fn a_clock_that_is_off_is_told_and_nothing_else_is_wrong() {
        for stage in stages() {
            saved(&stage.root, 1..=2);
            let found = examine(&stage.root, &LogOptions::default()).unwrap();
            assert_eq!(codes(&found, Severity::Error), Vec::<&str>::new());
            assert!(codes(&found, Severity::Warning).contains(&"clock"), "{found:?}");
            let hour = found.clock_offset_ms.unwrap().unsigned_abs();
            assert!((3_590_000..3_610_000).contains(&hour), "{hour}");
            assert_eq!((found.records, found.checkpoints, found.worst()), (2, 2, None));
        }
    }

    #[test]
    fn what_is_missing_is_an_error_and_what_was_stopped_long_ago_a_warning() {
        for stage in stages() {
            saved(&stage.root, 1..=1);
            drop(stopped(&stage.root, 2));
            let log = Log::open(&stage.root).unwrap();
            let checkpoint = log.state().checkpoints.values().next().unwrap().clone();
            stage.root.delete(&checkpoint.manifest.path(&checkpoint.attempt)).unwrap();
            stage.hands.turn(2 * LONG);
            let found = examine(&stage.root, &LogOptions::default()).unwrap();
            assert_eq!(codes(&found, Severity::Error), ["incomplete"]);
            assert!(codes(&found, Severity::Warning).contains(&"uncommitted"), "{found:?}");
            assert_eq!(found.worst(), Some(ErrorKind::Corrupt));
            stage.root.delete(&Seq::FIRST.path()).unwrap();
            let empty = examine(&stage.root, &LogOptions::default()).unwrap();
            assert_eq!((empty.records, empty.head), (0, None));
        }
    }

    #[test]
    fn a_damaged_record_is_named_and_a_folder_of_something_else_refused() {
        let root = memory();
        saved(&root, 1..=3);
        let second = Seq::new(2).unwrap().path();
        root.delete(&second).unwrap();
        assert_eq!(root.put_create(&second, "{}".into()).unwrap(), Put::Created);
        let found = examine(&root, &LogOptions::default()).unwrap();
        assert!(codes(&found, Severity::Error).contains(&"log"), "{found:?}");
        assert!(found.findings[0].message.contains("00000000000000000002.json"), "{found:?}");
        let other = memory();
        let config = object_path("config.json").unwrap();
        assert_eq!(other.put_create(&config, "{}".into()).unwrap(), Put::Created);
        assert_eq!(examine(&other, &LogOptions::default()).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
