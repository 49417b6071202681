//! All ranks at once, as threads.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use super::{Checked, Job, Silent, Summary, sizes};
use crate::{
    Result,
    config::Resolved,
    metrics,
    run::{Terms, run_rank, start::limits, world::as_threads},
    transport::{Traffic, Transport},
};

/// A setting for threads beside [`shrunk`](super::shrunk): they meet at one empty store, in `folder`.
#[must_use]
pub fn one_store(folder: &Path) -> String {
    format!("checkpoint.root={}", folder.join("store").display())
}

/// Runs the first step of `config`, which is [`shrunk`](super::shrunk) and has [`one_store`], on all its ranks at once, each a
/// thread.
///
/// # Errors
/// What the first rank that failed says.
pub fn check_in_threads(config: Resolved) -> Result<Checked> {
    let (mesh, shrunk, began) = (config.config.parallelism.mesh, sizes(&config), Instant::now());
    let limits = limits(&config.config.comm, &config.config.debug, 0)?;
    let job = Job::new(config)?;
    let traffic = Mutex::new(vec![Traffic::default(); job.ranks()]);
    let terms = Terms { stop: Arc::default(), restart: 0 };
    let one = |transport: &dyn Transport| -> Result<Summary> {
        let summary = run_rank(&job, transport, &mut Silent, &terms)?;
        let mut all = traffic.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(transport.rank()).into_iter().for_each(|mine| *mine = transport.traffic());
        Ok(summary)
    };
    as_threads(job.ranks(), &limits, &one)?;
    let traffic = traffic.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (took, memory) = (began.elapsed(), metrics::resident().1);
    Ok(Checked { mesh, shrunk, threads: true, traffic, took, memory })
}
