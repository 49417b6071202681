//! [`train`]: from a configuration and the ranks that were found to a run.

use super::{Job, Recording, Summary, Terms, run_rank, run_threads};
use crate::{
    Error, Result,
    config::{Comm, Resolved, TransportKind, check_world},
    launch,
    transport::{Limits, Transport, gloo},
};

/// Trains as the configuration says: as one rank of many processes, or as all ranks in this one.
///
/// # Errors
/// Whatever ends the run on this rank.
pub fn train(config: Resolved, ranks: &launch::Ranks, terms: &Terms) -> Result<Summary> {
    let (comm, mesh) = (config.config.comm.clone(), config.config.parallelism.mesh);
    let limits = limits(&comm);
    let gloo = match comm.transport {
        TransportKind::Gloo => true,
        TransportKind::Local => false,
        TransportKind::Auto => ranks.world > 1,
    };
    if !gloo && ranks.world > 1 {
        return Err(Error::config(format!(
            "comm.transport is \"local\", but {} processes were started: each would train by itself",
            ranks.world
        ))
        .hint("start one process, or set comm.transport to \"gloo\""));
    }
    if gloo {
        check_world(mesh, ranks.world)?;
    }
    let job = Job::new(config)?;
    if !gloo {
        return run_threads(&job, &limits, terms, |rank| Ok(Recording::new(&job, rank)));
    }
    let transport = gloo::rendezvous(&place(ranks)?, &limits)?;
    let ended = run_rank(&job, &transport, &mut Recording::new(&job, ranks.rank), terms);
    if let Err(error) = &ended {
        transport.abort(error);
    }
    ended.map_err(|error| error.at(format!("rank {}", ranks.rank)))
}

fn limits(comm: &Comm) -> Limits {
    let dump = Some(&comm.dump_folder).filter(|folder| !folder.is_empty()).map(Into::into);
    Limits { start: comm.start_timeout, step: comm.step_timeout, dump, ..Limits::default() }
}

fn place(ranks: &launch::Ranks) -> Result<gloo::Ranks> {
    let (master_addr, master_port) = match &ranks.master {
        Some((address, port)) => (address.clone(), *port),
        None if ranks.world == 1 => ("127.0.0.1".to_owned(), 0),
        None => return Err(Error::config("no MASTER_ADDR and MASTER_PORT say where the ranks meet")),
    };
    Ok(gloo::Ranks {
        rank: ranks.rank,
        world: ranks.world,
        master_addr,
        master_port,
        restart: u64::from(ranks.restart),
        hosted: ranks.store_served,
        interface: std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty()),
    })
}
