//! `ckpt-train` as a user calls it: with the demo's configuration and a few values that win over it; watched while it runs,
//! so that something can be done to it at the right moment.
//!
//! Invariant: a program that does not do what it is waited for is ended after [`PATIENCE`], and its check fails.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::workplace::{Answer, TRAINER, Workplace};

/// The configuration of all runs.
const CONFIG: &str = include_str!("train/demo.toml");

/// How long anything may take, on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Ends of the losses and of the log of consumed samples of a run, in its folder of metrics.
pub(super) const LOSSES: &str = "rank_00000.jsonl";
pub(super) const SAMPLES: &str = "samples.jsonl";

/// A run: its store and its metrics are in `train/`, under its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run(pub(super) &'static str);

impl Run {
    /// Its store.
    pub(super) fn store(self) -> String {
        format!("{TRAINER}/{}", self.0)
    }

    /// Folder of its metrics.
    pub(super) fn metrics(self) -> String {
        format!("{TRAINER}/{}-metrics", self.0)
    }

    /// One of the files there.
    pub(super) fn file(self, name: &str) -> String {
        format!("{}/{name}", self.metrics())
    }
}

/// A process that is watched.
#[derive(Debug)]
pub(super) struct Watched {
    /// None, if it could not be started.
    child: Option<Child>,
    lines: Receiver<Line>,
    said: Answer,
    until: Instant,
}

/// A line of a stream.
#[derive(Debug)]
enum Line {
    Out(String),
    Err(String),
}

impl Workplace {
    /// Writes the configuration that all runs share.
    pub(super) fn configure(&self) -> std::io::Result<()> {
        let folder = self.folder.join(TRAINER);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("demo.toml"), CONFIG)
    }

    /// `ckpt-train train` in one process, to its end.
    pub(super) fn train(&self, run: Run, settings: &[&str]) -> Answer {
        self.watch(&["train"], &self.settings(run, settings)).end()
    }

    /// `ckpt-train launch`, begun.
    pub(super) fn launch(&self, options: &[&str], run: Run, settings: &[&str]) -> Watched {
        let logs = format!("{TRAINER}/{}-logs", run.0);
        let options = [&["launch", "--logs", logs.as_str()], options, &["--"]].concat();
        self.watch(&options, &self.settings(run, settings))
    }

    /// `ckpt-train train` in two processes that torch's own launcher starts, to their end.
    pub(super) fn torchrun(&self, run: Run, settings: &[&str]) -> Answer {
        let settings = self.settings(run, settings);
        println!("$ torchrun --no-python --nproc-per-node=2 ckpt-train train {}", settings.join(" "));
        let mut command = self.interpreter();
        command.args(["-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2"]);
        command.arg(self.program("ckpt-train").get_program()).arg("train").args(settings);
        Watched::start(command.current_dir(&self.folder)).end()
    }

    /// `ckpt-train stages`: writes the names of the unsplit model, and says where.
    pub(super) fn baseline(&self, run: Run, settings: &[&str]) -> (Answer, String) {
        let names = format!("{TRAINER}/names.json");
        let arguments = ["stages", "--baseline", names.as_str()];
        (self.watch(&arguments, &self.settings(run, settings)).end(), names)
    }

    /// Another verb of `ckpt-train`.
    pub(super) fn ckpt_train(&self, arguments: &[&str]) -> Answer {
        self.watch(arguments, &[]).end()
    }

    fn settings(&self, run: Run, settings: &[&str]) -> Vec<String> {
        let fixed = [
            format!("--config={TRAINER}/demo.toml"),
            format!("--data.folder={}", self.texts().display()),
            format!("--checkpoint.root={}", run.store()),
            format!("--metrics.folder={}", run.metrics()),
            format!("--comm.dump_folder={TRAINER}/dumps"),
        ];
        let more = settings.iter().map(|setting| format!("--{setting}"));
        fixed.into_iter().chain(more).collect()
    }

    fn watch(&self, arguments: &[&str], settings: &[String]) -> Watched {
        let shown: Vec<&str> = settings.iter().map(String::as_str).collect();
        println!("$ ckpt-train {}", [arguments, &shown].concat().join(" "));
        let mut command = self.program("ckpt-train");
        command.args(arguments).args(settings).current_dir(&self.folder);
        Watched::start(&mut command)
    }
}

impl Watched {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (sender, lines) = mpsc::channel();
        let mut said = Answer { code: -1, out: String::new(), err: String::new() };
        let mut child = match command.spawn() {
            Ok(child) => Some(child),
            Err(error) => {
                said.err = format!("cannot be started: {error}");
                None
            }
        };
        if let Some(out) = child.as_mut().and_then(|child| child.stdout.take()) {
            copy(out, sender.clone(), Line::Out);
        }
        if let Some(err) = child.as_mut().and_then(|child| child.stderr.take()) {
            copy(err, sender, Line::Err);
        }
        Self { child, lines, said, until: Instant::now() + PATIENCE }
    }

    /// The next line that is wanted; none if the program ends or takes too long.
    pub(super) fn line(&mut self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        while let Some(line) = self.next() {
            if wanted(&line) {
                return Some(line);
            }
        }
        None
    }

    /// Shows a line and keeps it.
    fn next(&mut self) -> Option<String> {
        let line = match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                self.give_up();
                return None;
            }
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let (to, line) = match line {
            Line::Out(line) => (&mut self.said.out, line),
            Line::Err(line) => (&mut self.said.err, line),
        };
        println!("  {line}");
        to.push_str(&line);
        to.push('\n');
        Some(line)
    }

    fn give_up(&mut self) {
        self.said.err.push_str(&format!("ended by the demo after {} s\n", PATIENCE.as_secs()));
        if let Some(child) = &mut self.child {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
        }
    }

    /// Asks the program itself to end.
    pub(super) fn terminate(&self) -> bool {
        self.child.as_ref().is_some_and(|child| signal("TERM", &child.id().to_string()))
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> Answer {
        while self.next().is_some() {}
        if let Some(status) = self.child.take().and_then(|mut child| child.wait().ok()) {
            self.said.code = status.code().unwrap_or(-1);
        }
        self.said.clone()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn copy(stream: impl Read + Send + 'static, to: Sender<Line>, kind: fn(String) -> Line) {
    thread::spawn(move || {
        let lines = BufReader::new(stream).split(b'\n').map_while(Result::ok);
        // Whoever waits may have gone.
        let _ = lines
            .map(|line| kind(String::from_utf8_lossy(&line).into_owned()))
            .try_for_each(|line| to.send(line));
    });
}

/// Sends a signal, as a user does.
pub(super) fn signal(name: &str, pid: &str) -> bool {
    println!("$ kill -{name} {pid}");
    Command::new("kill").args([&format!("-{name}"), pid]).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Watched {
        Watched::start(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn a_program_is_watched_line_by_line_and_can_be_asked_to_end() {
        let mut watched = sh(
            "echo one; echo two >&2; trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done",
        );
        assert_eq!(watched.line(|line| line.starts_with("re")).as_deref(), Some("ready"));
        assert!(watched.terminate());
        let answer = watched.end();
        assert_eq!((answer.code, answer.err.as_str()), (7, "two\n"));
        assert_eq!(answer.out, "one\nready\ncaught\n");
    }

    #[test]
    fn a_line_that_never_comes_is_not_waited_for_when_the_program_has_ended() {
        let mut watched = sh("echo one");
        assert_eq!(watched.line(|line| line == "two"), None);
        assert_eq!(watched.end().code, 0);
    }

    #[test]
    fn the_readme_shows_the_configuration_of_the_demo() {
        let readme = std::fs::read_to_string(crate::repository::root().join("README.md")).unwrap();
        let shown = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        for line in CONFIG.lines().filter(|line| !line.starts_with('#')) {
            assert!(shown.lines().any(|other| other == line), "{line}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let answer = Watched::start(&mut Command::new("no-such-program-of-ours")).end();
        assert!(answer.code == -1 && answer.err.starts_with("cannot be started"), "{answer:?}");
    }
}
