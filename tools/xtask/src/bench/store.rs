//! `cargo xtask bench store`: speed and memory of the native store, beside torch's own save and beside floors on the same data.
//!
//! Method: whoever saves is a process that lives as long as the measurement and holds the same tensors in memory; in a round every
//! way has one turn, alone, each round beginning with another, so that a machine that slows down slows all of them. One round
//! before them does not count. What a turn wrote is removed before the next. A ratio is the median of the ratios within a round.
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
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::Spread;
use crate::error::Error;
use crate::python::{self, Environment};
use crate::{process, repository, test};

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

/// One figure and what it is held against.
#[derive(Debug, Serialize)]
struct Figure {
    what: String,
    unit: &'static str,
    value: Spread,
    /// The target, and whether it is an upper bound.
    target: Option<Target>,
    met: Option<bool>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Target {
    AtMost(f64),
    AtLeast(f64),
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

impl Figure {
    fn new(what: impl Into<String>, unit: &'static str, value: Spread, target: Option<Target>) -> Self {
        let met = target.map(|target| match target {
            Target::AtMost(most) => value.median <= most,
            Target::AtLeast(least) => value.median >= least,
        });
        let figure = Self { what: what.into(), unit, value, target, met };
        figure.print();
        figure
    }

    fn print(&self) {
        let target = match self.target {
            Some(Target::AtMost(most)) => format!("at most {most}"),
            Some(Target::AtLeast(least)) => format!("at least {least}"),
            None => String::new(),
        };
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        println!(
            "  {:<62} {:>9.3} {:<6} ({:.3} to {:.3})  {target} {met}",
            self.what, self.value.median, self.unit, self.value.least, self.value.most
        );
    }
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
        memory: scratch(&options.memory)?,
        disk: scratch(&disk)?,
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

/// An empty folder of our own below this one.
fn scratch(folder: &Path) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder).map_err(Error::path("create", folder))?;
    let folder = fs::canonicalize(folder).map_err(Error::path("find", folder))?;
    let own = folder.join(format!("ckpt-bench-store-{}", std::process::id()));
    fs::create_dir_all(&own).map_err(Error::path("create", &own))?;
    Ok(own)
}

/// Builds our half; where it is.
fn program() -> Result<PathBuf, Error> {
    let mut command =
        test::cargo(&["bench", "--package", "dcp", "--features", "testing", "--bench", "store"]);
    command
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit());
    let output = process::output(&mut command)?;
    if !output.status.success() {
        return Err(process::failed(&command, &output.status.to_string(), "the build failed"));
    }
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let mut built = messages.filter(|message| message["target"]["name"] == "store");
    let path = built.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.ok_or_else(|| process::failed(&command, "no program", "cargo did not say where it built it"))
}

fn ckpt() -> Result<PathBuf, Error> {
    process::run(
        &mut test::cargo(&["build", "--release", "--quiet", "--package", "ckpt"]),
        "the build failed",
    )?;
    Ok(super::target_folder().join("release").join(format!("ckpt{}", std::env::consts::EXE_SUFFIX)))
}

/// Mean number of runnable threads in the last minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
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
        let mut command = self.ours(words);
        let output = process::output(&mut command)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(process::failed(&command, &output.status.to_string(), &said));
        }
        let line = output.stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(line)
            .map_err(|source| Error::Answer { command: process::shown(&command), source })
    }
}

/// An empty folder.
fn fresh(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(Error::path("create", folder))
}

/// A path as text.
fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::Missing {
        what: "a folder whose name is text".to_owned(),
        remedy: format!("choose another than {}", path.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_on_its_own_side_only() {
        let of = |value, target| Figure::new("x", "s", Spread::of([value]), Some(target)).met;
        assert_eq!(of(1.0, Target::AtMost(2.0)), Some(true));
        assert_eq!(of(3.0, Target::AtMost(2.0)), Some(false));
        assert_eq!(of(3.0, Target::AtLeast(2.0)), Some(true));
        assert_eq!(of(1.0, Target::AtLeast(2.0)), Some(false));
        assert_eq!(of(f64::NAN, Target::AtMost(2.0)), Some(false));
    }
}
