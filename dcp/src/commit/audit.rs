//! Reading the whole log: every record, the chain between them, and what the carried states claim.

use super::chain::Chain;
use super::error::{CommitError, Result};
use super::log::{Entry, Log};
use super::seq::Seq;
use super::state::{State, Void};

/// What an audit found.
#[derive(Debug, Default)]
pub struct Audit {
    /// The last record.
    pub head: Option<Seq>,
    /// How many records were read.
    pub records: u64,
    /// What is wrong, in the order of the log.
    pub findings: Vec<Finding>,
    /// Records that have no effect. They are no fault of the log.
    pub voids: Vec<(Seq, Void)>,
}

/// One thing that is wrong with the log.
#[derive(Debug)]
pub struct Finding {
    /// The record.
    pub seq: Seq,
    /// What is wrong.
    pub error: CommitError,
}

impl Log {
    /// Reads all records, and goes on after what is wrong.
    ///
    /// # Errors
    /// What the store says; what is wrong with the log itself is in the answer.
    pub fn audit(&self) -> Result<Audit> {
        let last = self.listed()?.last().copied().max(self.head());
        let (mut audit, mut reader) = (Audit::default(), Reader::default());
        let mut seq = Seq::FIRST;
        loop {
            let read = if last >= Some(seq) { self.read_sure(seq) } else { self.read(seq) };
            match read {
                Ok(Some(entry)) => {
                    audit.records += 1;
                    audit.head = Some(seq);
                    reader.take(&self.root.full_name(&seq.path()), seq, &entry, &mut audit);
                }
                Ok(None) => match last.filter(|last| *last > seq) {
                    Some(later) => reader.miss(
                        seq,
                        CommitError::Incomplete { path: self.root.full_name(&seq.path()), later },
                        &mut audit,
                    ),
                    None => return Ok(audit),
                },
                Err(error @ CommitError::Store(_)) => return Err(error),
                Err(error) => reader.miss(seq, error, &mut audit),
            }
            seq = seq.next();
        }
    }
}

/// Where an audit is.
#[derive(Default)]
struct Reader {
    chain: Chain,
    state: State,
    /// Whether the state lacks a record that could not be read.
    gap: bool,
}

impl Reader {
    fn take(&mut self, name: &str, seq: Seq, entry: &Entry, audit: &mut Audit) {
        let root = self.chain.root;
        if let Err(error) = self.chain.advance(name, seq, &entry.record, entry.digest) {
            audit.findings.push(Finding { seq, error });
            // Whatever comes next is compared with what is here.
            self.chain = Chain { root: root.or(Some(entry.record.root)), last: Some((seq, entry.digest)) };
        }
        match &entry.record.state {
            Some(carried) if self.gap => (self.state, self.gap) = (carried.clone(), false),
            Some(carried) if *carried == self.state => {}
            None if !seq.carries_state() => {}
            _ => {
                let reason =
                    "the state that it carries is not what the records before it amount to".to_owned();
                audit
                    .findings
                    .push(Finding { seq, error: CommitError::Mixed { path: name.to_owned(), reason } });
            }
        }
        if let Err(void) = self.state.apply(&entry.record) {
            audit.voids.push((seq, void));
        }
    }

    fn miss(&mut self, seq: Seq, error: CommitError, audit: &mut Audit) {
        audit.findings.push(Finding { seq, error });
        self.chain.last = None;
        self.gap = true;
    }
}
