//! [`train`]: from a configuration and the ranks that were found to a run.

use super::{
    Job, Observer, Recording, Summary, Terms, device, job::positive, rehearsal, run_rank, run_threads,
};
use crate::{
    Error, Result,
    config::{self, Comm, CommMode, Debug, MessageFault, Resolved, TransportKind, check_world},
    launch,
    rehearsal::Rehearsal,
    torch::memory,
    transport::{self, Fault, Limits, ProcessTransport, Tamper, Transport, gloo, nccl},
};

/// Trains as the configuration says: as one rank of many processes, or as all ranks in this one.
///
/// # Errors
/// Whatever ends the run on this rank.
pub fn train(config: Resolved, ranks: &launch::Ranks, terms: &Terms) -> Result<Summary> {
    if config.config.debug.is_virtual() {
        return Err(Error::config(
            "debug.virtual_device is set: such a run is rehearsed, and trains nothing",
        ));
    }
    // What is wrong with the ranks comes before what is wrong with the data.
    means(&config, ranks, terms)?;
    let job = Job::new(config)?;
    train_observed(&job, ranks, terms, |rank| Ok(Recording::new(&job, rank)))
}

/// Trains as [`train`] does, but tells other observers than the console and the metrics files; `observe` makes that of each rank.
///
/// # Errors
/// As [`train`].
pub fn train_observed<O: Observer>(
    job: &Job,
    ranks: &launch::Ranks,
    terms: &Terms,
    observe: impl Fn(usize) -> Result<O> + Sync,
) -> Result<Summary> {
    let (limits, way) = means(&job.config, ranks, terms)?;
    memory::keep_freed();
    let Some(way) = way else { return run_threads(job, &limits, terms, observe) };
    let transport = join(way, ranks, &limits)?;
    let ended = observe(ranks.rank).and_then(|mut observer| run_rank(job, &transport, &mut observer, terms));
    if let Err(error) = &ended {
        transport.abort(error);
    }
    ended.map_err(|error| error.at(format!("rank {}", ranks.rank)))
}

/// Rehearses what the configuration says on imagined devices: as one rank of many processes, or as all ranks in this one.
///
/// # Errors
/// As [`train`].
pub fn rehearse(config: &Resolved, ranks: &launch::Ranks, terms: &Terms) -> Result<Rehearsal> {
    let (limits, way) = means(config, ranks, terms)?;
    let plan = rehearsal::plan(config)?;
    let Some(way) = way else { return plan.in_threads(&limits) };
    let transport = join(way, ranks, &limits)?;
    let ended = plan.run(&transport).inspect_err(|error| transport.abort(error));
    ended.map_err(|error| error.at(format!("rank {}", ranks.rank)))
}

/// How processes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Gloo,
    Nccl,
}

fn join(way: Way, ranks: &launch::Ranks, limits: &Limits) -> Result<ProcessTransport> {
    let place = place(ranks)?;
    match way {
        Way::Gloo => gloo::rendezvous(&place, limits),
        Way::Nccl => {
            device::check(ranks)?;
            nccl::rendezvous(&place, limits, ranks.local_rank)
        }
    }
}

/// The limits of the transport, and how processes reach each other; none where ranks are threads.
fn means(config: &Resolved, ranks: &launch::Ranks, terms: &Terms) -> Result<(Limits, Option<Way>)> {
    let values = &config.config;
    let (comm, mesh) = (&values.comm, values.parallelism.mesh);
    let limits = limits(comm, &values.debug, terms.restart)?;
    let on_gpu = values.training.device == config::Device::Cuda;
    let way = match comm.transport {
        TransportKind::Gloo => Some(Way::Gloo),
        TransportKind::Nccl => Some(Way::Nccl),
        TransportKind::Auto if on_gpu => Some(Way::Nccl),
        TransportKind::Auto => (ranks.world > 1).then_some(Way::Gloo),
        TransportKind::Local => None,
        TransportKind::Fake => {
            return Err(Error::config(
                "comm.transport=fake: one rank whose peers are imagined trains nothing",
            )
            .hint(
                "`ckpt-train check --rank 0` says what the rank takes; leave comm.transport out to train",
            ));
        }
    };
    if way.is_none() && ranks.world > 1 {
        return Err(Error::config(format!(
            "comm.transport is \"local\", but {} processes were started: each would train by itself",
            ranks.world
        ))
        .hint("start one process, or set comm.transport to \"gloo\""));
    }
    if way.is_some() {
        check_world(mesh, ranks.world)?;
    }
    Ok((limits, way))
}

pub(super) fn limits(comm: &Comm, debug: &Debug, restart: u64) -> Result<Limits> {
    let dump = Some(&comm.dump_folder).filter(|folder| !folder.is_empty()).map(Into::into);
    Ok(Limits {
        start: comm.start_timeout,
        step: comm.step_timeout,
        mode: match comm.mode {
            CommMode::Async => transport::Mode::Async,
            CommMode::Sync => transport::Mode::Sync,
        },
        buffers: positive(comm.buffers, "comm.buffers")?,
        scene_actions: positive(comm.dump_actions, "comm.dump_actions")?,
        dump,
        tamper: tamper(debug)?.filter(|_| restart == 0),
        ..Limits::default()
    })
}

/// The message that goes wrong on purpose, if one does: in the run's first incarnation only.
fn tamper(debug: &Debug) -> Result<Option<Tamper>> {
    let fault = match debug.message_fault {
        MessageFault::None => return Ok(None),
        MessageFault::Drop => Fault::Drop,
        MessageFault::Swap => Fault::Swap,
        MessageFault::Cut => Fault::Cut,
        MessageFault::Shape => Fault::Shape,
        MessageFault::Dtype => Fault::Dtype,
    };
    let rank = usize::try_from(debug.message_rank).map_err(|_| Error::config("debug.message_rank"))?;
    Ok(Some(Tamper { rank, step: debug.message_step, fault }))
}

fn place(ranks: &launch::Ranks) -> Result<transport::Ranks> {
    let (master_addr, master_port) = match &ranks.master {
        Some((address, port)) => (address.clone(), *port),
        None if ranks.world == 1 => ("127.0.0.1".to_owned(), 0),
        None => return Err(Error::config("no MASTER_ADDR and MASTER_PORT say where the ranks meet")),
    };
    Ok(transport::Ranks {
        rank: ranks.rank,
        world: ranks.world,
        master_addr,
        master_port,
        restart: u64::from(ranks.restart),
        hosted: ranks.store_served,
        interface: std::env::var("GLOO_SOCKET_IFNAME").ok().filter(|name| !name.is_empty()),
    })
}
