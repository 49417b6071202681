//! A server in a process of its own. It prints the port that it got, and ends when its standard input does: so it ends also with a test that
//! was killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};

/// Python and Node load a few hundred files, on a machine that compiles something else beside.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    port: u16,
}

impl Process {
    /// Starts it and waits until it prints `port N`.
    pub(crate) fn start(what: &'static str, command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_owned();
        let failed = |why: String| Error::NotStarted { what, program: program.clone().into(), why };
        let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = streams.spawn().map_err(|error| failed(error.to_string()))?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed("it has no streams".to_owned()));
        };
        let (send, lines) = mpsc::channel();
        for stream in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(err)] {
            let send = send.clone();
            // To the end, or the server would wait for a reader of its messages.
            thread::spawn(move || {
                BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
            });
        }
        drop(send);
        let mut process = Self { child, port: 0 };
        let mut said = Vec::new();
        while let Ok(line) = lines.recv_timeout(PATIENCE) {
            if let Some(port) = line.strip_prefix("port ").and_then(|port| port.parse().ok()) {
                process.port = port;
                return Ok(process);
            }
            said.push(line);
        }
        process.end();
        Err(failed(if said.is_empty() { "it printed no port".to_owned() } else { said.join("\n") }))
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Ends it at once, as a machine ends that loses its power.
    pub(crate) fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
