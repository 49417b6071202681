//! [`Report`]: what each rank tells all others at the end of a step's backward, before anything is updated, so that all
//! decide alike: losses, how its last save went, whether it was asked to stop.
//!
//! Invariant: the loss of a step is a sum over *all* microbatches in their global order, as an aligned tree in exact mode;
//! every rank computes the same bits from the same reports.

use serde::{Deserialize, Serialize};

use crate::{
    Error, ErrorKind, Result,
    exact::Sums,
    transport::{Group, Purpose},
};

/// One rank's report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Loss sums (bits of f32) of the microbatches whose loss this rank computed, by global index.
    pub(crate) losses: Vec<(usize, u32)>,
    /// Saves that have ended since the last report.
    pub(crate) saves: Vec<SaveReport>,
    /// Whether this rank was asked to stop.
    pub(crate) stop: bool,
}

/// How a save ended on a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SaveReport {
    /// Its step.
    pub(crate) step: u64,
    /// The number of its checkpoint, from the rank that committed it.
    pub(crate) sequence: Option<u64>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<String>,
}

/// What all reports say together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// Sum of the step's losses over all tokens.
    pub(crate) loss: f32,
    /// Failures of saves: rank, step, why.
    pub(crate) failures: Vec<(usize, u64, String)>,
    /// The number of the newest checkpoint that was committed since the last reports.
    pub(crate) committed: Option<u64>,
    /// Whether some rank was asked to stop.
    pub(crate) stop: bool,
}

impl Report {
    /// Tells all, hears all. `world` has every rank.
    pub(crate) fn exchange(
        &self,
        world: &dyn Group,
        step: u64,
        microbatches: usize,
        sums: Sums,
    ) -> Result<Verdict> {
        let bytes = serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()))?;
        let all = world.all_gather_bytes(&Purpose(format!("report of step {step}")), &bytes)?;
        let read = |(rank, bytes): (usize, &Vec<u8>)| {
            serde_json::from_slice(bytes)
                .map_err(|error| Error::new(ErrorKind::Corrupt, format!("report of rank {rank}: {error}")))
        };
        if world.imagined() {
            return Ok(self.alone(microbatches, sums));
        }
        let reports: Vec<Self> = all.iter().enumerate().map(read).collect::<Result<_>>()?;
        judge(&reports, microbatches, sums)
    }
}

impl Report {
    /// The verdict of a rank whose peers are imagined: losses that it did not compute are 0.
    fn alone(&self, microbatches: usize, sums: Sums) -> Verdict {
        let mut losses = vec![0.0; microbatches];
        for (microbatch, bits) in &self.losses {
            losses.get_mut(*microbatch).into_iter().for_each(|loss| *loss = f32::from_bits(*bits));
        }
        let failures = self.saves.iter().filter_map(|save| Some((0, save.step, save.failure.clone()?)));
        Verdict { loss: total(losses, sums), failures: failures.collect(), committed: None, stop: self.stop }
    }
}

fn judge(reports: &[Report], microbatches: usize, sums: Sums) -> Result<Verdict> {
    let mut losses: Vec<Option<f32>> = vec![None; microbatches];
    for (rank, report) in reports.iter().enumerate() {
        for &(microbatch, bits) in &report.losses {
            let (loss, slot) = (f32::from_bits(bits), losses.get_mut(microbatch));
            let slot =
                slot.ok_or_else(|| Error::internal(format!("rank {rank}: loss of microbatch {microbatch}")))?;
            // Tensor-parallel ranks compute the same loss; where they do not, one of them is wrong.
            if slot.is_some_and(|known| known.to_bits() != bits && !(known.is_nan() && loss.is_nan())) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "rank {rank} computed another loss of microbatch {microbatch} than its tensor-parallel peers"
                    ),
                ));
            }
            *slot = Some(loss);
        }
    }
    let complete: Option<Vec<f32>> = losses.iter().copied().collect();
    let Some(losses) = complete else {
        let missing = losses.iter().position(Option::is_none).unwrap_or_default();
        return Err(Error::internal(format!("no rank reported the loss of microbatch {missing}")));
    };
    let failures = reports.iter().enumerate().flat_map(|(rank, report)| {
        report.saves.iter().filter_map(move |save| Some((rank, save.step, save.failure.clone()?)))
    });
    Ok(Verdict {
        loss: total(losses, sums),
        failures: failures.collect(),
        committed: reports.iter().flat_map(|report| &report.saves).filter_map(|save| save.sequence).max(),
        stop: reports.iter().any(|report| report.stop),
    })
}

/// The sum in the order of the mode: an aligned binary tree, or from left to right.
fn total(mut losses: Vec<f32>, sums: Sums) -> f32 {
    if sums == Sums::Fast {
        return losses.iter().sum();
    }
    while losses.len() > 1 {
        losses =
            losses.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0)).collect();
    }
    losses.first().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(losses: &[(usize, f32)]) -> Report {
        Report {
            losses: losses.iter().map(|(at, loss)| (*at, loss.to_bits())).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn the_loss_is_a_tree_over_global_microbatches_whoever_computed_them() {
        let values: Vec<f32> = (0..8).map(|at| 1.0 + 1e-7 * (at as f32).exp()).collect();
        let one = [report(&values.iter().copied().enumerate().collect::<Vec<_>>())];
        let two = [
            report(&(4..8).map(|at| (at, values[at])).collect::<Vec<_>>()),
            report(&[]),
            report(&(0..4).rev().map(|at| (at, values[at])).collect::<Vec<_>>()),
        ];
        let bits = |reports: &[Report]| judge(reports, 8, Sums::Exact).unwrap().loss.to_bits();
        assert_eq!(bits(&one), bits(&two));
        let by_hand = ((values[0] + values[1]) + (values[2] + values[3]))
            + ((values[4] + values[5]) + (values[6] + values[7]));
        assert_eq!(bits(&one), by_hand.to_bits());
    }

    #[test]
    fn a_missing_loss_and_peers_that_disagree_are_named() {
        assert!(
            judge(&[report(&[(0, 1.0)])], 2, Sums::Exact).unwrap_err().to_string().contains("microbatch 1")
        );
        let two = [report(&[(0, 1.0)]), report(&[(0, 1.5)])];
        assert!(judge(&two, 1, Sums::Exact).unwrap_err().to_string().contains("rank 1"));
    }

    #[test]
    fn one_rank_that_is_asked_to_stop_stops_all_and_failed_saves_are_known_to_all() {
        let mut reports = vec![report(&[(0, 1.0)]), report(&[])];
        reports[1].stop = true;
        let failed = SaveReport { step: 3, sequence: None, failure: Some("disk full".to_owned()) };
        reports[0].saves = vec![SaveReport { step: 2, sequence: Some(7), failure: None }];
        reports[1].saves = vec![failed];
        let verdict = judge(&reports, 1, Sums::Fast).unwrap();
        assert!(verdict.stop);
        assert_eq!(verdict.failures, [(1, 3, "disk full".to_owned())]);
        assert_eq!(verdict.committed, Some(7));
    }
}
