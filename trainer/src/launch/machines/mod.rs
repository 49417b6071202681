//! Several launchers, one on each machine, that form one run. Node 0's listens at an address that all are given, and decides; the
//! others connect to it, say who they are and what they would run, and do what it says.
//!
//! ```text
//!  node 1, 2, …                       node 0
//!  hello (who, what it would run) ──► as ours? its number free?    else ◄── refused (why, what to do)
//!                                     all there: ranks by node, tp groups inside nodes, a store for this incarnation
//!  starts its ranks               ◄── start (first rank, world, restart number, where the store is)
//!  fell (who died, how) / done    ──► the first fall
//!  ends its ranks                 ◄── stop (why)
//!  ended                          ──► all have ended
//!  starts again, or ends          ◄── verdict
//! ```
//!
//! Invariants: no rank of an incarnation starts before every launcher is there, or outlives it anywhere once it is over; the number of
//! restarts is node 0's. A launcher whose connection closes, or that is silent for [`Machines::silence`], is gone: its ranks have ended with
//! it ([`super::guarded`]), or will when it notices. It, or one that is started in its stead, may come back for the next
//! incarnation within [`Machines::wait`]; that takes a restart. What comes in by the port is not believed: lines are bounded, and
//! whoever does not say hello first is not listened to.

mod council;
mod first;
mod hello;
mod link;
mod other;
mod words;

use std::{str::FromStr, time::Duration};

pub(super) use first::First;
pub use hello::Task;
pub(super) use other::Other;

use crate::mesh::MeshShape;

/// One machine of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machines {
    /// Machines of the run.
    pub nodes: usize,
    /// This one, from 0.
    pub node: usize,
    /// Where node 0's launcher listens.
    pub meeting: Meeting,
    /// How long launchers wait for each other to come, or to come back.
    pub wait: Duration,
    /// How long a launcher may be silent before it is taken for gone.
    pub silence: Duration,
    /// The run's name, if one was given: what belongs to another is refused.
    pub run_id: Option<String>,
    /// What is run; the same everywhere.
    pub task: Task,
    /// The mesh of the run, and whether its tensor-parallel groups may reach over several machines; if known.
    pub laid: Option<(MeshShape, bool)>,
}

/// Host and port of node 0's launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// A name or address of node 0 that every machine reaches it by.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for Meeting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not HOST:PORT of node 0, such as node0:29400 or [2001:db8::1]:29400");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || bare.is_none() && host.contains(':') {
            return Err(wrong());
        }
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl std::fmt::Display for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The name that ranks of a machine are given ([`super::NODE`]): launchers tell machines apart even where host names do not.
pub(super) fn machine(node: usize, name: &str) -> String {
    format!("node{node} ({name})")
}

/// `node 1`, `nodes 1, 2 and 5`.
fn named(nodes: &[usize]) -> String {
    let all: Vec<String> = nodes.iter().map(usize::to_string).collect();
    match all.as_slice() {
        [] => "no node".to_owned(),
        [one] => format!("node {one}"),
        [most @ .., last] => format!("nodes {} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meetings_are_a_host_and_a_port() {
        for (text, host, port) in [("node0:29400", "node0", 29_400), ("[::1]:5", "::1", 5)] {
            let meeting: Meeting = text.parse().unwrap();
            assert_eq!(
                (meeting.host.as_str(), meeting.port, meeting.to_string()),
                (host, port, text.to_owned())
            );
        }
        for wrong in ["node0", ":1", "node0:", "node0:0", "node0:70000", "::1:5", "node0:x"] {
            assert!(wrong.parse::<Meeting>().unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
        assert_eq!(named(&[1, 2, 5]), "nodes 1, 2 and 5");
    }
}
