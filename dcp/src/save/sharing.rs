//! [`Sharing`]: what of a save may refer to an earlier checkpoint of the root instead of being written again.

use fqn::{Entry, Role, pattern::Pattern};
use serde_json::{Value, json};

use crate::{
    Place, Result,
    commit::{Label, Log, Seq},
    store::Root,
};

/// What of a save may refer to an earlier checkpoint of the same root.
///
/// Boxes of these tensors that the base holds already, byte for byte, are referred to, also where the base was cut for another
/// mesh. The original is read and proven by its SHA-256 each time: it costs a read in place of a write. Boxes of the others are
/// written without a look.
///
/// A checkpoint that refers to a folder keeps all of that folder from being collected, not only the blobs it needs: so share what
/// stays as it is for long (a frozen backbone, embeddings), and name it. `ckpt copy` makes a checkpoint that needs no other.
///
/// Where the base was retired and its folder condemned before the commit, the commit is refused: save again without sharing, which
/// is another plan. A base that can't be read, or is damaged where a box lies, costs nothing but a warning: see
/// [`super::Session::findings`] and [`super::Moment::Suspect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// The record that committed the base. All ranks must have the same: one looks it up (see [`Self::with_newest`]) and tells the others.
    pub base: Seq,
    /// Names of tensors that may be unchanged; all where there is none.
    pub tensors: Vec<Pattern>,
    /// Roles that may be unchanged; all where there is none.
    pub roles: Vec<Role>,
    /// Boxes below so many bytes are always written: a reference to a small one would hold a large folder.
    pub least: u64,
}

impl Sharing {
    /// Boxes below so many bytes are written, if nothing else is said.
    pub const LEAST: u64 = 64 << 10;

    /// Any tensor may be as it was in this checkpoint.
    #[must_use]
    pub const fn with(base: Seq) -> Self {
        Self { base, tensors: Vec::new(), roles: Vec::new(), least: Self::LEAST }
    }

    /// Any tensor may be as it was in the run's newest checkpoint; `None` when it has none.
    ///
    /// # Errors
    /// The store's and the log's.
    pub fn with_newest(root: &Root, run: &Label) -> Result<Option<Self>> {
        let log = Log::open(root).place(root.display_name())?;
        Ok(log.state().newest(run).map(|(seq, _)| Self::with(seq)))
    }

    /// Only tensors whose names match one of these.
    #[must_use]
    pub fn of_tensors(mut self, patterns: impl IntoIterator<Item = Pattern>) -> Self {
        self.tensors = patterns.into_iter().collect();
        self
    }

    /// Only tensors of these roles.
    #[must_use]
    pub fn of_roles(mut self, roles: impl IntoIterator<Item = Role>) -> Self {
        self.roles = roles.into_iter().collect();
        self
    }

    /// Whether boxes of a tensor are looked for.
    pub(super) fn takes(&self, entry: &Entry) -> bool {
        let named = self.tensors.is_empty() || self.tensors.iter().any(|it| it.matches(entry.fqn.as_str()));
        named && (self.roles.is_empty() || self.roles.contains(&entry.role))
    }

    /// What a plan's digest covers.
    pub(super) fn to_json(&self) -> Value {
        let tensors: Vec<&str> = self.tensors.iter().map(Pattern::as_str).collect();
        json!({"base": self.base, "tensors": tensors, "roles": self.roles, "least": self.least})
    }
}
