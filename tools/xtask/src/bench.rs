//! Speed and memory of `ckpt`, as ratios within one run: against what a user would use instead on the same data, and
//! against a floor measured beside it.
//!
//! Rounds alternate between the two, so that a machine that slows down slows both; the best round of each counts.

mod measurement;
mod rows;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::python::Environment;
use crate::{process, python, repository, test};
use measurement::{Measured, best, mebibytes};

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the data lies; try a RAM-backed folder too, since a slow disk makes everything tie
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Size of the checkpoint
    #[arg(long, default_value_t = 3.0, value_name = "GB")]
    gigabytes: f64,
    /// Rounds of each
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Everything a round needs.
#[derive(Debug)]
struct Bench {
    folder: PathBuf,
    environment: Environment,
    ckpt: PathBuf,
}

/// Measures and prints; an error if a result is wrong, whatever its speed.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let environment = python::environment()?;
    process::run(
        &mut test::cargo(&["build", "--release", "--quiet", "--package", "ckpt"]),
        "the build failed",
    )?;
    let folder = options.folder.clone().unwrap_or_else(|| repository::root().join("target/bench"));
    fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
    let folder = fs::canonicalize(&folder).map_err(Error::path("find", &folder))?.join("ckpt-bench");
    let ckpt = target_folder().join("release").join(format!("ckpt{}", std::env::consts::EXE_SUFFIX));
    let bench = Bench { folder, environment, ckpt };
    bench.clear("")?;
    fs::create_dir_all(&bench.folder).map_err(Error::path("create", &bench.folder))?;
    let result = bench.convert(options).and_then(|()| bench.inspect()).and_then(|()| rows::rows(&bench));
    bench.clear("")?;
    result
}

/// The folder that cargo builds into: ours is `TARGET/debug/xtask`.
fn target_folder() -> PathBuf {
    let this = std::env::current_exe().ok();
    let folder = this.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_path_buf);
    folder.unwrap_or_else(|| repository::root().join("target"))
}

impl Bench {
    /// torch DCP to Hugging Face safetensors, ours and theirs.
    fn convert(&self, options: &Options) -> Result<(), Error> {
        println!("writing a torch DCP checkpoint of {} GB on dp2,tp2", options.gigabytes);
        let size = options.gigabytes.to_string();
        self.measure(&self.script("bench_checkpoint.py", &["source", "--gigabytes", &size]))?;
        let (mut ours, mut theirs, mut floor) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            self.clear("ours")?;
            self.clear("theirs")?;
            self.clear("copy")?;
            let export =
                ["export", "source", "ours", "--as", "hf", "--only", "model", "--config", "source-config"];
            ours.push(self.measure(&self.ckpt(&export))?);
            theirs.push(
                self.measure(&self.script("bench_theirs.py", &["source", "theirs"]))?.by_its_own_clock(),
            );
            let mut copy = Command::new("cp");
            copy.args(["-r", "source", "copy"]);
            floor.push(self.measure(&copy)?);
            println!("round {round} of {}", options.rounds);
        }
        self.measure(&self.script("bench_same.py", &["ours", "theirs"]))?;
        print_comparison(options, &best(&ours), &best(&theirs), &best(&floor));
        Ok(())
    }

    /// `inspect` of a thousand tensors, each time in a new process.
    fn inspect(&self) -> Result<(), Error> {
        self.measure(&self.script("bench_many.py", &["many", "1000"]))?;
        let mut times = Vec::new();
        for _ in 0..20 {
            let began = Instant::now();
            let mut command = self.ckpt(&["inspect", "many"]);
            let output = process::output(&mut command)?;
            times.push(began.elapsed());
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(process::failed(&command, &output.status.to_string(), &said));
            }
        }
        times.sort();
        let median = times.get(times.len() / 2).copied().unwrap_or(Duration::ZERO);
        println!("inspect of 1,000 tensors: median {:.1} ms of 20 (target: 50)", median.as_secs_f64() * 1e3);
        Ok(())
    }

    fn ckpt(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ckpt);
        command.args(arguments).args(["--progress", "none"]).current_dir(&self.folder);
        command
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.environment.python();
        command
            .arg(repository::root().join("tests/python").join(name))
            .args(arguments)
            .current_dir(&self.folder);
        command
    }

    /// Runs `inner` under `measured.py`; an error if it fails.
    fn measure(&self, inner: &Command) -> Result<Measured, Error> {
        let mut outer = self.script("measured.py", &[]);
        outer.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        let output = process::output(&mut outer)?;
        let measured = Measured::read(&output.stdout)
            .map_err(|source| Error::Answer { command: process::shown(inner), source })?;
        if measured.code == 0 {
            return Ok(measured);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(process::failed(inner, &format!("exit code {}", measured.code), &said))
    }

    fn clear(&self, name: &str) -> Result<(), Error> {
        let path = if name.is_empty() { self.folder.clone() } else { self.folder.join(name) };
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::path("remove", &path))?;
        }
        Ok(())
    }
}

fn print_comparison(options: &Options, ours: &Measured, theirs: &Measured, floor: &Measured) {
    println!("torch DCP to safetensors, {} GB, best of {}", options.gigabytes, options.rounds);
    for (who, measured) in
        [("ckpt export", ours), ("dcp_to_torch + save_file", theirs), ("cp -r (floor)", floor)]
    {
        println!("  {who:<26}{:>8.2} s  peak {:>8} MiB", measured.seconds, mebibytes(measured.peak_bytes));
    }
    let faster = theirs.seconds / ours.seconds;
    let of_floor = floor.seconds / ours.seconds;
    println!("  ratio    {faster:.1} times faster (target: 6), {of_floor:.2} of the floor's speed");
    println!("  memory   {} MiB (target: at most 512)", mebibytes(ours.peak_bytes));
}
