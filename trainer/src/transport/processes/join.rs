//! How ranks find each other: the store at the master's address, who joined, and the first connections.
//!
//! Invariant: either all ranks of this start of the run have joined within the limit, or every one of them errs, and names
//! those who have not.

use std::{
    net::{ToSocketAddrs as _, UdpSocket},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    ProcessTransport,
    carrier::Carrier,
    core::{Core, Parts},
    marks::{Keys, Marks},
};
use crate::{
    Result,
    torch::c10d::{C10dError, Device, Status, Store},
    transport::{
        Limits,
        failure::{Failure, Missing, Outcome, Peer},
        scene::Scene,
    },
};

/// Who a rank is, and where the others are found: what launchers say in `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Host of the store.
    pub master_addr: String,
    /// Port of the store.
    pub master_port: u16,
    /// How often the launcher has started this run before; goes into every key, so that a worker that is left over from
    /// an earlier start can't join this one.
    pub restart: u64,
    /// Whether the launcher serves the store, as `torchrun` and ours do; otherwise rank 0 does.
    pub hosted: bool,
    /// Network interface for the data, such as `eth0`; by default the one that leads to the master.
    pub interface: Option<String>,
}

/// Joins all ranks of a run.
///
/// # Errors
/// `Peer` naming the ranks that did not come within `limits.start`, `Io` for a taken port or an address that nothing
/// answers at.
pub(in crate::transport) fn rendezvous(
    ranks: &Ranks,
    limits: &Limits,
    carrier: Box<dyn Carrier>,
) -> Result<ProcessTransport> {
    Ok(join(ranks, limits, carrier)?)
}

fn join(ranks: &Ranks, limits: &Limits, carrier: Box<dyn Carrier>) -> Outcome<ProcessTransport> {
    if ranks.rank >= ranks.world {
        return Err(Failure::Misuse(format!("rank {} of a world of {}", ranks.rank, ranks.world)));
    }
    let begun = Instant::now();
    let deadline = begun + limits.start;
    let scene = Arc::new(Scene::new(ranks.rank, begun, limits.scene_actions, limits.dump.clone()));
    let store = Arc::new(open(ranks, limits.start)?);
    let keys = Keys { restart: ranks.restart };
    gather(ranks, &store, &keys, limits.start, deadline)?;
    let beating = client(ranks, left(deadline))?;
    let place = (ranks.rank, ranks.world);
    let marks = Marks::new(place, keys, Arc::clone(&store), beating, Arc::clone(&scene), limits.step);
    let core = Rc::new(Core::new(Parts {
        rank: ranks.rank,
        world: ranks.world,
        carrier,
        limits: limits.clone(),
        scene,
        marks,
        store,
        device: device(ranks)?,
        restart: ranks.restart,
        serves: serves(ranks),
    }));
    ProcessTransport::connected(core, left(deadline))
}

const fn serves(ranks: &Ranks) -> bool {
    !ranks.hosted && ranks.rank == 0
}

fn open(ranks: &Ranks, limit: Duration) -> Outcome<Store> {
    if !serves(ranks) {
        return client(ranks, limit);
    }
    let Ranks { master_addr: host, master_port: port, .. } = ranks;
    Store::serve(host, *port, limit).map(|(store, _)| store).map_err(|error| {
        let what = format!("rank 0 can't serve the store at {host}:{port}: {}", error.why);
        let taken = error.why.contains("EADDRINUSE") || error.why.contains("in use");
        let hint = if taken {
            "the port is taken: end the process that holds it, or choose another master port (the same on all ranks)"
        } else {
            "the master address must be one of the host that rank 0 runs on"
        };
        Failure::Address { what, hint }
    })
}

fn client(ranks: &Ranks, limit: Duration) -> Outcome<Store> {
    let Ranks { rank, master_addr: host, master_port: port, .. } = ranks;
    Store::connect(host, *port, limit).map_err(|error| {
        let who = if ranks.hosted { "the launcher" } else { "rank 0" };
        let what = format!(
            "rank {rank} found no store at {host}:{port} within {:.1} s ({who} serves it): {}",
            limit.as_secs_f64(),
            error.why
        );
        Failure::Address {
            what,
            hint: "see that the one who serves the store runs, and that a firewall lets ranks reach it",
        }
    })
}

/// How often a waiting rank looks who is missing.
const LOOK: Duration = Duration::from_secs(1);
/// How long a rank 0 that gives up goes on to serve the store, so that the others find out by themselves who is missing.
const LINGER: Duration = Duration::from_secs(1);

/// Says that this rank is here and waits for the others.
fn gather(ranks: &Ranks, store: &Store, keys: &Keys, limit: Duration, deadline: Instant) -> Outcome<()> {
    let all: Vec<_> = (0..ranks.world).map(|rank| keys.joined(rank)).collect();
    let here = std::process::id().to_string();
    let mut joined = store.set(&keys.joined(ranks.rank), here.as_bytes());
    let mut missing = Missing::default();
    loop {
        joined = joined.and_then(|()| store.wait(&all, left(deadline).min(LOOK)));
        let Err(error) = joined else { return Ok(()) };
        if error.status != Status::Late {
            return Err(parted(ranks, &missing, error));
        }
        let absent = (0..ranks.world).filter(|rank| !store.has(&keys.joined(*rank)).unwrap_or(false));
        missing = Missing(absent.map(|rank| (rank, "has not joined".to_owned())).collect());
        if Instant::now() >= deadline {
            if serves(ranks) {
                thread::sleep(LINGER);
            }
            return Err(Failure::Late { rank: ranks.rank, what: everyone(ranks), limit, missing });
        }
        joined = Ok(());
    }
}

fn everyone(ranks: &Ranks) -> String {
    format!("all {} ranks to join (restart {})", ranks.world, ranks.restart)
}

/// The store is gone: whoever serves it has given up, for want of those who are missing, or died.
fn parted(ranks: &Ranks, missing: &Missing, error: C10dError) -> Failure {
    let (rank, what) = (ranks.rank, everyone(ranks));
    if ranks.hosted || error.status != Status::Network {
        return Failure::Torch { what: format!("rank {rank} waits for {what}"), why: error.why };
    }
    let why = format!("it served the store ({}); missing when last seen: {missing}", error.why);
    Failure::Gone { rank, what, peer: Peer::Rank(0), why }
}

fn device(ranks: &Ranks) -> Outcome<Device> {
    let found = match &ranks.interface {
        Some(name) => Device::for_interface(name),
        None => Device::for_host(&own_address(ranks)),
    };
    found.map_err(|error| Failure::Address {
        what: format!("rank {} has no network device for its data: {}", ranks.rank, error.why),
        hint: "name the interface that the ranks reach each other on",
    })
}

/// The address of this host that leads to the master: loopback for a local one. A connected UDP socket asks the routing
/// table and sends nothing.
fn own_address(ranks: &Ranks) -> String {
    let loopback = || "127.0.0.1".to_owned();
    let target =
        (ranks.master_addr.as_str(), ranks.master_port).to_socket_addrs().ok().and_then(|mut all| all.next());
    let Some(target) = target else { return loopback() };
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket =
        UdpSocket::bind(any).and_then(|socket| socket.connect(target).and_then(|()| socket.local_addr()));
    socket.map_or_else(|_| loopback(), |address| address.ip().to_string())
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}
