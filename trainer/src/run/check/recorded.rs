//! All ranks one after another, the others imagined; then their records are held against each other.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use super::{Checked, Job, Silent, sizes};
use crate::{
    Error, Place, Result,
    config::Resolved,
    metrics,
    run::{Terms, run_rank, start::limits, world::STACK},
    transport::{
        Limits, Traffic, Transport,
        fake::{FakeTransport, Record, Words, prove},
    },
};

/// Runs the first step of `config`, which is [`shrunk`](super::shrunk), on each of its ranks by itself, as many at once as there are
/// processors, and proves that what they did with each other fits together.
///
/// # Errors
/// What a rank refuses; then as [`prove`].
pub fn check(config: Resolved) -> Result<Checked> {
    let (mesh, shrunk, began) = (config.config.parallelism.mesh, sizes(&config), Instant::now());
    let limits = limits(&config.config.comm, &config.config.debug, 0)?;
    let job = Job::new(config)?;
    let words = Arc::new(Words::default());
    let (records, traffic): (Vec<Record>, Vec<Traffic>) = all(&job, &limits, &words)?.into_iter().unzip();
    prove(&records, &words, limits.room())?;
    let (took, memory) = (began.elapsed(), metrics::resident().1);
    Ok(Checked { mesh, shrunk, threads: false, traffic, took, memory })
}

/// The records of all ranks, in order.
fn all(job: &Job, limits: &Limits, words: &Arc<Words>) -> Result<Vec<(Record, Traffic)>> {
    tch::set_num_threads(1);
    let next = AtomicUsize::new(0);
    let some = || -> Result<Vec<(Record, Traffic)>> {
        let mut done = Vec::new();
        loop {
            let rank = next.fetch_add(1, Ordering::Relaxed);
            if rank >= job.ranks() {
                return Ok(done);
            }
            done.push(one(job, rank, limits, words).place(format!("rank {rank}"))?);
        }
    };
    let count = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(job.ranks());
    let mut found = thread::scope(|scope| {
        let start = |_| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, some);
        let threads: Vec<_> = (0..count).map(start).collect();
        let mut found = Vec::new();
        for thread in threads {
            let panicked = |_| Err(Error::internal("a rank panicked"));
            found.extend(thread?.join().unwrap_or_else(panicked)?);
        }
        Ok::<_, Error>(found)
    })?;
    found.sort_by_key(|(record, _)| record.rank());
    Ok(found)
}

fn one(job: &Job, rank: usize, limits: &Limits, words: &Arc<Words>) -> Result<(Record, Traffic)> {
    let transport = FakeTransport::new(rank, job.ranks(), limits.clone(), Arc::clone(words));
    let terms = Terms { stop: Arc::default(), restart: 0 };
    run_rank(job, &transport, &mut Silent, &terms)?;
    Ok((transport.record(), transport.traffic()))
}
