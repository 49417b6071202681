//! Whose save an attempt is: a note that its first rank puts when it begins, so that a collection of garbage can tell a save of a run's
//! present incarnation, which may only sleep, from one that can't be committed any more.

use serde::{Deserialize, Serialize};

use super::attempt::below;
use crate::{
    Error, Result,
    commit::{DirName, Label, State},
    store::{Root, StoreError},
};

const NAME: &str = "parts/whose.json";
const FORMAT: u32 = 1;

/// Most bytes of a note: far more than its names can have.
const LONGEST: u64 = 4096;

/// Whose save an attempt is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whose {
    format: u32,
    pub(crate) run: Label,
    epoch: u64,
    step: u64,
}

impl Whose {
    pub(crate) fn new(run: &Label, epoch: u64, step: u64) -> Self {
        Self { format: FORMAT, run: run.clone(), epoch, step }
    }

    /// Puts the note; the same one that is there already is none too many.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn put(&self, root: &Root, dir: &DirName) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()))?;
        Ok(root.put_same(&below(dir, NAME)?, json.into())?)
    }

    /// The note of an attempt. One that says nothing to this version says nothing.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn get(root: &Root, dir: &DirName) -> Result<Option<Self>> {
        let bytes = match root.get_at_most(&below(dir, NAME)?, LONGEST) {
            Ok((bytes, _)) => bytes,
            Err(StoreError::NotFound { .. } | StoreError::TooLarge { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(serde_json::from_slice(&bytes).ok().filter(|whose: &Self| whose.format == FORMAT))
    }

    /// Whether it may still be committed as the log stands: the incarnation is the run's, and has not gone on beyond it.
    pub(crate) fn is_present(&self, state: &State) -> bool {
        let Some(line) = state.runs.get(&self.run).filter(|line| line.epoch == self.epoch) else {
            return false;
        };
        let tip = line.tip.and_then(|tip| state.checkpoints.get(&tip));
        tip.is_none_or(|tip| tip.step < self.step)
    }
}
