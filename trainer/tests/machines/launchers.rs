//! Launchers of one run, each in a folder's own logs, that are watched line by line.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    thread::{self, JoinHandle},
};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_ckpt-train");

/// Where launchers of one test meet.
pub(crate) struct Meeting {
    folder: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) nodes: usize,
}

/// A launcher that runs.
pub(crate) struct Launcher {
    child: Child,
    err: BufReader<ChildStderr>,
    /// Read by a thread, so that the launcher never waits for a reader.
    out: JoinHandle<String>,
    said: String,
}

/// How one ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    /// The code, and words on stderr.
    #[track_caller]
    pub(crate) fn is(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}\n{}", self.err, self.out);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in\n{}", self.err);
        }
    }
}

impl Meeting {
    pub(crate) fn of(nodes: usize) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { folder: tempfile::tempdir().unwrap(), port, nodes }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The options that launchers of all machines share.
    pub(crate) fn command(&self, node: usize) -> Command {
        let mut command = Command::new(EXE);
        for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOG_RANK", "CKPT_NODE"] {
            command.env_remove(name);
        }
        command.current_dir(self.path()).args(["launch", "--nnodes", &self.nodes.to_string()]);
        command.args(["--node-rank", &node.to_string(), "--rdzv", &format!("127.0.0.1:{}", self.port)]);
        command.args(["--logs", &format!("logs{node}")]);
        command
    }

    /// Starts a launcher whose ranks run a shell script.
    pub(crate) fn script(&self, node: usize, options: &[&str], script: &str) -> Launcher {
        let mut command = self.command(node);
        command.args(options).args(["--program", "sh", "--", "-c", script]);
        Launcher::start(command)
    }

    /// What rank `rank` of node `node` printed.
    pub(crate) fn log(&self, node: usize, rank: usize) -> String {
        fs::read_to_string(self.path().join(format!("logs{node}/rank_{rank:05}.log"))).unwrap()
    }
}

impl Launcher {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        let out = child.stdout.take().unwrap();
        Self { child, err, out: thread::spawn(move || collected(out)), said: String::new() }
    }

    /// The next line of its stderr that holds `word`.
    #[track_caller]
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.err.read_line(&mut line).unwrap() > 0, "{word:?} is not in\n{}", self.said);
            self.said.push_str(&line);
            if line.contains(word) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Answer {
        let mut line = String::new();
        while self.err.read_line(&mut line).unwrap() > 0 {
            self.said.push_str(&line);
            line.clear();
        }
        let code = self.child.wait().unwrap().code();
        Answer { code, out: self.out.join().unwrap(), err: self.said }
    }
}

fn collected(out: ChildStdout) -> String {
    let mut text = String::new();
    for line in BufReader::new(out).lines() {
        text += &line.unwrap();
        text.push('\n');
    }
    text
}
