//! `cargo xtask bench reshard`: a checkpoint on another mesh, beside torch doing the same, and beside floors.
//!
//! The state is that of `tests/python/bench_reshard.py`: f32, the tensors of a model of the 1B class with both moments, from `dp2,tp2` (rows
//! by columns) to `dp4` (rows). Method: one round that does not count, in which results are compared; then rounds in which every way
//! has one turn, alone, each round beginning with another. What a round wrote is removed before the next. In memory, every turn is given
//! memory that has just been used (`ground::warm`; torch's ranks do that themselves, when they have started). A ratio is the median of
//! the ratios within a round.
//!
//! ```text
//!  memory   `ckpt reshard`, start-up included    torch: load under the new mesh, save    floor: read, two SHA-256, write; all cores
//!  bounds   the same with --max-memory 256 MiB, 512 MiB, 2 GiB: the process's peak
//!  disk     `ckpt reshard`, durable              floor: cat, then sync
//!  share    one of four ranks takes columns: bytes read, alone and by blocks
//! ```
//!
//! Torch checks nothing of what it reads and computes no digest of what it writes. The job is compared as whoever waits for it meets it: whole
//! process beside whole processes. Beside it stands torch's time between its barriers, without start-up and imports, which has no
//! target: three times that can be faster than the floor, which hashes. Planning large meshes is in `reshard`'s own benchmark
//! (`cargo bench -p reshard`), the floor's and the share's programs in `dcp/benches/store`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::figure::{Figure, Target};
use super::ground::{ckpt, fresh, load, number, program, scratch, text, warm};
use super::measurement::{Measured, Spread, mebibytes};
use super::rounds::Runs;
use crate::error::Error;
use crate::python::{self, Environment};
use crate::{process, repository};

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rows to measure, in this order [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Row>,
    /// A RAM-backed folder; four times the checkpoint must fit
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// A folder on the disk to measure [default: target/bench]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Size of the checkpoint
    #[arg(long, default_value = "3", value_name = "GB")]
    gigabytes: String,
    /// Rounds that count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Print all figures as JSON too, on the last line
    #[arg(long)]
    json: bool,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Row {
    /// In a RAM-backed folder: ours, torch's, and a floor
    Memory,
    /// Peak memory under three bounds
    Bounds,
    /// What one rank reads that takes columns
    Share,
    /// On a disk, durable, beside cat and sync
    Disk,
}

impl Row {
    const ALL: [Self; 4] = [Self::Memory, Self::Bounds, Self::Share, Self::Disk];
}

/// All figures.
#[derive(Debug, Serialize)]
struct Report {
    processors: usize,
    /// Load of the machine as it began, where it is told.
    load: Option<f64>,
    gigabytes: String,
    rounds: u32,
    figures: Vec<Figure>,
}

#[derive(Debug)]
struct Bench<'o> {
    options: &'o Options,
    memory: PathBuf,
    program: PathBuf,
    ckpt: PathBuf,
    environment: Environment,
}

/// Measures and prints; an error if a result is wrong, whatever its speed.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let bench = Bench {
        options,
        memory: scratch(&options.memory, "reshard-memory")?,
        program: program()?,
        ckpt: ckpt()?,
        environment: python::environment()?,
    };
    let (load, cores) = (load(), std::thread::available_parallelism().map_or(1, usize::from));
    println!(
        "{cores} cores, load of the machine: {}",
        load.map_or_else(|| "unknown".to_owned(), |it| it.to_string())
    );
    let measured = bench.all();
    fs::remove_dir_all(&bench.memory).map_err(Error::path("remove", &bench.memory))?;
    let report = Report {
        processors: cores,
        load,
        gigabytes: options.gigabytes.clone(),
        rounds: options.rounds,
        figures: measured?,
    };
    if options.json {
        let text = serde_json::to_string(&report);
        println!("{}", text.map_err(|source| Error::Answer { command: "bench reshard".to_owned(), source })?);
    }
    Ok(())
}

impl Bench<'_> {
    fn all(&self) -> Result<Vec<Figure>, Error> {
        println!("writing {} GB of f32 on dp2,tp2 by torch, and as a native store", self.options.gigabytes);
        self.measure(&self.torch(&["write", "torch", "--gigabytes", &self.options.gigabytes]))?;
        let convert =
            ["convert", "torch", "source", "--from", "dp=2,tp=2", "--to", "dp=2,tp=2", "--heads", "32"];
        let place = ["--kv-heads", "8", "--place", "**=dp:0,tp:1", "--place", "**.*norm.weight=dp:0"];
        self.measure(&self.ckpt(&self.memory, &[&convert[..], &place].concat()))?;
        let rows = if self.options.only.is_empty() { &Row::ALL[..] } else { &self.options.only };
        if !rows.contains(&Row::Memory) {
            self.clear("torch")?;
        }
        let figures = rows.iter().map(|row| self.row(*row)).collect::<Result<Vec<_>, Error>>()?;
        Ok(figures.into_iter().flatten().collect())
    }

    fn row(&self, row: Row) -> Result<Vec<Figure>, Error> {
        match row {
            Row::Memory => self.in_memory(),
            Row::Bounds => self.bounds(),
            Row::Share => self.share(),
            Row::Disk => self.on_disk(),
        }
    }

    fn rounds(&self) -> usize {
        self.options.rounds.max(1) as usize
    }

    /// The job itself, ours.
    fn reshard(&self, folder: &Path, more: &[&str]) -> Command {
        let words = [
            "reshard",
            "source",
            "ours",
            "--from",
            "dp=2,tp=2",
            "--to",
            "dp=4",
            "--place",
            "**=dp:0",
            "--json",
        ];
        self.ckpt(folder, &[&words[..], more].concat())
    }

    fn in_memory(&self) -> Result<Vec<Figure>, Error> {
        let (mut amplification, mut alone) = (Vec::new(), Vec::new());
        let mut runs = Runs::measure(self.rounds(), &["ours", "torch", "relay"], |turn| {
            warm(&self.options.gigabytes)?;
            let seconds = match turn.way {
                "ours" => {
                    let took = self.measure(&self.reshard(&self.memory, &[]))?;
                    amplification.push(amplification_of(&took)?);
                    took.seconds
                }
                "torch" => {
                    let words = ["reshard", "torch", "theirs", "--gigabytes", &self.options.gigabytes];
                    let took = self.measure(&self.torch(&words))?;
                    let (warming, job) = own_clocks(&took.said).ok_or_else(|| Error::Missing {
                        what: format!("torch's own times in {:?}", took.said),
                        remedy: "`tests/python/bench_reshard.py` prints them last".to_owned(),
                    })?;
                    alone.push(job);
                    took.seconds - warming
                }
                _ => self.relay()?,
            };
            if turn.last {
                if turn.round == 0 {
                    self.same()?;
                }
                ["ours", "theirs", "floor"].into_iter().try_for_each(|written| self.clear(written))?;
            }
            Ok(seconds)
        })?;
        runs.add("torch alone", alone);
        let (read, written): (Vec<f64>, Vec<f64>) = amplification.into_iter().unzip();
        Ok(vec![
            runs.seconds("ckpt reshard, whole process", "ours"),
            runs.seconds("torch, load and save under the new mesh", "torch alone"),
            runs.seconds("torch, whole processes", "torch"),
            runs.seconds("floor: read, SHA-256 of source and target, write, all cores", "relay"),
            runs.ratio("of the floor's time", ("ours", "relay"), Some(Target::AtMost(1.3))),
            runs.ratio("times as fast as torch's processes", ("torch", "ours"), Some(Target::AtLeast(3.0))),
            runs.ratio("beside torch's load and save alone", ("torch alone", "ours"), None),
            Figure::new(
                "bytes read for each byte needed",
                "times",
                Spread::of(read),
                Some(Target::AtMost(1.02)),
            ),
            Figure::new(
                "bytes written for each byte of the state",
                "times",
                Spread::of(written),
                Some(Target::AtMost(1.001)),
            ),
        ])
    }

    /// Whether ours and torch's hold the same tensors, by their bytes.
    fn same(&self) -> Result<(), Error> {
        self.measure(&self.ckpt(&self.memory, &["diff", "ours", "theirs"])).map(drop)
    }

    fn relay(&self) -> Result<f64, Error> {
        let (from, to) = (self.memory.join("source"), self.memory.join("floor"));
        fresh(&to)?;
        let answer = self.answer(&["relay", text(&from)?, text(&to)?])?;
        number(&answer, "seconds")
    }

    fn bounds(&self) -> Result<Vec<Figure>, Error> {
        let of = |bound: &str, mebibytes_given: u64| {
            let took = self.measure(&self.reshard(&self.memory, &["--max-memory", bound]))?;
            self.clear("ours")?;
            #[expect(clippy::cast_precision_loss, reason = "mebibytes")]
            let (peak, most) = (mebibytes(took.peak_bytes) as f64, (mebibytes_given + 64) as f64);
            Ok(Figure::new(
                format!("peak memory with --max-memory {bound}"),
                "MiB",
                Spread::of([peak]),
                Some(Target::AtMost(most)),
            ))
        };
        [("256MiB", 256), ("512MiB", 512), ("2GiB", 2048)]
            .map(|(bound, given)| of(bound, given))
            .into_iter()
            .collect()
    }

    /// One of four ranks takes its columns of a checkpoint that was written for rows by columns.
    fn share(&self) -> Result<Vec<Figure>, Error> {
        let answer = self.answer(&["share", text(&self.memory.join("source"))?, "4"])?;
        let of = |over: &str, under: &str| {
            Ok::<_, Error>(Spread::of([number(&answer, over)? / number(&answer, under)?]))
        };
        Ok(vec![
            Figure::new(
                "a rank's columns: bytes read for each of its own",
                "times",
                of("read", "bytes")?,
                Some(Target::AtMost(1.05)),
            ),
            Figure::new("the same by whole blocks", "times", of("blocks_read", "blocks_bytes")?, None),
        ])
    }

    /// A disk: what is measured there is the disk.
    fn on_disk(&self) -> Result<Vec<Figure>, Error> {
        let default = repository::root().join("target/bench");
        let folder = scratch(self.options.disk.as_deref().unwrap_or(&default), "reshard-disk")?;
        let result = self.disk_rounds(&folder);
        fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
        result
    }

    fn disk_rounds(&self, folder: &Path) -> Result<Vec<Figure>, Error> {
        let mut copy = Command::new("cp");
        copy.arg("-r").arg(self.memory.join("source")).arg(folder);
        process::run(&mut copy, "cp's message is above")?;
        let runs = Runs::measure(self.rounds(), &["ours", "cat"], |turn| {
            let command = if turn.way == "ours" {
                self.reshard(folder, &[])
            } else {
                let mut command = Command::new("sh");
                command.args(["-c", "cat source/step-*/data/* > out && sync out"]).current_dir(folder);
                command
            };
            // The pages of the one before are flushed by then, outside of the clock.
            let took = self.measure(&command)?;
            let _ = (fs::remove_dir_all(folder.join("ours")), fs::remove_file(folder.join("out")));
            Ok(took.seconds)
        })?;
        Ok(vec![
            runs.seconds("on disk: ckpt reshard, durable", "ours"),
            runs.seconds("on disk: cat of the blobs, then sync", "cat"),
            runs.ratio("on disk: of the floor's time", ("ours", "cat"), Some(Target::AtMost(1.25))),
        ])
    }

    fn ckpt(&self, folder: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ckpt);
        command.args(words).args(["--progress", "none"]).current_dir(folder);
        command
    }

    fn torch(&self, words: &[&str]) -> Command {
        let mut command = self.environment.python();
        command
            .arg(repository::root().join("tests/python/bench_reshard.py"))
            .args(words)
            .current_dir(&self.memory);
        command
    }

    /// Runs `inner` under `measured.py`; an error if it fails.
    fn measure(&self, inner: &Command) -> Result<Measured, Error> {
        super::measured(&self.environment, inner)
    }

    fn answer(&self, words: &[&str]) -> Result<serde_json::Value, Error> {
        super::ground::answer(&self.program, words)
    }

    fn clear(&self, name: &str) -> Result<(), Error> {
        let path = self.memory.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::path("remove", &path))?;
        }
        Ok(())
    }
}

/// The last two lines of what torch's half prints: seconds in which it used memory once, and those of the job.
fn own_clocks(said: &str) -> Option<(f64, f64)> {
    let mut lines = said.lines().rev().map(str::parse::<f64>);
    let job = lines.next()?.ok()?;
    Some((lines.next()?.ok()?, job))
}

/// Bytes read for each byte needed, and bytes written for each of the state's, as the command says.
fn amplification_of(took: &Measured) -> Result<(f64, f64), Error> {
    let said: serde_json::Value = serde_json::from_str(&took.said)
        .map_err(|source| Error::Answer { command: "ckpt reshard".to_owned(), source })?;
    let report = &said["result"]["report"];
    let needed = number(report, "bytes_needed")?;
    Ok((number(report, "bytes_read")? / needed, number(report, "bytes_written")? / needed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torchs_warming_and_its_job_are_the_last_two_lines() {
        assert_eq!(own_clocks("a warning\n1.5\n6.25\n"), Some((1.5, 6.25)));
        assert_eq!((own_clocks("6.25"), own_clocks("x\n6.25"), own_clocks("")), (None, None, None));
    }
}
