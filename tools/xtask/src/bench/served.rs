//! A process that does a job whenever a line tells it to, and says how long it took.

use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::process;

/// The process, which answers `A` to each job. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Served<A> {
    command: Command,
    child: Child,
    ask: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
    answers: PhantomData<fn() -> A>,
}

impl<A: DeserializeOwned> Served<A> {
    pub(super) fn start(mut command: Command) -> Result<Self, Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|source| Error::Start { command: process::shown(&command), source })?;
        let missing = || Error::Missing { what: "a pipe".to_owned(), remedy: "try again".to_owned() };
        let (ask, hear) = (child.stdin.take(), child.stdout.take().ok_or_else(missing)?);
        Ok(Self { command, child, ask, hear: BufReader::new(hear), answers: PhantomData })
    }

    /// Has it do a job.
    pub(super) fn go(&mut self, job: &str) -> Result<A, Error> {
        let asked = self.ask.as_mut().map(|ask| writeln!(ask, "{job}").and_then(|()| ask.flush()));
        let mut line = String::new();
        let heard = self.hear.read_line(&mut line);
        if !matches!((asked, heard), (Some(Ok(())), Ok(1..))) {
            let status =
                self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            return Err(self.failed(&status, "see its own message above"));
        }
        serde_json::from_str(&line)
            .map_err(|source| Error::Answer { command: process::shown(&self.command), source })
    }

    /// The number of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The error for a process that does not do as it should.
    pub(super) fn failed(&self, status: &str, advice: &str) -> Error {
        process::failed(&self.command, status, advice)
    }
}

impl<A> Drop for Served<A> {
    fn drop(&mut self) {
        drop(self.ask.take());
        // It has nothing left to say, and its failure would have been seen in its turn.
        let _ = self.child.wait();
    }
}
