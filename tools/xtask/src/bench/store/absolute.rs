//! Rows that are held against a number of the issue: each job in a new process, once a round.

use std::fs;
use std::process::Command;
use std::time::Instant;

use super::{Bench, Figure, Target, fresh, number, text};
use crate::bench::Spread;
use crate::error::Error;
use crate::{process, test};

/// Fingerprints of so many bytes that are in memory.
pub(super) fn prints(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    let gigabytes = &bench.options.gigabytes;
    println!("fingerprints of {gigabytes} GB, two threads");
    // The targets are for 3 GB on two cores.
    let share = gigabytes.parse::<f64>().unwrap_or(f64::NAN) / 3.0;
    let mut figures = Vec::new();
    for (dtype, most) in [("f32", 0.5), ("bf16", 0.9), ("u8", 1.8)] {
        let answers = (0..bench.rounds()).map(|_| bench.answer(&["prints", gigabytes, dtype, "2"]));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let (took, used) = (of(&answers, "seconds", 1.0)?, of(&answers, "processor", 1.0)?);
        figures.push(Figure::new(
            format!("fingerprints of {dtype}"),
            "s",
            took,
            Some(Target::AtMost(most * share)),
        ));
        figures.push(Figure::new("  processor time of it, all threads", "s", used, None));
    }
    Ok(figures)
}

/// `ckpt inspect` as a user starts it, on a disk whose caches are dropped where we may.
pub(super) fn inspect(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    let folder = bench.disk.join("many");
    fresh(&folder)?;
    let place = text(&folder)?;
    bench.answer(&["many", place, "1000"])?;
    let mut figures = Vec::new();
    if drop_caches() {
        println!("inspect, after the system has dropped all its caches");
        let target = Some(Target::AtMost(20.0));
        let what = "ckpt inspect, 1,000 tensors, the checkpoint cold, the program warm";
        figures.push(Figure::new(what, "ms", looks(bench, place, Caches::OfTheCheckpoint)?, target));
        let what = "ckpt inspect, 1,000 tensors, everything cold: program, libraries, checkpoint";
        figures.push(Figure::new(what, "ms", looks(bench, place, Caches::All)?, target));
    }
    println!("inspect, warm");
    let what = "ckpt inspect, 1,000 tensors, everything warm";
    figures.push(Figure::new(what, "ms", looks(bench, place, Caches::None)?, None));
    let commits = bench.options.commits.to_string();
    // A memory-backed folder: ten thousand records, each synced, are minutes of a disk's time.
    let root = bench.memory.join("log");
    fresh(&root)?;
    let place = text(&root)?;
    bench.answer(&["many", place, "100"])?;
    bench.answer(&["commits", place, &commits])?;
    let opened = each(bench, |bench| Ok(number(&bench.answer(&["open", place])?, "seconds")? * 1e3))?;
    let target = Some(Target::AtMost(30.0));
    figures.push(Figure::new(format!("open the newest of {commits} commits"), "ms", opened, target));
    figures.push(Figure::new(
        format!("ckpt inspect of the newest of {commits} commits, start-up included"),
        "ms",
        looks(bench, place, Caches::None)?,
        target,
    ));
    fs::remove_dir_all(&root).map_err(Error::path("remove", &root))?;
    Ok(figures)
}

/// Which caches are dropped before a command.
#[derive(Clone, Copy)]
enum Caches {
    None,
    /// All are, and the program is started once without looking at the checkpoint.
    OfTheCheckpoint,
    All,
}

/// Milliseconds that `ckpt inspect` takes, in a new process each time.
fn looks(bench: &Bench<'_>, place: &str, caches: Caches) -> Result<Spread, Error> {
    let start = |words: &[&str]| {
        let mut command = Command::new(&bench.ckpt);
        command.args(words);
        let began = Instant::now();
        let output = process::output(&mut command)?;
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        if output.status.success() {
            return Ok(milliseconds);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(process::failed(&command, &output.status.to_string(), &said))
    };
    let look = |_| {
        match caches {
            Caches::None => {}
            Caches::All => drop(drop_caches()),
            Caches::OfTheCheckpoint => {
                drop_caches();
                // Its pages that any `inspect` needs, and the system's libraries.
                start(&["inspect", "--help"])?;
                fs::read(&bench.ckpt).map(drop).map_err(Error::path("read", &bench.ckpt))?;
            }
        }
        start(&["inspect", place, "--progress", "none"])
    };
    Ok(Spread::of((0..bench.rounds()).map(look).collect::<Result<Vec<_>, _>>()?))
}

/// Two million shard records.
pub(super) fn scale(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    println!("a 405B model on 8,960 ranks: more than two million shard records; all cores");
    let folder = bench.memory.join("scale");
    let (mut wrote, mut opened) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds() {
        fresh(&folder)?;
        wrote.push(bench.answer(&["scale", text(&folder)?])?);
        opened.push(bench.answer(&["open", text(&folder)?])?);
    }
    fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
    let shards = wrote.first().map_or(Ok(0.0), |it| number(it, "shards"))?;
    if shards < 2e6 {
        return Err(Error::Checks { count: 1, what: format!("{shards} shard records, of two million") });
    }
    let gib = f64::from(1 << 30);
    Ok(vec![
        Figure::new("shard records", "", of(&wrote, "shards", 1.0)?, Some(Target::AtLeast(2e6))),
        Figure::new("manifest", "MB", of(&wrote, "bytes", 1e6)?, None),
        Figure::new("plan: layout, writers, digest", "s", of(&wrote, "plan", 1.0)?, None),
        Figure::new(
            "heads: all blobs laid out, their headers made and hashed",
            "s",
            of(&wrote, "heads", 1.0)?,
            None,
        ),
        Figure::new("check: chunks by tensor, cover", "s", of(&wrote, "check", 1.0)?, None),
        Figure::new("encode and hash the manifest", "s", of(&wrote, "encode", 1.0)?, None),
        Figure::new(
            "all of these and the write",
            "s",
            of(&wrote, "seconds", 1.0)?,
            Some(Target::AtMost(2.0)),
        ),
        Figure::new("  processor time of it, all threads", "s", of(&wrote, "processor", 1.0)?, None),
        Figure::new("  peak memory", "GiB", of(&wrote, "peak_bytes", gib)?, Some(Target::AtMost(1.0))),
        Figure::new("open", "s", of(&opened, "seconds", 1.0)?, Some(Target::AtMost(0.4))),
        Figure::new("  processor time of it, all threads", "s", of(&opened, "processor", 1.0)?, None),
        Figure::new("  peak memory", "GiB", of(&opened, "peak_bytes", gib)?, Some(Target::AtMost(1.0))),
    ])
}

/// Everything from the first crate on, into a folder of its own, which is empty: nothing that was built before is used.
pub(super) fn build(bench: &Bench<'_>) -> Result<Vec<Figure>, Error> {
    println!("a cold release build of the default features, two jobs");
    let folder = bench.disk.join("build");
    fresh(&folder)?;
    // What crates.io has is there: `ckpt` was built before, into the usual folder.
    let began = Instant::now();
    let mut command = test::cargo(&["build", "--release", "--quiet", "--locked", "--jobs", "2"]);
    // A wrapper would answer from a cache.
    command.env("CARGO_TARGET_DIR", &folder).env_remove("RUSTC_WRAPPER").env("CARGO_BUILD_RUSTC_WRAPPER", "");
    process::run(&mut command, "the build failed")?;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    Ok(vec![Figure::new("cold release build", "min", Spread::of([minutes]), Some(Target::AtMost(5.0)))])
}

/// A number of several answers.
fn of(answers: &[serde_json::Value], key: &str, unit: f64) -> Result<Spread, Error> {
    let numbers = answers.iter().map(|it| Ok(number(it, key)? / unit));
    Ok(Spread::of(numbers.collect::<Result<Vec<_>, Error>>()?))
}

fn each(bench: &Bench<'_>, one: impl Fn(&Bench<'_>) -> Result<f64, Error>) -> Result<Spread, Error> {
    Ok(Spread::of((0..bench.rounds()).map(|_| one(bench)).collect::<Result<Vec<_>, _>>()?))
}

/// Whether the system let its caches go.
fn drop_caches() -> bool {
    process::output(&mut Command::new("sync")).is_ok() && fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
