//! Speed and memory of `ckpt`, as ratios within one run: against what a user would use instead on the same data, and
//! against a floor measured beside it. How is in [`convert`]. The trainer's is in [`trainer`], the store's in [`store`], that of resharding in
//! [`reshard`].
//!
//! A folder in memory takes the disk out of it. On a disk, `ckpt` makes what it writes durable, which neither torch nor
//! `cp` does: there the disk's speed is part of our time and not of theirs.

pub(crate) mod codecs;
mod convert;
mod figure;
mod ground;
mod measurement;
pub(crate) mod reshard;
mod rounds;
mod rows;
mod served;
pub(crate) mod store;
pub(crate) mod trainer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use crate::error::Error;
use crate::python::Environment;
use crate::{process, python, repository, test};
use measurement::{Measured, Spread};

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the data lies, several one after the other; /dev/shm takes the disk out of it [default: target/bench]
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,
    /// Size of the checkpoint; about five times as much is needed in the folder
    #[arg(long, default_value_t = 3.0, value_name = "GB")]
    gigabytes: f64,
    /// What the checkpoint's weights are
    #[arg(long, value_enum, default_value = "bfloat16")]
    dtype: Weights,
    /// Rounds that count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Print all figures as JSON too, on the last line
    #[arg(long)]
    json: bool,
}

/// Dtype of a checkpoint's weights.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Weights {
    Bfloat16,
    Float32,
}

impl Weights {
    /// As torch calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
        }
    }
}

/// Everything a round needs.
#[derive(Debug)]
struct Bench {
    folder: PathBuf,
    environment: Environment,
    ckpt: PathBuf,
}

/// The figures of one folder.
#[derive(Debug, Serialize)]
struct Figures {
    folder: PathBuf,
    processors: usize,
    conversion: convert::Conversion,
    inspect_milliseconds: Spread,
    rows: Vec<rows::Rows>,
}

/// Measures and prints; an error if a result is wrong, whatever its speed.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    process::run(
        &mut test::cargo(&["build", "--release", "--quiet", "--package", "ckpt"]),
        "the build failed",
    )?;
    let default = [repository::root().join("target/bench")];
    let folders = if options.folder.is_empty() { &default[..] } else { &options.folder[..] };
    let figures = folders.iter().map(|folder| figures(folder, options)).collect::<Result<Vec<_>, Error>>()?;
    if options.json {
        let text = serde_json::to_string(&figures);
        println!("{}", text.map_err(|source| Error::Answer { command: "bench ckpt".to_owned(), source })?);
    }
    Ok(())
}

/// Measures in one folder, and leaves nothing in it.
fn figures(folder: &Path, options: &Options) -> Result<Figures, Error> {
    fs::create_dir_all(folder).map_err(Error::path("create", folder))?;
    let folder = fs::canonicalize(folder).map_err(Error::path("find", folder))?.join("ckpt-bench");
    let ckpt = target_folder().join("release").join(format!("ckpt{}", std::env::consts::EXE_SUFFIX));
    let bench = Bench { folder, environment: python::environment()?, ckpt };
    bench.clear("")?;
    fs::create_dir_all(&bench.folder).map_err(Error::path("create", &bench.folder))?;
    println!("in {}", bench.folder.display());
    let result = bench.all(options);
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
    fn all(&self, options: &Options) -> Result<Figures, Error> {
        Ok(Figures {
            folder: self.folder.clone(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            conversion: convert::convert(self, options)?,
            inspect_milliseconds: self.inspect()?,
            rows: rows::rows(self)?,
        })
    }

    /// `inspect` of a thousand tensors, each time in a new process.
    fn inspect(&self) -> Result<Spread, Error> {
        self.measure(&self.script("bench_many.py", &["many", "1000"]))?;
        let mut times = Vec::new();
        for _ in 0..20 {
            let began = Instant::now();
            let mut command = self.ckpt(&["inspect", "many"]);
            let output = process::output(&mut command)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(process::failed(&command, &output.status.to_string(), &said));
            }
        }
        let spread = Spread::of(times);
        println!("inspect of 1,000 tensors: median {:.1} ms of 20 (target: 50)", spread.median);
        Ok(spread)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        command
    }

    fn ckpt(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.ckpt);
        command.args(arguments).args(["--progress", "none"]);
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

    fn measure(&self, inner: &Command) -> Result<Measured, Error> {
        measured(&self.environment, inner)
    }

    fn clear(&self, name: &str) -> Result<(), Error> {
        let path = if name.is_empty() { self.folder.clone() } else { self.folder.join(name) };
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::path("remove", &path))?;
        }
        Ok(())
    }
}

/// Runs `inner` under `measured.py`, in its folder; an error if it fails.
fn measured(environment: &Environment, inner: &Command) -> Result<Measured, Error> {
    let mut outer = environment.python();
    outer
        .arg(repository::root().join("tests/python/measured.py"))
        .arg(inner.get_program())
        .args(inner.get_args());
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
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
