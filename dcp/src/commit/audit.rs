//! Reading the whole log: every record, the chain between them, and what the carried states and the head hint claim.

use super::chain::Chain;
use super::error::{CommitError, Result};
use super::hint::{self, Found, Hint};
use super::log::{Entry, Log, LogOptions};
use super::seq::Seq;
use super::state::{State, Void};
use crate::store::Root;

/// Missing records in a row that are told one by one.
const HOLE: u64 = 64;

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
    /// What the head hint is worth.
    pub hint: HintCheck,
}

/// What a head hint is worth. A wrong one harms nobody, so it is no finding.
#[derive(Debug, Default)]
pub enum HintCheck {
    /// There is none.
    #[default]
    Missing,
    /// It says what the log says, up to this record.
    Good(Seq),
    /// It is wrong.
    Bad(CommitError),
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
    /// As [`Log::audit`], of a root whose log may be too damaged to be opened.
    ///
    /// # Errors
    /// As [`Log::audit`].
    pub fn audit_at(root: &Root, options: LogOptions) -> Result<Audit> {
        Self::empty(root, options).audit()
    }

    /// Reads all records, and goes on after what is wrong.
    ///
    /// # Errors
    /// What the store says; what is wrong with the log itself is in the answer.
    pub fn audit(&self) -> Result<Audit> {
        let listed = self.listed()?;
        // Read before the log, so that it cannot be ahead of it.
        let hint = hint::read(&self.root)?;
        let mut reader = Reader { hint: Hinted::of(hint), ..Reader::default() };
        let mut audit = self.audit_records(&listed, &mut reader)?;
        let path = self.root.full_name(&hint::path());
        audit.hint = reader.hint.concluded(audit.head, path);
        Ok(audit)
    }

    fn audit_records(&self, listed: &[Seq], reader: &mut Reader) -> Result<Audit> {
        let last = listed.last().copied().max(self.head());
        let (mut audit, mut seq) = (Audit::default(), Seq::FIRST);
        // A store may take a while to show a record. It is given that once: with many missing, each would wait in vain.
        let mut waited = false;
        loop {
            let read = if last >= Some(seq) && !waited { self.read_sure(seq) } else { self.read(seq) };
            waited |= matches!(read, Ok(None));
            match read {
                Ok(Some(entry)) => {
                    audit.records += 1;
                    audit.head = Some(seq);
                    reader.take(&self.root.full_name(&seq.path()), seq, &entry, &mut audit);
                }
                Ok(None) => match last.filter(|last| *last > seq) {
                    Some(later) => {
                        let path = self.root.full_name(&seq.path());
                        reader.miss(seq, CommitError::Incomplete { path, later }, &mut audit);
                        // A name may be any number: a wide hole is told once, not number by number.
                        let next = listed.iter().find(|listed| **listed > seq).copied().unwrap_or(later);
                        if next.get() - seq.get() > HOLE {
                            seq = next;
                            continue;
                        }
                    }
                    None => return Ok(audit),
                },
                Err(error @ CommitError::Store(_)) => return Err(error),
                Err(error) => reader.miss(seq, error, &mut audit),
            }
            // The name of a record may be the last number that there is.
            if seq.next() == seq {
                return Ok(audit);
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
    hint: Hinted,
}

/// The head hint, before its record has come and after.
#[derive(Default)]
enum Hinted {
    #[default]
    Nothing,
    Waiting(Box<Hint>),
    Good(Seq),
    Bad(String),
}

impl Hinted {
    fn of(found: Found) -> Self {
        match found {
            Found::Hint(hint) => Self::Waiting(hint),
            Found::Nothing => Self::Nothing,
            Found::Unreadable(reason) => Self::Bad(reason),
        }
    }

    /// Compares it with its record, and with what all records up to that one amount to; unless that is not known.
    fn meet(&mut self, seq: Seq, entry: &Entry, state: Option<&State>) {
        let Self::Waiting(hint) = self else { return };
        if hint.seq != seq {
            return;
        }
        let bad = |reason: &str| Self::Bad(reason.to_owned());
        *self = match state {
            _ if !hint.is_of(entry) => bad("it was made after another record than the one of its number"),
            Some(state) if hint.state != *state => {
                bad("its state is not what the records up to its own amount to")
            }
            _ => Self::Good(seq),
        };
    }

    fn concluded(self, head: Option<Seq>, path: String) -> HintCheck {
        match self {
            Self::Nothing => HintCheck::Missing,
            Self::Good(seq) => HintCheck::Good(seq),
            Self::Bad(reason) => HintCheck::Bad(CommitError::BadHint { path, reason }),
            Self::Waiting(hint) => {
                let end =
                    head.map_or_else(|| "is empty".to_owned(), |head| format!("ends with record {head}"));
                let reason = format!("it names record {}, and the log {end}", hint.seq);
                HintCheck::Bad(CommitError::BadHint { path, reason })
            }
        }
    }
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
        self.hint.meet(seq, entry, (!self.gap).then_some(&self.state));
    }

    fn miss(&mut self, seq: Seq, error: CommitError, audit: &mut Audit) {
        audit.findings.push(Finding { seq, error });
        self.chain.last = None;
        self.gap = true;
    }
}
