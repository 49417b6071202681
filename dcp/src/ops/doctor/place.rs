//! What a place is fit for: whether it refuses what is there, its file system, its clock.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use super::Examination;
use crate::{
    Error, Place, Result,
    commit::LogOptions,
    retention::Times,
    store::{FileSystem, Root, StoreError, Trust},
};

/// An offset of clocks that is worth telling.
const OFFSET: u64 = 5_000;

impl Examination {
    /// Whether the store refuses what is there.
    pub(super) fn probe(&mut self, root: &Root) {
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
            Err(error @ StoreError::NoSpace { .. }) => {
                let text = format!("{error}: whether a second creation would be refused was not tried");
                let kind = Error::from(error).kind();
                self.error("create", text, "`ckpt forget` and `ckpt gc` free some, or enlarge it", kind);
            }
            Err(error) => {
                let first = error.to_string();
                let kind = Error::from(error).kind();
                // What is so at times only is no less dangerous: a commit may meet it.
                let again = match root.probe() {
                    Ok(()) => "it passed when tried again".to_owned(),
                    Err(again) if again.to_string() == first => "tried twice".to_owned(),
                    Err(again) => format!("tried again: {again}"),
                };
                let text = format!("{first} ({again})");
                self.error("create", text, "use a store, or a file system, that refuses it", kind);
            }
        }
    }

    /// The file system of a folder.
    pub(super) fn place(&mut self, root: &Root) {
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
    pub(super) fn clock(&mut self, root: &Root, options: &LogOptions) -> Result<Times> {
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
