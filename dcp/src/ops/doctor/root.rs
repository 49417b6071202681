//! What lies in a root: its log, its checkpoints, what is left lying about, and whether another checkpoint fits.

use std::time::{Duration, SystemTime};

use super::Examination;
use crate::{
    ErrorKind, Place, Result,
    commit::{Audit, CommitError, DirName, HintCheck, Log, LogOptions, State},
    retention::{Bulk, Foreign, Standing, Survey, Times},
    store::Root,
};

/// How long a save may take before one that has no record is worth telling.
pub(super) const LONG: Duration = Duration::from_secs(86_400);

const AGAIN: &str = "copy the log again from where it is whole; what it says from here on is not sure";
const INCOMPLETE: &str = "the root was copied in part, or changed: copy it again";

impl Examination {
    /// What is in the root.
    pub(super) fn root(&mut self, log: &Log, times: &Times) -> Result<()> {
        let (root, state) = (log.root(), log.state());
        self.log(log.audit().place(root.display_name())?);
        self.checkpoints = state.checkpoints.len();
        let survey = Survey::read(root, state, Foreign::Name).place(root.display_name())?;
        self.total = survey.total();
        self.checkpoints(state, &survey);
        self.garbage(state, &survey, times);
        self.space(state, &survey);
        Ok(())
    }

    /// What is wrong with a log that can't be opened, record by record.
    pub(super) fn unopened(&mut self, root: &Root, options: &LogOptions, error: &CommitError) -> Result<()> {
        let audit = Log::audit_at(root, options.clone()).place(root.display_name())?;
        let told = error.to_string();
        if audit.findings.iter().all(|finding| finding.error.to_string() != told) {
            self.error("log", told, AGAIN, ErrorKind::Corrupt);
        }
        self.log(audit);
        Ok(())
    }

    /// What the records are worth.
    fn log(&mut self, audit: Audit) {
        (self.head, self.records, self.voids) = (audit.head, audit.records, audit.voids.len());
        if audit.head.is_none() {
            self.note("log", "no record yet: nothing was ever committed here".to_owned());
        } else if audit.findings.is_empty() {
            self.note("log", format!("{} records, each follows the one before it", audit.records));
        }
        for finding in audit.findings {
            let text = format!("record {}: {}", finding.seq, finding.error);
            self.error("log", text, AGAIN, ErrorKind::Corrupt);
        }
        for (seq, void) in audit.voids {
            self.note("void", format!("record {seq} has no effect: {void}"));
        }
        if let HintCheck::Bad(error) = audit.hint {
            self.warn("hint", error.to_string(), "readers go by the log; the next commit writes a new one");
        }
    }

    /// Whether the manifests and all folders that a checkpoint needs are there, and who was verified.
    fn checkpoints(&mut self, state: &State, survey: &Survey) {
        for (seq, checkpoint) in &state.checkpoints {
            let there =
                |dir: &&DirName| survey.folders.get(dir.as_str()).is_some_and(|it| !it.objects.is_empty());
            let shared = checkpoint.directories.iter().filter(|dir| **dir != checkpoint.attempt);
            for missing in shared.filter(|dir| !there(dir)) {
                let text = format!(
                    "checkpoint seq:{seq} (step {}): {missing} is not there, and files of the checkpoint lie in it",
                    checkpoint.step
                );
                self.error("incomplete", text, INCOMPLETE, ErrorKind::Corrupt);
            }
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
            self.error("incomplete", text, INCOMPLETE, ErrorKind::Corrupt);
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
}

fn many(count: u64) -> String {
    if count == 1 { "1 folder".to_owned() } else { format!("{count} folders") }
}
