//! Processes: started, watched line by line, and killed with SIGKILL after a while.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::weights::{Outcome, text};

/// Longest time that a process may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a process was when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Before,
    Blobs,
    Parts,
    Manifest,
    Record,
    After,
    Retire,
    Condemn,
    Delete,
}

impl Phase {
    /// The phase that begins with a line.
    fn of(line: &str) -> Option<Self> {
        Some(match line {
            "begin" => Self::Before,
            "wrote" => Self::Blobs,
            "file" => Self::Parts,
            "checked" => Self::Manifest,
            "landed" => Self::Record,
            "committed" | "deleted" => Self::After,
            "retire" => Self::Retire,
            "condemn" => Self::Condemn,
            "delete" => Self::Delete,
            _ => return None,
        })
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Whether it was killed, and had not ended by itself before.
    pub(crate) killed: bool,
    pub(crate) done: bool,
    pub(crate) phase: Phase,
    pub(crate) lines: Vec<String>,
    pub(crate) said: String,
    pub(crate) time: Duration,
}

impl Ended {
    /// Files that it kept of an earlier process's.
    pub(crate) fn kept(&self) -> u64 {
        let kept = self.lines.iter().filter_map(|line| line.strip_prefix("kept ")?.parse::<u64>().ok());
        kept.sum()
    }

    /// An error, unless it ended well.
    pub(crate) fn well(self, what: &str) -> Outcome<Self> {
        if self.done { Ok(self) } else { Err(format!("{what} failed: {}", self.said.trim())) }
    }
}

/// A process that runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: (JoinHandle<()>, JoinHandle<String>),
    began: Instant,
}

/// How processes are started.
#[derive(Debug, Clone)]
pub(crate) struct Starter {
    /// This very program.
    pub(crate) program: PathBuf,
    pub(crate) root: PathBuf,
    /// Longest sleep of a process at a phase, in microseconds.
    pub(crate) sleep: u64,
}

impl Starter {
    /// Starts a task on the root.
    pub(crate) fn task(&self, name: &str, chance: u64, arguments: &[&str]) -> Outcome<Running> {
        let mut command = Command::new(&self.program);
        command.args([
            "killer-child",
            name,
            "--chance",
            &chance.to_string(),
            "--sleep",
            &self.sleep.to_string(),
        ]);
        command.arg("--root").arg(&self.root).args(arguments);
        Running::start(&mut command)
    }

    /// Looks at what is there; `clean` collects and sweeps first.
    pub(crate) fn look(&self, root: &Path, clean: bool) -> Outcome<super::child::Found> {
        let mut command = Command::new(&self.program);
        command.args(["killer-child", "check"]).args(clean.then_some("--clean")).arg("--root").arg(root);
        let ended = Running::start(&mut command)?.ends()?.well("looking at the root")?;
        let line = ended.lines.last().ok_or("nothing was said of the root")?;
        serde_json::from_str(line).map_err(text)
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Outcome<Self> {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(text)?;
        let began = Instant::now();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (out, err) = child.stdout.take().zip(child.stderr.take()).ok_or("no pipes")?;
        let heard = Arc::clone(&lines);
        let listen = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let complain = thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).take(40).collect::<Vec<_>>().join("; ")
        });
        Ok(Self { child, lines, readers: (listen, complain), began })
    }

    /// Waits until it ends.
    pub(crate) fn ends(mut self) -> Outcome<Ended> {
        while self.began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().map_err(text)? {
                return self.ended(status);
            }
            thread::sleep(Duration::from_micros(300));
        }
        let ended = self.kill()?;
        Err(format!("a process did not end within {} s: {}", PATIENCE.as_secs(), ended.said))
    }

    /// Kills it once it has run for so long.
    pub(crate) fn killed_at(self, age: Duration) -> Outcome<Ended> {
        thread::sleep(age.saturating_sub(self.began.elapsed()));
        self.kill()
    }

    fn kill(mut self) -> Outcome<Ended> {
        self.child.kill().map_err(text)?;
        let status = self.child.wait().map_err(text)?;
        self.ended(status)
    }

    fn ended(self, status: ExitStatus) -> Outcome<Ended> {
        let time = self.began.elapsed();
        self.readers.0.join().map_err(|_| "a reader panicked")?;
        let said = self.readers.1.join().map_err(|_| "a reader panicked")?;
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        let phase = lines.iter().rev().find_map(|line| Phase::of(line)).unwrap_or(Phase::Before);
        let killed = status.signal() == Some(9);
        Ok(Ended { killed, done: status.success(), phase, lines, said, time })
    }
}
