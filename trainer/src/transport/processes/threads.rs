//! Ranks as threads, each with connections of its own: how transports between processes are tested without processes.

use std::{sync::Barrier, thread, time::Duration};

use super::{ProcessTransport, Ranks};
use crate::{Result, torch::c10d::Store, transport::Limits};

pub(in crate::transport) const HOST: &str = "127.0.0.1";

pub(in crate::transport) fn limits(step: Duration) -> Limits {
    Limits { start: Duration::from_secs(60), step, check_purposes: true, ..Limits::default() }
}

pub(in crate::transport) fn ranks(rank: usize, world: usize, port: u16) -> Ranks {
    let master_addr = HOST.to_owned();
    Ranks { rank, world, master_addr, master_port: port, restart: 0, hosted: true, interface: None }
}

/// Serves a store as a launcher does, which is no rank.
pub(in crate::transport) fn served() -> (Store, u16) {
    Store::serve(HOST, 0, Duration::from_secs(30)).unwrap()
}

/// Runs `act` on all ranks, which `join`.
pub(in crate::transport) fn run<T: Send>(
    world: usize,
    join: impl Fn(&Ranks) -> Result<ProcessTransport> + Sync,
    act: impl Fn(&ProcessTransport) -> T + Sync,
) -> Vec<T> {
    let (_store, port) = served();
    // Who leaves before the others have connected is gone for them.
    let (act, join, all) = (&act, &join, &Barrier::new(world));
    thread::scope(|scope| {
        let rank = |rank| {
            move || {
                let joined = join(&ranks(rank, world, port)).unwrap();
                all.wait();
                act(&joined)
            }
        };
        let threads: Vec<_> = (0..world).map(|index| scope.spawn(rank(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
