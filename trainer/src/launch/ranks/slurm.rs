//! What only SLURM says, and how: whether this is a task of a step, the tasks of each node, the list of nodes. Pure.

use super::{Get, contradiction, number};
use crate::Result;

/// Step numbers from here on are the batch script itself, an interactive shell, and the like: one process each.
const SPECIAL: u32 = u32::MAX - 10;
/// The step's own list first: a step may run on some of the job's nodes.
const NODES: &[&str] = &["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
const TASKS: &[&str] = &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];
/// Ports of jobs: two jobs on a node are unlikely to have the same.
const PORTS: (u16, u32) = (20_000, 10_000);

/// Whether `srun` started this process as a task of a step. A batch script has all variables but the step's, and is one
/// process, however many tasks it may start.
pub(super) fn is_task(get: Get<'_>) -> bool {
    let step = get("SLURM_STEP_ID").or_else(|| get("SLURM_STEPID"));
    step.and_then(|text| text.trim().parse::<u32>().ok()).is_some_and(|step| step < SPECIAL)
}

/// The tasks of this node, if SLURM says.
pub(super) fn tasks_here(get: Get<'_>) -> Result<Option<usize>> {
    let node = number("SLURM_NODEID", get)?.unwrap_or(0);
    let Some((name, text)) = TASKS.iter().find_map(|name| get(name).map(|text| (*name, text))) else {
        return Ok(None);
    };
    let all = tasks_per_node(&text);
    let all = all.ok_or_else(|| contradiction(format!("{name}={text:?} is no list of tasks per node")))?;
    // SLURM_NTASKS_PER_NODE is one number for all nodes.
    Ok(if name == "SLURM_NTASKS_PER_NODE" { all.first().copied() } else { all.get(node).copied() })
}

/// `2(x3),1` is 2, 2, 2, 1.
fn tasks_per_node(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (tasks, times) = match part.trim().split_once("(x") {
            Some((tasks, times)) => (tasks.trim(), times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1),
        };
        let tasks: usize = tasks.parse().ok()?;
        if times > MOST_NODES {
            return None;
        }
        all.extend(std::iter::repeat_n(tasks, times));
    }
    Some(all)
}

const MOST_NODES: usize = 1 << 20;

/// The first node of the step, which rank 0 runs on.
pub(super) fn first_node(get: Get<'_>) -> Result<Option<String>> {
    let Some((name, text)) = NODES.iter().find_map(|name| get(name).map(|text| (*name, text))) else {
        return Ok(None);
    };
    let first = first_of(&text).filter(|host| !host.is_empty());
    first.map(Some).ok_or_else(|| contradiction(format!("{name}={text:?} is no list of nodes")))
}

/// `gpu[007-012,15]-ib,login` begins with `gpu007-ib`.
fn first_of(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list.trim());
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(rest.get(..end)?);
        if !rest.get(end..)?.starts_with('[') {
            return Some(name);
        }
        let (numbers, after) = rest.get(end + 1..)?.split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        name.push_str(first);
        rest = after;
    }
}

/// A port that all tasks of a job derive alike.
pub(super) fn port(get: Get<'_>) -> Option<u16> {
    let (base, span) = PORTS;
    let id: u32 = get("SLURM_JOB_ID").or_else(|| get("SLURM_JOBID"))?.trim().parse().ok()?;
    base.checked_add(u16::try_from(id % span).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_tasks_are_read() {
        assert_eq!(tasks_per_node("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(tasks_per_node("4").unwrap(), [4]);
        for wrong in ["", "x", "2(x", "2(x3", "2(y3)", "2(x99999999999)", "-1"] {
            assert_eq!(tasks_per_node(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_first_node_of_a_list_is_found() {
        for (list, first) in [
            ("gpu[007-012,15]", "gpu007"),
            ("gpu[3,1]", "gpu3"),
            ("a,b", "a"),
            ("single", "single"),
            ("r[1-2]n[04-08]", "r1n04"),
            ("gpu[1-4]-ib,login", "gpu1-ib"),
        ] {
            assert_eq!(first_of(list).unwrap(), first, "{list}");
        }
        assert_eq!(first_of("gpu[1-2"), None);
        assert_eq!(first_of("gpu[]"), None);
    }

    #[test]
    fn batch_scripts_and_interactive_shells_are_no_tasks() {
        let task = |id: &str| is_task(&|name| (name == "SLURM_STEP_ID").then(|| id.to_owned()));
        assert!(task("0") && task("17"));
        // SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP.
        assert!(!task("4294967291") && !task("4294967290") && !task("batch"));
        assert!(!is_task(&|_| None));
    }
}
