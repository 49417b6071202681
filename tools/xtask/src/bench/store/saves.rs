//! Saves, ours, torch's and the floor's, and what reading them back takes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use super::{Bench, Figure, Target, fresh, text};
use crate::bench::Spread;
use crate::bench::served::Served;
use crate::error::Error;
use crate::{process, repository};

/// Seconds of each round, by way.
type Runs = BTreeMap<&'static str, Vec<f64>>;

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
    let mut runs = Runs::new();
    let ways = ["processes", "threads", "torch", "copy"];
    rounds(bench, &ways, &mut runs, |way, step| {
        fresh(&folder)?;
        let place = text(&folder)?;
        let took = match way {
            "torch" => torch.go(place)?,
            "copy" => ours.go(&format!("copy {place}"))?,
            way => {
                bench.answer(&["root", place])?;
                ours.go(&format!("{way} {place} {step}"))?
            }
        };
        // Whoever says that it saved must have written as many bytes.
        check_size(&folder, took.bytes)?;
        Ok(took.seconds)
    })?;
    drop(torch);
    let mut figures = vec![
        seconds("ours, four processes", &runs, "processes"),
        seconds("ours, four threads", &runs, "threads"),
        seconds("torch `dcp.save`, four gloo processes", &runs, "torch"),
        seconds("floor: SHA-256, two at once, and a plain write, all cores", &runs, "copy"),
        ratio("times as fast as torch, processes", &runs, "torch", "processes", Some(3.0)),
        ratio("times as fast as torch, threads", &runs, "torch", "threads", None),
        ratio("of the floor's speed, processes", &runs, "copy", "processes", None),
        ratio("of the floor's speed, threads", &runs, "copy", "threads", Some(0.75)),
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
    let mut runs = Runs::new();
    rounds(bench, &["verify", "read"], &mut runs, |way, _| {
        if way == "read" {
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
        seconds("ckpt verify, start-up included", &runs, "verify"),
        seconds("floor: reads and SHA-256, two MiB at once, all cores", &runs, "read"),
        ratio("of the floor's speed", &runs, "read", "verify", Some(0.95)),
    ])
}

/// A disk: what is measured there is the disk.
pub(super) fn on_disk(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    println!("save of {} GB of f32 by four ranks, on disk", bench.options.gigabytes);
    let mut ours = Worker::start(bench.ours(&["turns", &bench.options.gigabytes]))?;
    let folder = bench.disk.join("turn");
    let mut runs = Runs::new();
    rounds(bench, &["threads", "sync"], &mut runs, |way, step| {
        fresh(&folder)?;
        let place = text(&folder)?;
        let took = if way == "sync" {
            ours.go(&format!("sync {place}"))?
        } else {
            bench.answer(&["root", place])?;
            ours.go(&format!("{way} {place} {step}"))?
        };
        check_size(&folder, took.bytes)?;
        Ok(took.seconds)
    })?;
    fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
    Ok(vec![
        seconds("ours, four threads, durable", &runs, "threads"),
        seconds("floor: plain writes and fsync", &runs, "sync"),
        ratio("of the floor's speed on disk", &runs, "sync", "threads", Some(0.95)),
    ])
}

/// One round that does not count, then those that do, each beginning with another way.
fn rounds(
    bench: &Bench<'_>,
    ways: &[&'static str],
    runs: &mut Runs,
    mut go: impl FnMut(&'static str, usize) -> Result<f64, Error>,
) -> Result<(), Error> {
    for round in 0..=bench.rounds() {
        for way in ways.iter().cycle().skip(round % ways.len()).take(ways.len()) {
            let seconds = go(way, round + 1)?;
            if round > 0 {
                runs.entry(way).or_default().push(seconds);
            }
        }
    }
    Ok(())
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

fn seconds(what: &str, runs: &Runs, way: &str) -> Figure {
    Figure::new(what, "s", Spread::of(runs.get(way).into_iter().flatten().copied()), None)
}

/// How many times as fast as `other` the `way` is, round by round.
fn ratio(what: &str, runs: &Runs, other: &str, way: &str, least: Option<f64>) -> Figure {
    let of = |way: &str| runs.get(way).into_iter().flatten().copied();
    let ratios = of(other).zip(of(way)).map(|(other, way)| other / way);
    Figure::new(what, "times", Spread::of(ratios), least.map(Target::AtLeast))
}
