//! A replica's microbatches of one step, as the stages see them.

use tch::{Device, Tensor};

use super::Job;
use crate::{Error, Place, Result, model::Batch};

/// What of a batch this rank needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wants {
    /// It runs the first part.
    pub(super) tokens: bool,
    /// It runs the head.
    pub(super) targets: bool,
}

impl Job {
    /// The microbatches of replica `dp`, of the step that begins at `cursor`, on `device`. Ranks in the middle of a pipeline read
    /// nothing.
    pub(super) fn batches(&self, cursor: u64, dp: usize, wants: Wants, device: Device) -> Result<Vec<Batch>> {
        let per_replica = self.config.batches.microbatches;
        let first = dp as u64 * per_replica;
        (first..first + per_replica).map(|index| self.batch(cursor, index, wants, device)).collect()
    }

    fn batch(&self, cursor: u64, index: u64, wants: Wants, device: Device) -> Result<Batch> {
        let training = &self.config.config.training;
        let size = |value: u64| i64::try_from(value).map_err(|_| Error::config("a batch larger than memory"));
        let (rows, length) = (size(training.micro_batch)?, size(training.seq_len)?);
        let mut batch = Batch { rows, length, tokens: None, targets: None };
        if wants.tokens || wants.targets {
            let read = self.stream.microbatch(cursor, index, training.micro_batch);
            let read = read.place(format!("microbatch {index}"))?;
            let shaped =
                |ids: &[i64]| Tensor::f_from_slice(ids)?.f_to_device(device)?.f_reshape([rows, length]);
            batch.tokens = wants.tokens.then(|| shaped(&read.tokens)).transpose()?;
            batch.targets = wants.targets.then(|| shaped(&read.targets)).transpose()?;
        }
        Ok(batch)
    }
}
