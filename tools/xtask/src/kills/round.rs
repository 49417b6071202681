//! One launch, until somebody of it is killed and nobody of it is left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::children;
use super::plan::{From, Round, Victim};
use crate::error::Error;

/// How long a launch may take to its first step, and to its end after a kill, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(4);

/// A launcher and its ranks.
#[derive(Debug)]
pub(super) struct Launch {
    child: Child,
    said: PathBuf,
}

/// What came of a round.
#[derive(Debug)]
pub(super) enum Killed {
    /// The launch ended by itself: what it said last.
    Nobody(String),
    /// Somebody was, and nobody is left.
    Somebody {
        /// Whether it was the launcher.
        launcher: bool,
        /// Whether this incarnation had made a step.
        trained: bool,
    },
    /// These processes are still there.
    Left(Vec<u32>),
}

impl Launch {
    pub(super) fn start(mut command: Command, folder: &Path) -> Result<Self, Error> {
        let said = folder.join("said.txt");
        let file = File::create(&said).map_err(Error::path("write", &said))?;
        let out = file.try_clone().map_err(Error::path("write", &said))?;
        command.current_dir(folder).stdin(Stdio::null()).stdout(out).stderr(file);
        let shown = crate::process::shown(&command);
        let child = command.spawn().map_err(|source| Error::Start { command: shown, source })?;
        Ok(Self { child, said })
    }

    /// Waits for the moment, kills the victim, and waits until all processes are gone.
    pub(super) fn kill(mut self, round: &Round) -> Result<Killed, Error> {
        let begun = Instant::now();
        while round.from == From::FirstStep && !self.has_trained() {
            if self.is_over() || begun.elapsed() > PATIENCE {
                self.end();
                return Ok(Killed::Nobody(self.last_line()));
            }
            thread::sleep(POLL);
        }
        thread::sleep(round.after);
        let (launcher, ranks) = (self.child.id(), self.ranks(begun));
        let victim = match round.victim {
            Victim::Launcher => Some(launcher),
            Victim::Rank(at) => ranks.get(at as usize % ranks.len().max(1)).copied(),
        };
        let trained = self.has_trained();
        let Some(victim) = victim.filter(|pid| !self.is_over() && kill(*pid)) else {
            self.end();
            return Ok(Killed::Nobody(self.last_line()));
        };
        // Whatever the launcher started in the meantime is its own to end.
        let left = self.leftover(&ranks);
        if !left.is_empty() {
            left.iter().for_each(|pid| _ = kill(*pid));
            self.end();
            return Ok(Killed::Left(left));
        }
        Ok(Killed::Somebody { launcher: victim == launcher, trained })
    }

    /// The ranks, once there are any.
    fn ranks(&mut self, begun: Instant) -> Vec<u32> {
        loop {
            let found = children(self.child.id());
            if !found.is_empty() || self.is_over() || begun.elapsed() > PATIENCE {
                return found;
            }
            thread::sleep(POLL);
        }
    }

    fn leftover(&mut self, ranks: &[u32]) -> Vec<u32> {
        let until = Instant::now() + PATIENCE;
        loop {
            let over = self.is_over();
            let mut left: Vec<u32> = ranks.iter().copied().filter(|pid| runs(*pid)).collect();
            left.extend((!over).then_some(self.child.id()));
            if left.is_empty() || Instant::now() > until {
                return left;
            }
            thread::sleep(POLL);
        }
    }

    fn has_trained(&self) -> bool {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        said.lines().any(|line| line.split_whitespace().any(|word| word == "loss"))
    }

    fn last_line(&self) -> String {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        said.lines().last().unwrap_or("nothing was said").to_owned()
    }

    fn is_over(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether it is there, and no zombie.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn kill(pid: u32) -> bool {
    Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|it| it.success())
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::*;

    fn sh(script: &str, folder: &Path) -> Launch {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Launch::start(command, folder).unwrap()
    }

    fn round(victim: Victim) -> Round {
        let mut round = Plan::new(1).round();
        (round.victim, round.after, round.from) = (victim, Duration::from_millis(30), From::FirstStep);
        round
    }

    #[test]
    fn a_rank_is_killed_after_the_first_step_and_its_launcher_ends() {
        let folder = tempfile::tempdir().unwrap();
        let launch = sh("sleep 60 & echo 'step 1 loss 5.0' >&2; wait", folder.path());
        let killed = launch.kill(&round(Victim::Rank(0))).unwrap();
        assert!(matches!(killed, Killed::Somebody { launcher: false, trained: true }), "{killed:?}");
    }

    #[test]
    fn a_launch_that_ends_by_itself_has_killed_nobody_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let killed = sh("echo refused >&2", folder.path()).kill(&round(Victim::Launcher)).unwrap();
        assert!(matches!(&killed, Killed::Nobody(said) if said == "refused"), "{killed:?}");
    }
}
