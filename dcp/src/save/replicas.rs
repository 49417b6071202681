//! Replicas: boxes that a rank holds and another writes. Their fingerprints are handed in, and compared with the writer's before
//! the commit.
//!
//! Invariants: what is compared follows from the plan; a rank that has something to hand in and did not is missing, as a writer is;
//! the sums of a box are equal exactly when its bytes are, as far as accidents go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use reshard::Region;

use super::SavePlan;
use crate::{
    Error, ErrorKind, Result,
    fingerprint::FingerprintSum,
    formats::{
        native::{Finished, Parts, Planned},
        parallel,
    },
};

/// Names of boxes in a message.
const SHOWN: usize = 4;

/// What one rank has to hand in, and has.
#[derive(Debug)]
pub(super) struct Held(Mutex<BTreeMap<(usize, Region), Option<FingerprintSum>>>);

impl Held {
    pub(super) fn new(plan: &SavePlan, rank: u32) -> Self {
        Self(Mutex::new(plan.replicas_of(rank).map(|it| (it, None)).collect()))
    }

    pub(super) fn put(&self, planned: &Planned, tensor: usize, region: &Region, bytes: &[u8]) -> Result<()> {
        let key = (tensor, region.clone());
        match self.lock().get(&key) {
            Some(None) => {}
            Some(Some(_)) => return Err(Error::incompatible("this replica was handed in before")),
            None => {
                return Err(Error::incompatible("no replica that is compared")
                    .hint("`SavePlan::replicas_of` says what a rank hands in"));
            }
        }
        let sum =
            planned.sum(tensor, region, bytes).map_err(|error| Error::incompatible(error.to_string()))?;
        self.lock().insert(key, Some(sum));
        Ok(())
    }

    /// The first box that was not handed in.
    pub(super) fn missing(&self) -> Option<(usize, Region)> {
        self.lock().iter().find(|(_, sum)| sum.is_none()).map(|(key, _)| key.clone())
    }

    /// Puts the note, where there is something to say.
    pub(super) fn finish(&self, rank: u32, parts: &Parts<'_>) -> Result<()> {
        let held = self.lock();
        if held.is_empty() {
            return Ok(());
        }
        let boxes =
            held.iter().filter_map(|((tensor, region), sum)| Some((*tensor, region.clone(), (*sum)?)));
        parts.put_held(rank, boxes.collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(usize, Region), Option<FingerprintSum>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ranks whose note is not there.
pub(super) fn missing(plan: &SavePlan, parts: &Parts<'_>) -> Result<BTreeSet<u32>> {
    let ranks: Vec<u32> = plan.replicas_by_rank().into_keys().collect();
    let there = parallel::map(&ranks, |rank| parts.has_held(*rank))?;
    Ok(ranks.into_iter().zip(there).filter(|(_, there)| !there).map(|(rank, _)| rank).collect())
}

/// Compares what ranks handed in with what the writers wrote.
pub(super) fn agree(plan: &SavePlan, parts: &Parts<'_>, finished: &Finished<'_>) -> Result<()> {
    let each = finished.sums().map(|(tensor, region, rank, sum)| ((tensor, region), (rank, sum)));
    let written: HashMap<(usize, &Region), (u32, FingerprintSum)> = each.collect();
    let mut apart = Vec::new();
    let held: Vec<_> = plan.replicas_by_rank().into_iter().collect();
    // Small reads for each, and a large mesh has thousands.
    let notes = parallel::map(&held, |(rank, _)| parts.held(*rank))?;
    for ((rank, boxes), note) in held.into_iter().zip(notes) {
        let note = note.ok_or_else(|| {
            Error::new(
                ErrorKind::Conflict,
                format!("rank {rank} has not handed in the replicas that it holds"),
            )
            .hint("it is not done, or was stopped")
        })?;
        let held: HashMap<_, _> =
            note.iter().map(|(tensor, region, sum)| ((*tensor, region), *sum)).collect();
        for (tensor, region) in boxes {
            let (wrote, here) = (written.get(&(tensor, &region)), held.get(&(tensor, &region)));
            if let (Some((_, wrote)), Some(here)) = (wrote, here)
                && wrote == here
            {
                continue;
            }
            let name = plan.tensor(tensor).map(|entry| entry.id().to_string()).unwrap_or_default();
            let writer = wrote.map_or(0, |(writer, _)| *writer);
            apart.push(format!("{name}{region} of rank {rank} is not what rank {writer} wrote"));
        }
    }
    if apart.is_empty() {
        return Ok(());
    }
    let more = apart.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let shown = apart.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    Err(Error::corrupt(format!("replicas have drifted apart: {shown}{more}")).hint(
        "ranks that should compute the same do not: go on from an earlier checkpoint, and look for the cause",
    ))
}
