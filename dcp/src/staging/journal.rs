//! The journal of a staged target: one small file for each file that is finished, put create-only and durable.

use std::sync::{Mutex, PoisonError};

use crate::{Error, FileDone, Result, store::LocalStore, store::object_path};

#[derive(Debug)]
pub(super) struct Journal {
    store: LocalStore,
    records: Mutex<Vec<FileDone>>,
}

impl Journal {
    /// Reads what is there. A record that does not read is one that was never finished: it counts as absent.
    pub(super) fn open(store: LocalStore) -> Result<Self> {
        let mut records = Vec::new();
        for listed in store.list_sorted(None)? {
            let mut bytes = vec![0; usize::try_from(listed.stat.size.min(MOST)).unwrap_or_default()];
            store.read_exact_at(&listed.path, 0, &mut bytes)?;
            match serde_json::from_slice::<FileDone>(&bytes) {
                Ok(done) if listed.path.as_ref() == name(done.file) => records.push(done),
                _ => store.remove(&listed.path)?,
            }
        }
        Ok(Self { store, records: Mutex::new(records) })
    }

    pub(super) fn records(&self) -> Vec<FileDone> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add(&self, done: &FileDone) -> Result<()> {
        let bytes =
            serde_json::to_vec(done).map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
        self.store.put_new(&object_path(&name(done.file))?, [bytes.as_slice()])?;
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(done.clone());
        Ok(())
    }

    /// Forgets the records that `keep` says no to.
    pub(super) fn keep(&self, keep: impl Fn(&FileDone) -> bool) -> Result<()> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        for done in records.iter().filter(|done| !keep(done)) {
            self.store.remove(&object_path(&name(done.file))?)?;
        }
        records.retain(keep);
        Ok(())
    }
}

/// Most bytes of a record: millions of chunks.
const MOST: u64 = 64 << 20;

fn name(file: usize) -> String {
    format!("{file:08}.json")
}
