//! [`Times`]: when records were written and what the present is, by the clock of the store alone.
//!
//! A record is no older than any record before it. Where clients set the times of files (a local disk, Lustre), one with a slow clock would
//! make its records look old; so a record counts as written no earlier than those before it. A time that is later than the present is wrong,
//! and makes its own record young, but no later one.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use crate::{
    Error, Result,
    commit::{Log, Seq},
    store::{Nonces, PROBE, Put, Root, StoreError, object_path},
};

/// Times of records, and the present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    written: BTreeMap<Seq, SystemTime>,
    now: SystemTime,
    probed: bool,
}

impl Times {
    /// Times that are known from elsewhere.
    #[must_use]
    pub fn new(stored: impl IntoIterator<Item = (Seq, SystemTime)>, now: SystemTime) -> Self {
        let stored: BTreeMap<Seq, SystemTime> = stored.into_iter().collect();
        let mut latest = SystemTime::UNIX_EPOCH;
        let raised = stored.into_iter().map(|(seq, time)| {
            if time <= now {
                latest = latest.max(time);
            }
            (seq, time.max(latest))
        });
        Self { written: raised.collect(), now, probed: true }
    }

    /// The times of a root's records, as it lists them. The present is that of an empty object that is put and removed; where nothing can be
    /// put, or a full disk has no room even for that, it is the time of the last record, so that everything counts as younger than it is.
    ///
    /// # Errors
    /// The store's.
    pub fn read(root: &Root, nonces: &dyn Nonces) -> Result<Self> {
        match store_time(root, nonces) {
            Ok(now) => Ok(Self::new(stored(root)?, now)),
            Err(StoreError::Access { .. } | StoreError::NoSpace { .. }) => Self::listed(root),
            Err(error) => Err(Error::from(error)),
        }
    }

    /// As [`Times::read`], without putting anything: the present is the time of the last record.
    ///
    /// # Errors
    /// The store's.
    pub fn listed(root: &Root) -> Result<Self> {
        let stored = stored(root)?;
        let last = stored.last().map_or(SystemTime::UNIX_EPOCH, |(_, time)| *time);
        Ok(Self { probed: false, ..Self::new(stored, last) })
    }

    /// For those to whom no age matters: nobody is asked.
    pub(super) fn unasked() -> Self {
        Self::new([], SystemTime::UNIX_EPOCH)
    }

    /// As [`Times::read`], of the root of a log.
    pub(super) fn of(log: &Log, nonces: &dyn Nonces) -> Result<Self> {
        Self::read(log.root(), nonces)
    }

    /// The present.
    #[must_use]
    pub const fn now(&self) -> SystemTime {
        self.now
    }

    /// Whether it is the present, and not just the time of the last record.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        self.probed
    }

    /// When a record was written; none for one that was not listed.
    #[must_use]
    pub fn written(&self, seq: Seq) -> Option<SystemTime> {
        self.written.get(&seq).copied()
    }

    /// How long ago a record was written.
    #[must_use]
    pub fn age(&self, seq: Seq) -> Option<Duration> {
        self.written(seq).map(|time| self.since(time))
    }

    /// How long ago a time of the store is; nothing for what is yet to come.
    #[must_use]
    pub fn since(&self, time: SystemTime) -> Duration {
        self.now.duration_since(time).unwrap_or_default()
    }
}

fn stored(root: &Root) -> Result<Vec<(Seq, SystemTime)>> {
    let listed = root.list(Some(&Seq::dir()))?;
    Ok(listed.iter().filter_map(|object| Some((Seq::of(&object.path)?, object.modified))).collect())
}

/// What time it is for the store: that of an object that is put for this purpose. It is empty, so that a full disk has room for it.
pub(crate) fn store_time(root: &Root, nonces: &dyn Nonces) -> Result<SystemTime, StoreError> {
    let path = object_path(&format!("{PROBE}{}", nonces.draw()?))?;
    let put = root.put_create(&path, Bytes::new());
    let time = put.and_then(|put: Put| {
        debug_assert!(matches!(put, Put::Created | Put::Exists));
        root.head(&path).map(|info| info.modified)
    });
    // One that stays is old some day, and collected.
    drop(root.delete(&path));
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn seq(number: u64) -> Seq {
        Seq::new(number).unwrap()
    }

    #[test]
    fn a_record_is_no_older_than_one_before_it_and_one_from_the_future_is_new() {
        let times =
            Times::new([(seq(1), at(100)), (seq(2), at(40)), (seq(3), at(900)), (seq(4), at(120))], at(200));
        let age = |number| times.age(seq(number)).map(|age| age.as_secs());
        assert_eq!([age(1), age(2), age(3), age(4), age(5)], [Some(100), Some(100), Some(0), Some(80), None]);
    }
}
