//! The head hint: one small object, `commits/head`, that spares readers the way through the log.
//!
//! ```text
//!  append ── record n, durably ──► put over commits/head: (root, n, digest of record n, state after it)
//!  open  ◄── commits/head ─ record n has that digest? ─ no record n+1? ──► the state      (three requests)
//!                   └─ missing, damaged, foreign, of another history ──► listing, as without it
//! ```
//!
//! It is the one object of a root that is written over, and the only one that may be lost, stale or wrong without harm. Its writer puts it
//! after the record is durable, so one that is ahead of the log says that the log was cut. It is never believed over the log: record `n` is
//! read, must have the digest that the hint names, and must be of its root and understood; its state is trusted as far as one that a record
//! carries. So a reader passes over damage of records before `n`, as one that begins at a carried state does. Whoever must not pass over it
//! (who writes, deletes, or falls back because of damage) believes no hint, and has the log read as without one: see
//! [`Log::prove`](super::Log::prove).
//!
//! Bytes: `CKPTHEAD`, version u32, length of the JSON u64, the JSON as a zstd frame, SHA-256 of all before.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::log::Entry;
use super::names::Label;
use super::record::{Action, FEATURES, Record, RootId};
use super::seq::Seq;
use super::state::State;
use crate::digest::Sha256Digest;
use crate::store::{ObjectPath, Root, StoreError};

mod rows;

use rows::Row;

const MAGIC: &[u8; 8] = b"CKPTHEAD";
const VERSION: u32 = 1;
const PREFIX: usize = 8 + 4 + 8;
const DIGEST: usize = 32;

/// The most bytes that a hint and its JSON may have; beyond that nobody writes one.
const LONGEST: u64 = 32 << 20;

/// The most bytes of JSON for so many of its frame: a small object must not claim much memory. Of what is in a state, digests and nonces don't
/// shrink to less than half.
const fn most_json(frame: usize) -> u64 {
    let most = (4 << 20) + 8 * frame as u64;
    if most < LONGEST { most } else { LONGEST }
}

/// The largest record that a hint repeats.
const LONGEST_RECORD: usize = 64 << 10;

/// Fast rather than small: what does not shrink in a state is its digests, at any level.
const LEVEL: i32 = 1;

/// What a hint says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) root: RootId,
    /// The last record, when it was written.
    pub(super) seq: Seq,
    /// The digest of that record's bytes.
    pub(super) record: Sha256Digest,
    /// What the records up to that one amount to.
    pub(super) state: State,
    /// The record that committed the newest checkpoint, byte for byte, unless it is the last record or a large one.
    pub(super) newest: Option<String>,
}

/// The same, as it is written: the checkpoints of the state apart, as rows.
#[derive(Serialize, Deserialize)]
struct Written {
    must_understand: Vec<String>,
    root: RootId,
    seq: Seq,
    record: Sha256Digest,
    newest: Option<String>,
    runs: Vec<Label>,
    checkpoints: Vec<Row>,
    state: State,
}

/// What was found in place of the hint.
#[derive(Debug)]
pub(super) enum Found {
    Hint(Box<Hint>),
    Nothing,
    /// Something that is no hint of ours, and why.
    Unreadable(String),
}

/// The object.
pub(super) fn path() -> ObjectPath {
    ObjectPath::from("commits/head")
}

/// Looks for it. What the store says is an error for those who want to know; readers go on without.
pub(super) fn read(root: &Root) -> Result<Found, StoreError> {
    match root.get_at_most(&path(), LONGEST) {
        Ok((bytes, _)) => {
            Ok(decode(&bytes).map_or_else(Found::Unreadable, |hint| Found::Hint(Box::new(hint))))
        }
        Err(StoreError::NotFound { .. }) => Ok(Found::Nothing),
        Err(StoreError::TooLarge { size, .. }) => {
            Ok(Found::Unreadable(format!("it has {size} bytes, more than any hint")))
        }
        Err(error) => Err(error),
    }
}

/// Puts it over an older one. Whether it lands is of no consequence.
pub(super) fn put(root: &Root, bytes: Vec<u8>) {
    // An error of the store is none of the append that this follows: its record is there.
    drop(root.put_over(&path(), bytes.into()));
}

/// The hint of a log whose last record is `seq`.
pub(super) fn encode(
    root: RootId,
    (seq, record): (Seq, Sha256Digest),
    state: &State,
    newest: Option<&[u8]>,
) -> Option<Vec<u8>> {
    let newest =
        newest.filter(|it| it.len() <= LONGEST_RECORD).and_then(|it| String::from_utf8(it.to_vec()).ok());
    let (runs, checkpoints) = rows::pack(state);
    let (must_understand, state) = (Vec::new(), state.without_checkpoints());
    let written = Written { must_understand, root, seq, record, newest, runs, checkpoints, state };
    let json = serde_json::to_vec(&written).ok().filter(|json| json.len() as u64 <= LONGEST)?;
    let frame = zstd::bulk::compress(&json, LEVEL).ok()?;
    if json.len() as u64 > most_json(frame.len()) {
        return None;
    }
    let mut bytes = Vec::with_capacity(PREFIX + frame.len() + DIGEST);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&frame);
    let digest = Sha256Digest::of(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    Some(bytes)
}

/// Whether bytes are a hint, and the record that it repeats is one that it may.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn is_hint(bytes: &[u8]) -> bool {
    decode(bytes).is_ok_and(|hint| hint.newest().is_some() || hint.newest.is_none())
}

fn decode(bytes: &[u8]) -> Result<Hint, String> {
    const CUT: &str = "it is cut short or changed, or is something else";
    let (body, digest) =
        bytes.len().checked_sub(DIGEST).and_then(|at| bytes.split_at_checked(at)).ok_or(CUT)?;
    if Sha256Digest::of(body).as_bytes().as_slice() != digest {
        return Err(CUT.to_owned());
    }
    let rest = body.strip_prefix(MAGIC).ok_or(CUT)?;
    let (version, rest) = rest.split_first_chunk().ok_or(CUT)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(format!("it is of version {version}, and this program knows {VERSION}"));
    }
    let (length, frame) = rest.split_first_chunk().ok_or(CUT)?;
    let length = u64::from_le_bytes(*length);
    let room = usize::try_from(length).ok().filter(|_| length <= most_json(frame.len()));
    let room = room.ok_or("it claims to be too large")?;
    let json = zstd::bulk::decompress(frame, room).map_err(|error| error.to_string())?;
    let written: Written = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
    if let Some(feature) =
        written.must_understand.iter().find(|feature| !FEATURES.contains(&feature.as_str()))
    {
        return Err(format!("it uses {feature}, which this program does not know"));
    }
    let Written { root, seq, record, newest, runs, checkpoints, mut state, .. } = written;
    rows::unpack(&mut state, &runs, checkpoints).map_err(|reason| format!("it has {reason}"))?;
    Ok(Hint { root, seq, record, state, newest })
}

impl Hint {
    /// Whether the bytes that were found under its number are the record that it was made after, and this program may read what follows on
    /// it. The record's content is in the state already.
    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        Sha256Digest::of(bytes) == self.record && Record::is(bytes, self.root, self.seq)
    }

    /// Whether the record that was found under its number is the one that it was made after.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        entry.digest == self.record && entry.record.root == self.root && entry.record.seq == self.seq
    }

    /// The record that committed the newest checkpoint: its number, and its bytes.
    pub(super) fn newest(&self) -> Option<(Seq, Bytes)> {
        let bytes = self.newest.as_deref()?;
        let record = Record::decode(path().as_ref(), bytes.as_bytes()).ok()?;
        let checkpoint = self.state.checkpoints.get(&record.seq)?;
        let same = matches!(&record.action, Action::Commit(commit)
            if commit.attempt == checkpoint.attempt && commit.manifest == checkpoint.manifest);
        (same && record.root == self.root).then(|| (record.seq, Bytes::copy_from_slice(bytes.as_bytes())))
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
