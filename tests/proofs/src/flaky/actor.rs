//! What writers and the collector have in common: a log on a store that fails, and the way from a draft to what became of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use dcp::commit::{Action, CommitError, Committed, Label, Log, LogOptions, Retry, Seq, Void};
use dcp::store::{Root, SeededNonces, StoreError, object_path};

use super::gate::Turn;
use super::naive::{self, Mutation};
use crate::chance::Chance;

pub(super) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How often the same draft is appended before it counts as never resolved.
const PATIENCE: u32 = 2_000;

/// What an actor will swear to.
#[derive(Debug, Default)]
pub(super) struct Testimony {
    /// Records that were acknowledged: run and action.
    pub(super) acknowledged: BTreeMap<String, u64>,
    pub(super) refused: Vec<Refusal>,
    pub(super) unknown: u64,
    pub(super) resolved: u64,
    /// Appends of which it was said that nothing was written, and which were given up.
    pub(super) given_up: u64,
    pub(super) condemned: u64,
    pub(super) fenced: u64,
    pub(super) deleted: u64,
}

/// A record that was refused, at which head, and with which claim.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) head: Option<Seq>,
    pub(super) run: Label,
    pub(super) epoch: Option<u64>,
    pub(super) parent: Option<Seq>,
    pub(super) action: Action,
    pub(super) void: Void,
}

#[derive(Debug)]
pub(super) struct Actor {
    pub(super) turn: Arc<Turn>,
    pub(super) root: Root,
    pub(super) log: Log,
    pub(super) chance: Chance,
    pub(super) said: Testimony,
    mutation: Mutation,
    options: LogOptions,
}

/// What became of a draft.
#[derive(Debug)]
pub(super) enum Settled {
    Landed(Seq),
    /// Nothing was written, and it is not tried again.
    GivenUp,
    Refused(Void),
}

/// How a record is told from others, for counting.
pub(super) fn told(run: &Label, action: &Action) -> String {
    format!("{run} {}", serde_json::to_string(action).unwrap_or_default())
}

impl Actor {
    pub(super) fn new(turn: Arc<Turn>, root: Root, seed: u64, mutation: Mutation) -> Outcome<Self> {
        // More than what is not found by a fault needs, and less than an outage lasts.
        let retry = Retry { tries: 6, ..Retry::default() };
        let options = LogOptions {
            clock: turn.clone(),
            nonces: Arc::new(SeededNonces::new(seed)),
            retry,
            writer: "flaky".to_owned(),
            ..LogOptions::default()
        };
        let log = opened(&root, &options)?;
        let chance = Chance::new(seed, 6);
        Ok(Self { turn, root, log, chance, said: Testimony::default(), mutation, options })
    }

    /// The process is restarted: what it knew of the log is gone.
    pub(super) fn reopen(&mut self) -> Outcome<()> {
        self.log = opened(&self.root, &self.options)?;
        Ok(())
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.chance.below(n) == 0
    }

    /// Appends until it is certain what became of it.
    pub(super) fn settle(
        &mut self,
        run: &Label,
        epoch: Option<u64>,
        parent: Option<Seq>,
        action: Action,
    ) -> Outcome<Settled> {
        let counted = told(run, &action);
        let mut draft = self.log.draft(run, action.clone())?.after(parent);
        if let Some(epoch) = epoch {
            draft = draft.in_epoch(epoch);
        }
        let mut naive =
            naive::Draft::new(self.options.nonces.draw()?, run.clone(), epoch, parent, action.clone());
        let mut doubt = false;
        for _ in 0..PATIENCE {
            let done = match self.mutation {
                Mutation::None => self.log.append(&draft),
                mutation => naive.append(&mut self.log, mutation, &*self.turn),
            };
            match done {
                Ok(Committed { seq, .. }) => {
                    *self.said.acknowledged.entry(counted).or_default() += 1;
                    self.said.resolved += u64::from(doubt);
                    return Ok(Settled::Landed(seq));
                }
                Err(CommitError::Unknown { .. }) => {
                    self.said.unknown += u64::from(!doubt);
                    doubt = true;
                }
                Err(CommitError::Store(error)) => {
                    if matches!(error, StoreError::NotDurable { .. }) {
                        return Err(error.into());
                    }
                    if self.mutation == Mutation::DeleteOnUnknown || self.one_in(3) {
                        self.said.given_up += 1;
                        return Ok(Settled::GivenUp);
                    }
                }
                Err(CommitError::Rejected { void }) => {
                    self.said.resolved += u64::from(doubt);
                    let (head, run) = (self.log.head(), run.clone());
                    let refusal = Refusal { head, run, epoch, parent, action, void: void.clone() };
                    self.said.refused.push(refusal);
                    return Ok(Settled::Refused(void));
                }
                Err(error) => return Err(error.into()),
            }
            self.turn.wait(self.chance.below(6));
        }
        Err(format!("{counted}: not settled after {PATIENCE} tries").into())
    }

    /// Puts an object of a checkpoint, however often it takes.
    pub(super) fn put_data(&mut self, dir: &str, bytes: &Bytes) -> Outcome<()> {
        let path = object_path(&format!("{dir}/data"))?;
        for _ in 0..PATIENCE {
            match self.root.put_same(&path, bytes.clone()) {
                Ok(()) => return Ok(()),
                Err(StoreError::AlreadyExists { .. }) if !self.there(dir) => {}
                Err(StoreError::Io { .. } | StoreError::NotFound { .. } | StoreError::OutOfRange { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(format!("{path}: not put after {PATIENCE} tries").into())
    }

    fn there(&self, dir: &str) -> bool {
        object_path(&format!("{dir}/data")).is_ok_and(|path| self.root.head(&path).is_ok())
    }

    /// Asks until the store answers.
    pub(super) fn sure<T>(&self, ask: impl Fn(&Self) -> Result<T, CommitError>) -> Outcome<T> {
        for _ in 0..PATIENCE {
            match ask(self) {
                Ok(answer) => return Ok(answer),
                Err(CommitError::Store(_)) => self.turn.wait(1),
                Err(error) => return Err(error.into()),
            }
        }
        Err("the store never answered".into())
    }
}

fn opened(root: &Root, options: &LogOptions) -> Outcome<Log> {
    for _ in 0..PATIENCE {
        match Log::open_with(root, options.clone()) {
            Ok(log) => return Ok(log),
            Err(CommitError::Store(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err("the log could never be opened".into())
}
