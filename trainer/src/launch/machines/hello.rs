//! What a launcher says about itself, and whether it fits to node 0's: launchers that would start other programs, or other builds of
//! ours, are refused before a rank runs. Pure.

use serde::{Deserialize, Serialize};

use super::{
    Machines,
    words::{Ground, Refusal},
};
use crate::launch::{Plan, nodes};

/// Changes when lines change.
pub(super) const PROTOCOL: u32 = 1;

/// Settings that a message shows before it says how many more there are.
const SHOWN: usize = 6;

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// A program and its arguments.
    Program(Vec<String>),
    /// Training, by these values of the configuration: key and value, in order of keys.
    Training(Vec<(String, String)>),
}

/// A launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) version: String,
    pub(super) nodes: usize,
    pub(super) node: usize,
    /// Ranks that it starts.
    pub(super) ranks: usize,
    pub(super) max_restarts: u32,
    /// The run's name, if one was given.
    pub(super) run_id: Option<String>,
    /// Its machine, for messages.
    pub(super) machine: String,
    pub(super) pid: u32,
    pub(super) task: Task,
}

impl Hello {
    /// What this process says.
    pub(super) fn of(plan: &Plan, machines: &Machines) -> Self {
        Self {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            nodes: machines.nodes,
            node: machines.node,
            ranks: plan.workers,
            max_restarts: plan.max_restarts,
            run_id: machines.run_id.clone(),
            machine: nodes::here(),
            pid: std::process::id(),
            task: machines.task.clone(),
        }
    }

    /// Who this is, for messages.
    pub(super) fn who(&self) -> String {
        format!("node {} ({}, pid {})", self.node, self.machine, self.pid)
    }

    /// Whether `other` may take part in the run that this launcher of node 0 leads.
    pub(super) fn admits(&self, other: &Self) -> Result<(), Refusal> {
        let differs =
            |what: &str, mine: &dyn std::fmt::Display, theirs: &dyn std::fmt::Display, hint: &str| {
                Refusal::new(
                    Ground::Unfit,
                    format!("{}: {what} is {theirs} there, and {mine} on node 0", other.who()),
                    hint,
                )
            };
        let build = "run the same build of ckpt-train on every machine";
        if self.protocol != other.protocol {
            return Err(differs("the launchers' protocol", &self.protocol, &other.protocol, build));
        }
        if self.version != other.version {
            return Err(differs("the version of ckpt-train", &self.version, &other.version, build));
        }
        let same = "give every launcher the same --nnodes, --max-restarts, --run-id and arguments";
        if let (Some(mine), Some(theirs)) = (&self.run_id, &other.run_id)
            && mine != theirs
        {
            return Err(differs(
                "--run-id",
                mine,
                theirs,
                "it belongs to another run: give that one another --rdzv",
            ));
        }
        if self.nodes != other.nodes {
            return Err(differs("--nnodes", &self.nodes, &other.nodes, same));
        }
        if other.node == 0 || other.node >= self.nodes {
            let last = self.nodes.saturating_sub(1);
            let said = format!("{}: --node-rank is none of 1 to {last}", other.who());
            return Err(Refusal::new(Ground::Unfit, said, "number the machines from 0 to --nnodes - 1"));
        }
        if self.max_restarts != other.max_restarts {
            return Err(differs("--max-restarts", &self.max_restarts, &other.max_restarts, same));
        }
        self.task.admits(&other.task).map_err(|said| {
            Refusal::new(
                Ground::Unfit,
                format!("{}: {said}", other.who()),
                "give every launcher the same files and arguments",
            )
        })
    }
}

impl Task {
    fn admits(&self, other: &Self) -> Result<(), String> {
        match (self, other) {
            (Self::Program(mine), Self::Program(theirs)) if mine != theirs => {
                Err(format!("it would run `{}`, and node 0 runs `{}`", theirs.join(" "), mine.join(" ")))
            }
            (Self::Training(mine), Self::Training(theirs)) if mine != theirs => {
                Err(format!("its configuration differs: {}", differences(mine, theirs)))
            }
            (Self::Program(mine), Self::Training(_)) => {
                Err(format!("it would train, and node 0 runs `{}`", mine.join(" ")))
            }
            (Self::Training(_), Self::Program(theirs)) => {
                Err(format!("it would run `{}`, and node 0 trains", theirs.join(" ")))
            }
            _ => Ok(()),
        }
    }
}

/// Which values differ. Both lists come from the same list of keys, in builds of the same version.
fn differences(mine: &[(String, String)], theirs: &[(String, String)]) -> String {
    let value = |of: &[(String, String)], key: &str| {
        of.iter()
            .find(|(name, _)| name == key)
            .map_or_else(|| "not set".to_owned(), |(_, value)| value.clone())
    };
    let mut keys: Vec<&String> = mine.iter().chain(theirs).map(|(key, _)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| value(mine, key) != value(theirs, key));
    let told =
        |key: &&&String| format!("{key} is {} there, and {} on node 0", value(theirs, key), value(mine, key));
    let mut said: Vec<String> = keys.iter().take(SHOWN).map(|key| told(&key)).collect();
    if keys.len() > SHOWN {
        said.push(format!("and {} more", keys.len() - SHOWN));
    }
    said.join("; ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn hello(node: usize) -> Hello {
        let values = [("training.steps", "8"), ("training.seed", "3")];
        Hello {
            protocol: PROTOCOL,
            version: "1.2.3".to_owned(),
            nodes: 3,
            node,
            ranks: 2,
            max_restarts: 1,
            run_id: None,
            machine: format!("host{node}"),
            pid: 7,
            task: Task::Training(values.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()),
        }
    }

    #[test]
    fn launchers_that_would_run_something_else_are_refused_with_what_differs() {
        let first = Hello { run_id: Some("a".to_owned()), ..hello(0) };
        first.admits(&hello(1)).unwrap();
        let other = |change: fn(&mut Hello)| {
            let mut other = hello(1);
            change(&mut other);
            first.admits(&other).unwrap_err().said
        };
        for (said, words) in [
            (other(|it| it.version = "1.2.4".to_owned()), "ckpt-train is 1.2.4 there, and 1.2.3 on node 0"),
            (other(|it| it.protocol = 9), "protocol is 9 there"),
            (other(|it| it.nodes = 2), "--nnodes is 2 there, and 3 on node 0"),
            (other(|it| it.node = 3), "--node-rank is none of 1 to 2"),
            (other(|it| it.node = 0), "--node-rank is none of 1 to 2"),
            (other(|it| it.max_restarts = 2), "--max-restarts is 2 there"),
            (other(|it| it.run_id = Some("b".to_owned())), "--run-id is b there, and a on node 0"),
            (
                other(|it| it.task = Task::Training(vec![("training.steps".to_owned(), "9".to_owned())])),
                "training.seed is not set there, and 3 on node 0; training.steps is 9 there, and 8 on node 0",
            ),
            (
                other(|it| it.task = Task::Program(vec!["sh".to_owned()])),
                "it would run `sh`, and node 0 trains",
            ),
        ] {
            assert!(said.contains(words) && said.starts_with("node "), "{said}");
        }
    }
}
