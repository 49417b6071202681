//! The checkpoints of a state as rows, without the names of their fields: a hint of 10,000 of them is read in half the time.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::super::metrics::Metrics;
use super::super::names::{DirName, Label};
use super::super::record::ManifestRef;
use super::super::seq::Seq;
use super::super::state::{Checkpoint, State};
use crate::digest::Sha256Digest;

/// One checkpoint: its record; its run, as the index of its name; epoch; parent; ancestor; step; attempt; digest and size of its manifest;
/// directories, unless the attempt's is the only one; whether it is pinned; what verified it; metrics.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row(
    Seq,
    usize,
    u64,
    Option<Seq>,
    Option<Seq>,
    u64,
    DirName,
    Sha256Digest,
    u64,
    Option<BTreeSet<DirName>>,
    bool,
    Option<Seq>,
    Metrics,
);

/// The rows of a state, and the names of runs that they refer to.
pub(super) fn pack(state: &State) -> (Vec<Label>, Vec<Row>) {
    let names: BTreeSet<&Label> = state.checkpoints.values().map(|it| &it.run).collect();
    let names: Vec<Label> = names.into_iter().cloned().collect();
    let row = |(seq, it): (&Seq, &Checkpoint)| {
        let alone = it.directories.len() == 1 && it.directories.contains(&it.attempt);
        Row(
            *seq,
            names.binary_search(&it.run).unwrap_or(usize::MAX),
            it.epoch,
            it.parent,
            it.ancestor,
            it.step,
            it.attempt.clone(),
            it.manifest.sha256,
            it.manifest.size,
            (!alone).then(|| it.directories.clone()),
            it.pinned,
            it.verified,
            it.metrics.clone(),
        )
    };
    let rows = state.checkpoints.iter().map(row).collect();
    (names, rows)
}

/// Puts the checkpoints of rows into a state without any.
pub(super) fn unpack(state: &mut State, names: &[Label], rows: Vec<Row>) -> Result<(), &'static str> {
    for row in rows {
        let Row(
            seq,
            run,
            epoch,
            parent,
            ancestor,
            step,
            attempt,
            sha256,
            size,
            directories,
            pinned,
            verified,
            metrics,
        ) = row;
        let run = names.get(run).ok_or("a checkpoint of a run that it does not name")?.clone();
        let directories = directories.unwrap_or_else(|| [attempt.clone()].into());
        let manifest = ManifestRef { sha256, size };
        let checkpoint = Checkpoint {
            run,
            epoch,
            parent,
            ancestor,
            step,
            attempt,
            manifest,
            directories,
            pinned,
            verified,
            metrics,
        };
        if state.checkpoints.insert(seq, checkpoint).is_some() {
            return Err("a checkpoint twice");
        }
    }
    Ok(())
}
