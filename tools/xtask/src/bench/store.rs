//! `cargo xtask bench store`: speed and memory of the native store, beside torch's own save and beside floors on the same data.
//!
//! Method: whoever saves is a process that lives as long as the measurement and holds the same tensors in memory; in a round every
//! way has one turn, alone, each round beginning with another, so that a machine that slows down slows all of them. One round
//! before them does not count. What a turn wrote is removed before the next; in memory, each is given memory that has just been used
//! (`ground::warm`). A ratio is the median of the ratios within a round.
//!
//! ```text
//!  save     ours (four processes; four threads)   torch (four gloo processes, `dcp.save`)   floor: SHA-256, two messages at once, and
//!                                                                                           plain writes, all cores
//!  on disk  ours (four threads)                   floor: plain writes and fsync
//!  verify   `ckpt verify`'s own loop              floor: reads and SHA-256, two MiB at once, all cores
//!  prints, inspect, log, scale, build             absolute, beside the issue's targets
//! ```
//!
//! Targets are for two cores: fingerprints have two threads, the build two jobs. Whatever else is measured uses all cores that there are,
//! which is said beside it.
//!
//! Our half is `dcp/benches/store`, built optimised; torch's is `tests/python/bench_store.py`.

mod absolute;
mod saves;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;

use super::figure::{Figure, Target};
use super::ground::{answer, ckpt, fresh, load, number, program, scratch, text};
use crate::error::Error;
use crate::python::{self, Environment};
use crate::repository;

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rows to measure, in this order [default: all but the build]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Row>,
    /// A RAM-backed folder
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// A folder on the disk to measure [default: target/bench]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Bytes that are saved; memory for about four times as much is needed, and for once more in the folder
    #[arg(long, default_value = "3", value_name = "GB")]
    gigabytes: String,
    /// Rounds that count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Commits in the log that is opened
    #[arg(long, default_value_t = 10_000)]
    commits: u32,
    /// Print all figures as JSON too, on the last line
    #[arg(long)]
    json: bool,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Row {
    /// Saves into a RAM-backed folder, ours and torch's, and `verify` of ours
    Save,
    /// Saves onto a disk
    Disk,
    /// Fingerprints
    Prints,
    /// `inspect` of 1,000 tensors, and the newest of many commits
    Inspect,
    /// Two million shard records
    Scale,
    /// A cold release build of the default features: minutes
    Build,
}

impl Row {
    const USUAL: [Self; 5] = [Self::Save, Self::Disk, Self::Prints, Self::Inspect, Self::Scale];
}

/// All figures.
#[derive(Debug, Serialize)]
struct Report {
    processors: usize,
    /// Load of the machine as it began, where it is told: others' work makes absolute figures worse, and ratios not.
    load: Option<f64>,
    rounds: u32,
    figures: Vec<Figure>,
}

/// Everything that rows need.
#[derive(Debug)]
struct Bench<'o> {
    options: &'o Options,
    memory: PathBuf,
    disk: PathBuf,
    program: PathBuf,
    ckpt: PathBuf,
    environment: Option<Environment>,
}

/// Measures and prints; an error if a result is wrong, whatever its speed.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let rows = if options.only.is_empty() { &Row::USUAL[..] } else { &options.only };
    let disk = options.disk.clone().unwrap_or_else(|| repository::root().join("target/bench"));
    let bench = Bench {
        options,
        memory: scratch(&options.memory, "store-memory")?,
        disk: scratch(&disk, "store-disk")?,
        program: program()?,
        ckpt: ckpt()?,
        environment: rows.contains(&Row::Save).then(python::environment).transpose()?,
    };
    let load = load();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let said = load.map_or_else(|| "unknown".to_owned(), |load| load.to_string());
    println!("{cores} cores (targets are for two), load of the machine: {said}");
    let measured = rows.iter().map(|row| bench.row(*row)).collect::<Result<Vec<_>, Error>>();
    for folder in [&bench.memory, &bench.disk] {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    let report = Report {
        processors: cores,
        load,
        rounds: options.rounds,
        figures: measured?.into_iter().flatten().collect(),
    };
    if options.json {
        let text = serde_json::to_string(&report);
        println!("{}", text.map_err(|source| Error::Answer { command: "bench store".to_owned(), source })?);
    }
    Ok(())
}

impl Bench<'_> {
    fn row(&self, row: Row) -> Result<Vec<Figure>, Error> {
        match row {
            Row::Save => saves::in_memory(self),
            Row::Disk => saves::on_disk(self),
            Row::Prints => absolute::prints(self),
            Row::Inspect => absolute::inspect(self),
            Row::Scale => absolute::scale(self),
            Row::Build => absolute::build(self),
        }
    }

    fn rounds(&self) -> usize {
        self.options.rounds.max(1) as usize
    }

    /// Our program with these words.
    fn ours(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(repository::root());
        command
    }

    /// The answer of our program.
    fn answer(&self, words: &[&str]) -> Result<serde_json::Value, Error> {
        answer(&self.program, words)
    }
}
