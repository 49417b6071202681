//! [`Found`]: what lies in a root, as far as it may be garbage. Folders that are not named as attempts are, and that no record names, are
//! somebody else's: they are told of, and not entered.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    collection::{Collection, GcOptions, Kind, Spared},
    survey::{Folder, Needs, Standing, folder_names},
    times::Times,
};
use crate::{
    Result,
    commit::{DirName, State},
    formats::native::{Whose, is_attempt_name},
    store::Root,
};

/// For how many of its periods a save that the present incarnation of a run may still commit is taken to sleep.
const SLEEPS: u32 = 7;

/// What lies in the root, as far as it may be garbage.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Directories that checkpoints need.
    needed: BTreeSet<DirName>,
    /// Directories of retired checkpoints that nothing needs, there or not.
    retired: Vec<DirName>,
    /// Directories that are condemned or retired, and there.
    going: BTreeSet<DirName>,
    /// Whether some of them are condemned.
    pub(super) condemned: bool,
    /// Folders that no record names, and that are named as attempts are.
    unnamed: BTreeMap<DirName, Unnamed>,
    /// Folders of others.
    foreign: Vec<String>,
}

#[derive(Debug)]
struct Unnamed {
    folder: Folder,
    whose: Option<Whose>,
}

impl Found {
    pub(super) fn look(root: &Root, state: &State) -> Result<Self> {
        let needs = Needs::of(state);
        let free = |dir: &&DirName| matches!(needs.standing(state, dir), Standing::Retired(_));
        let mut found =
            Self { retired: state.retired.keys().filter(free).cloned().collect(), ..Self::default() };
        for name in folder_names(root)? {
            let Ok(dir) = name.parse::<DirName>() else {
                found.foreign.push(name);
                continue;
            };
            match needs.standing(state, &dir) {
                Standing::Unnamed if is_attempt_name(&name) => {
                    let folder = Folder::read(root, &name)?;
                    let whose = if folder.is_attempt(&name) { Whose::get(root, &dir)? } else { None };
                    found.unnamed.insert(dir, Unnamed { folder, whose });
                }
                Standing::Unnamed => found.foreign.push(name),
                Standing::Needed(_) => drop(found.needed.insert(dir)),
                standing => {
                    found.condemned |= matches!(standing, Standing::Condemned(_));
                    found.going.insert(dir);
                }
            }
        }
        Ok(found)
    }

    /// Whether there is neither garbage nor anything that may become some.
    pub(super) fn is_nothing(&self) -> bool {
        self.retired.is_empty() && !self.has_ages()
    }

    /// Whether it matters for anything how old it is.
    pub(super) fn has_ages(&self) -> bool {
        self.condemned || !self.unnamed.is_empty()
    }

    /// Directories that checkpoints need.
    pub(super) fn needed(&self) -> impl Iterator<Item = &DirName> {
        self.needed.iter()
    }

    /// Whether a directory was there that may go.
    pub(super) fn has(&self, dir: &DirName) -> bool {
        self.going.contains(dir) || self.unnamed.contains_key(dir)
    }

    /// Notes the folders of others.
    pub(super) fn note_foreign(&self, done: &mut Collection) {
        let spared = |name: &String| Spared {
            folder: name.clone(),
            bytes: None,
            seconds_left: None,
            sealed: false,
            run: None,
        };
        done.spared.extend(self.foreign.iter().map(spared));
    }

    /// What is to be condemned, and why; what is left alone is noted.
    pub(super) fn garbage(
        &self,
        state: &State,
        options: &GcOptions,
        times: &Times,
        done: &mut Collection,
    ) -> BTreeMap<DirName, Kind> {
        let mut garbage: BTreeMap<DirName, Kind> =
            self.retired.iter().map(|dir| (dir.clone(), Kind::Retired)).collect();
        for (dir, Unnamed { folder, whose }) in &self.unnamed {
            // What has no time is young.
            let idle = folder.last_write.map(|time| times.since(time)).unwrap_or_default();
            let attempt = folder.is_attempt(dir.as_str());
            let run = whose.as_ref().filter(|whose| whose.is_present(state)).map(|whose| whose.run.clone());
            let periods = if run.is_some() { SLEEPS } else { 1 };
            let period = options.orphans_after.saturating_mul(periods);
            let sealed = folder.has_manifest(dir.as_str());
            let ever = attempt && (options.sealed || !sealed);
            if ever && idle >= period {
                garbage.insert(dir.clone(), Kind::Orphan);
                continue;
            }
            done.spared.push(Spared {
                folder: dir.to_string(),
                bytes: Some(folder.bytes()),
                seconds_left: ever.then(|| up(period.saturating_sub(idle))),
                sealed,
                run,
            });
        }
        done.spared.sort_by(|a, b| a.folder.cmp(&b.folder));
        garbage
    }

    pub(super) fn bytes(&self, root: &Root, dir: &DirName) -> Result<u64> {
        match self.unnamed.get(dir) {
            Some(it) => Ok(it.folder.bytes()),
            None if self.going.contains(dir) => Ok(Folder::read(root, dir.as_str())?.bytes()),
            None => Ok(0),
        }
    }
}

/// Whole seconds, begun ones included.
pub(super) fn up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
