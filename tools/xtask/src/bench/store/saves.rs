//! Saves, ours, torch's and the floor's, and what reading them back takes.

use std::fs;
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use super::{Bench, Figure, Target, fresh, text};
use crate::bench::ground::warm;
use crate::bench::rounds::Runs;
use crate::bench::served::Served;
use crate::error::Error;
use crate::{process, repository};

/// What our half says of one job.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Took {
    seconds: f64,
    bytes: u64,
}

/// Who does the jobs, ours or torch's.
type Worker = Served<Took>;

/// A RAM-backed folder: the code alone.
pub(super) fn in_memory(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    println!("save of {} GB of f32 by four ranks, in memory", bench.options.gigabytes);
    let mut ours = Worker::start(bench.ours(&["turns", &bench.options.gigabytes]))?;
    let mut torch = Worker::start(torch(bench)?)?;
    let folder = bench.memory.join("turn");
    let ways = ["processes", "threads", "torch", "copy"];
    let runs = Runs::measure(bench.rounds(), &ways, |turn| {
        fresh(&folder)?;
        warm(&bench.options.gigabytes)?;
        let place = text(&folder)?;
        let took = match turn.way {
            "torch" => torch.go(place)?,
            "copy" => ours.go(&format!("copy {place}"))?,
            way => {
                bench.answer(&["root", place])?;
                ours.go(&format!("{way} {place} {}", turn.round + 1))?
            }
        };
        // Whoever says that it saved must have written as many bytes.
        check_size(&folder, took.bytes)?;
        Ok(took.seconds)
    })?;
    drop(torch);
    let mut figures = vec![
        runs.seconds("ours, four processes", "processes"),
        runs.seconds("ours, four threads", "threads"),
        runs.seconds("torch `dcp.save`, four gloo processes", "torch"),
        runs.seconds("floor: SHA-256, two at once, and a plain write, all cores", "copy"),
        runs.ratio("times as fast as torch, processes", ("torch", "processes"), Some(Target::AtLeast(3.0))),
        runs.ratio("times as fast as torch, threads", ("torch", "threads"), None),
        runs.ratio("of the floor's speed, processes", ("copy", "processes"), None),
        runs.ratio("of the floor's speed, threads", ("copy", "threads"), Some(Target::AtLeast(0.75))),
    ];
    figures.extend(verify(bench, &mut ours)?);
    fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
    Ok(figures)
}

/// `ckpt verify` as a user starts it, and a loop that reads and hashes the same files.
fn verify(bench: &Bench<'_>, ours: &mut Worker) -> Result<Vec<Figure>, Error> {
    println!("verify of it");
    let folder = bench.memory.join("turn");
    fresh(&folder)?;
    let place = text(&folder)?;
    bench.answer(&["root", place])?;
    ours.go(&format!("threads {place} 1"))?;
    let runs = Runs::measure(bench.rounds(), &["verify", "read"], |turn| {
        if turn.way == "read" {
            return Ok(ours.go(&format!("read {place}"))?.seconds);
        }
        let mut command = Command::new(&bench.ckpt);
        command.args(["verify", place, "--progress", "none"]);
        let began = Instant::now();
        let output = process::output(&mut command)?;
        let seconds = began.elapsed().as_secs_f64();
        if output.status.success() {
            return Ok(seconds);
        }
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Err(process::failed(&command, &output.status.to_string(), &said))
    })?;
    Ok(vec![
        runs.seconds("ckpt verify, start-up included", "verify"),
        runs.seconds("floor: reads and SHA-256, two MiB at once, all cores", "read"),
        runs.ratio("of the floor's speed", ("read", "verify"), Some(Target::AtLeast(0.95))),
    ])
}

/// A disk: what is measured there is the disk.
pub(super) fn on_disk(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    println!("save of {} GB of f32 by four ranks, on disk", bench.options.gigabytes);
    let mut ours = Worker::start(bench.ours(&["turns", &bench.options.gigabytes]))?;
    let folder = bench.disk.join("turn");
    let runs = Runs::measure(bench.rounds(), &["threads", "sync"], |turn| {
        fresh(&folder)?;
        let place = text(&folder)?;
        let took = if turn.way == "sync" {
            ours.go(&format!("sync {place}"))?
        } else {
            bench.answer(&["root", place])?;
            ours.go(&format!("{} {place} {}", turn.way, turn.round + 1))?
        };
        check_size(&folder, took.bytes)?;
        Ok(took.seconds)
    })?;
    fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
    Ok(vec![
        runs.seconds("ours, four threads, durable", "threads"),
        runs.seconds("floor: plain writes and fsync", "sync"),
        runs.ratio("of the floor's speed on disk", ("sync", "threads"), Some(Target::AtLeast(0.95))),
    ])
}

fn torch(bench: &Bench<'_>) -> Result<Command, Error> {
    let environment = bench.environment.as_ref().ok_or_else(|| Error::Missing {
        what: "the Python environment".to_owned(),
        remedy: "run `cargo xtask setup`".to_owned(),
    })?;
    let mut command = environment.python();
    command
        .arg(repository::root().join("tests/python/bench_store.py"))
        .args(["--gigabytes", &bench.options.gigabytes])
        .current_dir(&bench.memory);
    Ok(command)
}

fn check_size(folder: &std::path::Path, bytes: u64) -> Result<(), Error> {
    let size = size_of(folder)?;
    if size >= bytes {
        return Ok(());
    }
    let what = format!("{}: {size} bytes were written, of {bytes}", folder.display());
    Err(Error::Checks { count: 1, what })
}

fn size_of(folder: &std::path::Path) -> Result<u64, Error> {
    let mut sum = 0;
    for entry in fs::read_dir(folder).map_err(Error::path("list", folder))? {
        let path = entry.map_err(Error::path("list", folder))?.path();
        let data = fs::symlink_metadata(&path).map_err(Error::path("look at", &path))?;
        sum += if data.is_dir() { size_of(&path)? } else { data.len() };
    }
    Ok(sum)
}
