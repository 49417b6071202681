//! The saves of a rank: when one begins, how those that ended are told to all, and the last word at the end.
//!
//! Invariant: a failure is told to all ranks by the next report, whoever saw it first, so that all act on it at the same step.

use std::{sync::Arc, time::Instant};

use dcp::commit::Seq;

use super::{
    Ended, Summary,
    rank::Rank,
    report::{Report, SaveReport, Verdict},
};
use crate::{Error, ErrorKind, Result, checkpoint::Outcome, config::OnSaveFailure, transport::Purpose};

impl Rank<'_> {
    pub(super) fn save_if_due(&mut self, last: bool) -> Result<()> {
        let interval = self.job.config.config.checkpoint.interval;
        let due = interval > 0 && self.run.step.is_multiple_of(interval);
        if interval == 0 || !(due || last) {
            return Ok(());
        }
        let began = Instant::now();
        if let Some(outcome) = self.saver.wait() {
            self.note_save(outcome);
        }
        let back_pressure = began.elapsed();
        self.attempts += 1;
        let (described, run, attempt) = (Arc::clone(&self.described), self.run.clone(), self.attempts);
        let newest = self.newest;
        self.saver.begin(self.state.lease()?, move || described.plan(&run, attempt, newest))?;
        self.observer.saving(self.run.step, back_pressure)
    }

    /// Takes the outcome of a save: for the observer, and for the next report.
    pub(super) fn note_save(&mut self, outcome: Outcome) {
        let Outcome { step, result } = outcome;
        match result {
            Ok(saved) => {
                self.reports.push(SaveReport { step, sequence: saved.sequence, failure: None });
                self.saved.push_back(saved);
            }
            Err(error) => {
                let failure = Some(error.to_string());
                self.reports.push(SaveReport { step, sequence: None, failure });
            }
        }
    }

    /// What has ended since the last report.
    pub(super) fn ended_saves(&mut self) -> Vec<SaveReport> {
        if let Some(outcome) = self.saver.finished() {
            self.note_save(outcome);
        }
        std::mem::take(&mut self.reports)
    }

    pub(super) fn judge_saves(&mut self, verdict: &Verdict) -> Result<()> {
        while let Some(saved) = self.saved.pop_front() {
            self.observer.saved(&saved)?;
        }
        let committed = verdict.committed.and_then(|number| Seq::new(number).ok());
        self.newest = committed.or(self.newest);
        self.failed(&verdict.failures)
    }

    /// Policy for saves that failed, the same on all ranks.
    fn failed(&mut self, failures: &[(usize, u64, String)]) -> Result<()> {
        failures.iter().for_each(|(_, step, _)| self.saver.hurry(*step));
        let Some((rank, _, why)) = failures.first() else { return Ok(()) };
        let text = format!("a save failed on rank {rank}: {why}");
        match self.job.config.config.checkpoint.on_save_failure {
            OnSaveFailure::Continue => self.observer.warn(&format!("{text}; the checkpoint before stays")),
            OnSaveFailure::Stop => Err(Error::new(ErrorKind::Io, text).hint(
                "the checkpoint before is untouched; checkpoint.on_save_failure = \"continue\" trains on without",
            )),
        }
    }

    pub(super) fn close(mut self, ended: Ended, loss: Option<f32>) -> Result<Summary> {
        if let Some(outcome) = self.saver.wait() {
            self.note_save(outcome);
        }
        let report = Report { saves: self.ended_saves(), ..Report::default() };
        let bytes = serde_json::to_vec(&report).map_err(|error| Error::internal(error.to_string()))?;
        let all = self.world.all_gather_bytes(&Purpose("last save".to_owned()), &bytes)?;
        while let Some(saved) = self.saved.pop_front() {
            self.observer.saved(&saved)?;
        }
        let reports = all.iter().map(|bytes| serde_json::from_slice::<Report>(bytes));
        for (rank, report) in reports.enumerate() {
            let report = report.map_err(|error| Error::internal(error.to_string()))?;
            for SaveReport { step, failure, .. } in report.saves {
                failure.map_or(Ok(()), |why| self.failed(&[(rank, step, why)]))?;
            }
        }
        let summary = Summary {
            ended,
            step: self.run.step,
            loss,
            peak_gathered: self.state.live().peak_parts,
            stall: self.stall,
        };
        self.observer.ended(&summary)?;
        Ok(summary)
    }
}
