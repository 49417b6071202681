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
        self.ask(job)?;
        self.hear()
    }

    /// Tells it to do a job; [`Served::hear`] waits for its answer.
    pub(super) fn ask(&mut self, job: &str) -> Result<(), Error> {
        match self.ask.as_mut().map(|ask| writeln!(ask, "{job}").and_then(|()| ask.flush())) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Its answer to the job that it was told to do.
    pub(super) fn hear(&mut self) -> Result<A, Error> {
        let mut line = String::new();
        if !matches!(self.hear.read_line(&mut line), Ok(1..)) {
            return Err(self.ended());
        }
        serde_json::from_str(&line)
            .map_err(|source| Error::Answer { command: process::shown(&self.command), source })
    }

    fn ended(&mut self) -> Error {
        // It may be stuck with its output closed: nothing more is asked of it.
        self.dismiss();
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        self.failed(&status, "see its own message above")
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

impl<A> Served<A> {
    /// Tells it that no job will come any more, without waiting for its end.
    pub(super) fn dismiss(&mut self) {
        drop(self.ask.take());
    }
}

impl<A> Drop for Served<A> {
    fn drop(&mut self) {
        self.dismiss();
        // It has nothing left to say, and its failure would have been seen in its turn.
        let _ = self.child.wait();
    }
}
