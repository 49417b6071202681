//! The ranks of a run: threads of this process, or this process among others.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::{Job, Observer, Summary, rank::Rank};
use crate::{
    Error, ErrorKind, Result,
    metrics::{SystemClock, Watch, Watched},
    transport::{Limits, Transport, local},
};

/// Stack of a rank's thread: backward walks the graph of a part, and libtorch's frames are large.
pub(in crate::run) const STACK: usize = 8 << 20;

/// What a rank is told beside its job.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Set by whoever wants the run to end: it saves, and stops.
    pub stop: Arc<AtomicBool>,
    /// How often the run was started again by its launcher.
    pub restart: u64,
}

/// Runs one rank: the calling thread, from its groups to its last save.
///
/// # Errors
/// Whatever ends the run on this rank.
pub fn run_rank(
    job: &Job,
    transport: &dyn Transport,
    observer: &mut dyn Observer,
    terms: &Terms,
) -> Result<Summary> {
    // Products must have the same bits on every machine, and ranks share the cores.
    tch::set_num_threads(1);
    transport.starting(true);
    let watch = Rc::new(Watch::new(&SystemClock));
    let watched = Watched::new(transport, Rc::clone(&watch));
    Rank::begin(job, &watched, observer, terms, watch)?.train()
}

/// Runs all ranks as threads of this process; `observe` makes each rank's observer, in its thread. Gives rank 0's summary.
///
/// # Errors
/// The failure of the rank that failed first, as far as that is known: others fail because of it.
pub fn run_threads<O: Observer>(
    job: &Job,
    limits: &Limits,
    terms: &Terms,
    observe: impl Fn(usize) -> Result<O> + Sync,
) -> Result<Summary> {
    as_threads(job.ranks(), limits, &|transport| {
        run_rank(job, transport, &mut observe(transport.rank())?, terms)
    })
}

/// Runs `act` on all ranks, each a thread of this process with a transport of its own. Gives rank 0's summary.
///
/// # Errors
/// As [`run_threads`].
pub(super) fn as_threads(
    ranks: usize,
    limits: &Limits,
    act: &(dyn Fn(&dyn Transport) -> Result<Summary> + Sync),
) -> Result<Summary> {
    tch::set_num_threads(1);
    let failed_before = AtomicBool::new(false);
    let one = |transport: local::LocalTransport| -> Result<Summary, (bool, Error)> {
        let rank = transport.rank();
        act(&transport).map_err(|error| {
            let first = !failed_before.swap(true, Ordering::SeqCst);
            transport.abort(&error.to_string());
            (first, error.at(format!("rank {rank}")))
        })
    };
    let ended: Vec<Result<Summary, (bool, Error)>> = thread::scope(|scope| {
        let threads: Vec<_> = local::World::new(ranks, limits.clone())
            .into_iter()
            .map(|transport| {
                let name = format!("rank-{}", transport.rank());
                thread::Builder::new().name(name).stack_size(STACK).spawn_scoped(scope, || one(transport))
            })
            .collect();
        threads.into_iter().map(|started| ended(started.map(thread::ScopedJoinHandle::join))).collect()
    });
    verdict(ended)
}

type Joined = std::io::Result<thread::Result<Result<Summary, (bool, Error)>>>;

fn ended(joined: Joined) -> Result<Summary, (bool, Error)> {
    match joined {
        Ok(Ok(ended)) => ended,
        Ok(Err(_)) => Err((true, Error::internal("a rank panicked"))),
        Err(error) => Err((true, Error::from(error))),
    }
}

fn verdict(ended: Vec<Result<Summary, (bool, Error)>>) -> Result<Summary> {
    let mut summary = None;
    let mut failure: Option<(bool, Error)> = None;
    for end in ended {
        match end {
            Ok(done) => summary = summary.or(Some(done)),
            Err((first, error)) => {
                // A rank that stopped for another one may have returned before it.
                let weight = |first: bool, error: &Error| (error.kind() != ErrorKind::Peer, first);
                let known = failure.as_ref().map(|(first, error)| weight(*first, error));
                if known < Some(weight(first, &error)) {
                    failure = Some((first, error));
                }
            }
        }
    }
    match (failure, summary) {
        (Some((_, error)), _) => Err(error),
        (None, Some(summary)) => Ok(summary),
        (None, None) => Err(Error::internal("a run without ranks")),
    }
}
