//! The verdict: what the log holds in the end, against what each actor was told.

use std::collections::BTreeMap;

use dcp::commit::{Action, FORMAT, HintCheck, Log, Record, RootId, Seq, State};
use dcp::store::{Nonce, Root, object_path};

use super::actor::{Outcome, Refusal, Testimony, told};
use super::writer::data_of;

/// What was found wrong, and how much there was.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) records: u64,
    pub(super) live: u64,
    /// Acknowledged and not in the log.
    pub(super) lost: u64,
    /// In the log more often than acknowledged: written twice, or although it was said that nothing was.
    pub(super) surplus: u64,
    /// Refused for a reason that did not hold.
    pub(super) false_conflicts: u64,
    /// Checkpoints whose data is missing or changed.
    pub(super) damaged: u64,
    /// Records without effect.
    pub(super) voids: u64,
    /// What an audit of the log found.
    pub(super) findings: Vec<String>,
}

/// Compares the log of a store that no longer fails with the testimonies.
pub(super) fn judge(root: &Root, said: &[Testimony]) -> Outcome<Verdict> {
    let mut verdict = Verdict::default();
    let log = match Log::open(root) {
        Ok(log) => log,
        Err(error) => {
            verdict.findings.push(error.to_string());
            return Ok(verdict);
        }
    };
    let audit = log.audit()?;
    verdict.findings.extend(audit.findings.iter().map(|finding| finding.error.to_string()));
    if let HintCheck::Bad(error) = &audit.hint {
        verdict.findings.push(error.to_string());
    }
    (verdict.records, verdict.voids) = (audit.records, audit.voids.len() as u64);
    let mut written: BTreeMap<String, u64> = BTreeMap::new();
    let mut refusals: BTreeMap<Option<Seq>, Vec<&Refusal>> = BTreeMap::new();
    said.iter().flat_map(|said| &said.refused).for_each(|it| refusals.entry(it.head).or_default().push(it));
    let mut state = State::default();
    let mut claims = |head: Option<Seq>, state: &State| {
        let of_head = refusals.remove(&head).unwrap_or_default();
        of_head.into_iter().filter(|refusal| !holds(refusal, state)).count() as u64
    };
    verdict.false_conflicts += claims(None, &state);
    let mut seq = Seq::FIRST;
    while let Some(entry) = log.read(seq)? {
        *written.entry(told(&entry.record.run, &entry.record.action)).or_default() += 1;
        drop(state.apply(&entry.record));
        verdict.false_conflicts += claims(Some(seq), &state);
        seq = seq.next();
    }
    // A refusal at a head that the log never had is false in any case.
    verdict.false_conflicts += refusals.values().map(|them| them.len() as u64).sum::<u64>();
    if state != *log.state() {
        verdict
            .findings
            .push("a reader that begins late comes to another state than one that reads all".to_owned());
    }
    count(&mut verdict, &written, said);
    verdict.live = state.checkpoints.len() as u64;
    for checkpoint in state.checkpoints.values() {
        let dir = checkpoint.attempt.as_str();
        let there = root.get_opt(&object_path(&format!("{dir}/data"))?)?;
        verdict.damaged += u64::from(there != Some(data_of(dir)));
    }
    Ok(verdict)
}

fn count(verdict: &mut Verdict, written: &BTreeMap<String, u64>, said: &[Testimony]) {
    let mut acknowledged: BTreeMap<&String, u64> = BTreeMap::new();
    for (what, times) in said.iter().flat_map(|said| &said.acknowledged) {
        *acknowledged.entry(what).or_default() += times;
    }
    for (what, times) in &acknowledged {
        verdict.lost += times.saturating_sub(written.get(*what).copied().unwrap_or(0));
    }
    for (what, times) in written {
        verdict.surplus += times.saturating_sub(acknowledged.get(what).copied().unwrap_or(0));
    }
}

/// Whether the record would indeed have been void there, for that reason.
fn holds(refusal: &Refusal, state: &State) -> bool {
    let current = state.epoch(&refusal.run);
    let begins = matches!(refusal.action, Action::Epoch(_));
    let record = Record {
        format: FORMAT,
        must_understand: Vec::new(),
        root: RootId::new(Nonce::from_bits(0)),
        seq: refusal.head.map_or(Seq::FIRST, Seq::next),
        prev: None,
        nonce: Nonce::from_bits(0),
        writer: String::new(),
        time_ms: 0,
        run: refusal.run.clone(),
        epoch: refusal.epoch.unwrap_or(if begins { current + 1 } else { current }),
        parent: refusal.parent,
        action: refusal.action.clone(),
        state: None,
    };
    state.judge(&record) == Err(refusal.void.clone())
}
