//! One record: its content, its bytes, and how both are checked.
//!
//! The bytes are JSON on one line. They end with `,"check":"<64 hexadecimal digits>"}` and a newline, where the digits are the SHA-256 of
//! all bytes before that ending; so a record that was cut or changed is known by itself, before anything in it is believed. This ending, and
//! the keys `format` and `must_understand`, stay as they are in every later format.
//!
//! Readers ignore keys that they do not know. What they must not ignore is named in `must_understand`; a larger `format` is refused.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::{CommitError, Result};
use super::metrics::Metrics;
use super::names::{DirName, Label};
use super::seq::Seq;
use super::state::State;
use crate::digest::Sha256Digest;
use crate::store::Nonce;

/// The format of the records that this crate writes, and the largest that it reads.
pub const FORMAT: u32 = 1;

/// The features that this crate understands.
pub const FEATURES: &[&str] = &[];

/// The most bytes a record may have. A state of 100,000 live checkpoints has some 40 MB.
pub(crate) const LONGEST: u64 = 64 << 20;

const CHECK: &str = r#","check":""#;
const END: &str = "\"}\n";
const CHECK_DIGITS: usize = 64;

/// Which root a record belongs to: drawn with the first record, and kept by every copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RootId(Nonce);

impl RootId {
    /// The id with these bits.
    #[must_use]
    pub const fn new(nonce: Nonce) -> Self {
        Self(nonce)
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootId({})", self.0)
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The format of the record.
    pub format: u32,
    /// What a reader must understand to read it.
    pub must_understand: Vec<String>,
    /// The root that it belongs to.
    pub root: RootId,
    /// Its place in the log.
    pub seq: Seq,
    /// The digest of the bytes of the record before it; none for the first.
    pub prev: Option<Sha256Digest>,
    /// Names the attempt to write it, so that its writer knows it again.
    pub nonce: Nonce,
    /// The program that wrote it.
    pub writer: String,
    /// When it was written, in milliseconds since 1970, as the writer's clock had it. Nothing depends on it.
    pub time_ms: u64,
    /// The run that it is about.
    pub run: Label,
    /// The incarnation of that run that wrote it.
    pub epoch: u64,
    /// The checkpoint that a committed one goes on from.
    pub parent: Option<Seq>,
    /// What it does.
    pub action: Action,
    /// The state before it; on every 64th record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// What a record does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A checkpoint exists from now on.
    Commit(Commit),
    /// A checkpoint is no longer wanted; its directories become garbage unless others refer to them.
    Retire(Retire),
    /// Directories that are about to be deleted: a later commit that refers to them is void.
    Condemn(Condemn),
    /// A checkpoint gets a name; a name that another had moves.
    Tag(Tag),
    /// A name is taken away.
    Untag(Untag),
    /// A checkpoint is protected from being retired, or no longer.
    Pin(Pin),
    /// A checkpoint was read and checked.
    Verified(Verified),
    /// An incarnation of a run begins: records of earlier ones that come later are void.
    Epoch(Epoch),
}

/// Content of [`Action::Commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The training step.
    pub step: u64,
    /// The directory of the attempt, which names it.
    pub attempt: DirName,
    /// The catalog.
    pub manifest: ManifestRef,
    /// All directories in which the manifest has blobs, `attempt` included or not.
    pub directories: BTreeSet<DirName>,
    /// What its saver measured: retention can choose by it. A reader that does not know the key loses nothing else.
    #[serde(default, skip_serializing_if = "Metrics::is_empty")]
    pub metrics: Metrics,
}

/// The manifest of a checkpoint: `<attempt>/manifest-<sha256>.sqlite`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRef {
    /// The digest of its bytes, which is part of its name.
    pub sha256: Sha256Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl ManifestRef {
    /// The object that holds the manifest of an attempt.
    #[must_use]
    pub fn path(&self, attempt: &DirName) -> crate::store::ObjectPath {
        crate::store::ObjectPath::from(format!("{attempt}/manifest-{}.sqlite", self.sha256))
    }
}

/// Content of [`Action::Retire`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retire {
    /// The checkpoint.
    pub checkpoint: Seq,
}

/// Content of [`Action::Condemn`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condemn {
    /// The directories.
    pub directories: BTreeSet<DirName>,
}

/// Content of [`Action::Tag`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The name.
    pub name: Label,
    /// The checkpoint.
    pub checkpoint: Seq,
}

/// Content of [`Action::Untag`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Untag {
    /// The name.
    pub name: Label,
}

/// Content of [`Action::Pin`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The checkpoint.
    pub checkpoint: Seq,
    /// Whether it is held from now on, or let go.
    pub held: bool,
}

/// Content of [`Action::Verified`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The checkpoint.
    pub checkpoint: Seq,
    /// Whether it was found whole; a damaged one loses what an earlier verification said.
    pub whole: bool,
}

/// Content of [`Action::Epoch`]: the new epoch is that of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {}

/// What is read of a record before anything else is.
#[derive(Deserialize)]
struct Preamble {
    format: u32,
    #[serde(default)]
    must_understand: Vec<String>,
}

/// What tells which record it is, and whether this program may read on from it.
#[derive(Deserialize)]
struct Identity {
    format: u32,
    #[serde(default)]
    must_understand: Vec<String>,
    root: RootId,
    seq: Seq,
}

impl Record {
    /// The bytes of the record.
    ///
    /// # Errors
    /// [`CommitError::TooLong`] when the state it carries has grown beyond what a reader takes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_string(self).map_err(|error| self.unwritable(&error))?;
        // The ending closes the object.
        let body = json.strip_suffix('}').unwrap_or(&json);
        let bytes = format!("{body}{CHECK}{}{END}", Sha256Digest::of(body.as_bytes())).into_bytes();
        let size = bytes.len() as u64;
        if size > LONGEST { Err(CommitError::TooLong { seq: self.seq, size }) } else { Ok(bytes) }
    }

    /// Reads the bytes of a record; `name` is what they are called, for messages.
    ///
    /// # Errors
    /// [`CommitError::Damaged`], [`CommitError::Newer`], [`CommitError::NotUnderstood`].
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let body = checked_body(bytes).map_err(|reason| damaged(name, reason))?;
        let json = format!("{body}}}");
        let preamble: Preamble =
            serde_json::from_str(&json).map_err(|error| damaged(name, &error.to_string()))?;
        if preamble.format > FORMAT {
            return Err(CommitError::Newer { path: name.to_owned(), format: preamble.format, known: FORMAT });
        }
        let unknown = unknown(&preamble.must_understand);
        if !unknown.is_empty() {
            return Err(CommitError::NotUnderstood { path: name.to_owned(), features: unknown.join(", ") });
        }
        serde_json::from_str(&json).map_err(|error| damaged(name, &error.to_string()))
    }

    /// Whether bytes, of which the digest is known to be right, are this record, and one from which this program may read on. The rest of
    /// it is not looked at: it may carry a large state.
    pub(super) fn is(bytes: &[u8], root: RootId, seq: Seq) -> bool {
        serde_json::from_slice::<Identity>(bytes).is_ok_and(|it| {
            it.root == root && it.seq == seq && it.format <= FORMAT && unknown(&it.must_understand).is_empty()
        })
    }

    fn unwritable(&self, error: &serde_json::Error) -> CommitError {
        damaged(self.seq.path().as_ref(), &error.to_string())
    }
}

/// The features that this crate does not understand.
fn unknown(features: &[String]) -> Vec<&str> {
    features.iter().map(String::as_str).filter(|feature| !FEATURES.contains(feature)).collect()
}

/// Why a record without its ending is refused.
pub(super) const CUT: &str = "it does not end as a record does; it was cut short, or is something else";

/// The bytes before the ending, if that fits them.
fn checked_body(bytes: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| CUT)?;
    let rest = text.strip_suffix(END).ok_or(CUT)?;
    let (body, digits) =
        rest.len().checked_sub(CHECK_DIGITS).and_then(|at| rest.split_at_checked(at)).ok_or(CUT)?;
    let body = body.strip_suffix(CHECK).ok_or(CUT)?;
    let same = digits == Sha256Digest::of(body.as_bytes()).to_string();
    if same {
        Ok(body)
    } else {
        Err("its bytes do not fit its check; they were changed after it was written")
    }
}

fn damaged(name: &str, reason: &str) -> CommitError {
    CommitError::Damaged { path: name.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
