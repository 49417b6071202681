//! torch DCP to Hugging Face safetensors: ours, theirs, and a floor.
//!
//! Method: one round that does not count (it warms the page cache, and its results are compared tensor for tensor), then
//! rounds in which every way comes once, each round beginning with another, so that a machine that slows down slows all
//! of them. What one wrote is removed before the next begins. Sources are read from the page cache by all. A ratio is the
//! median of the ratios of the rounds.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

use super::measurement::{Measured, Spread, mebibytes};
use super::rounds::in_turn;
use super::{Bench, Options};
use crate::error::Error;

/// The ways to do it, in the order of the first round.
const WAYS: [Way; 4] = [Way::Ours, Way::OneFile, Way::Theirs, Way::Copy];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Ours,
    OneFile,
    Theirs,
    Copy,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ckpt export",
            Self::OneFile => "ckpt export, into one file",
            Self::Theirs => "dcp_to_torch + save_file",
            Self::Copy => "cp -r",
        }
    }

    /// The folder that it writes.
    const fn target(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OneFile => "one-file",
            Self::Theirs => "theirs",
            Self::Copy => "copy",
        }
    }

    fn go(self, bench: &Bench) -> Result<Measured, Error> {
        let export =
            ["export", "source", self.target(), "--as", "hf", "--only", "model", "--config", "source-config"];
        match self {
            Self::Ours => bench.measure(&bench.ckpt(&export)),
            Self::OneFile => {
                bench.measure(&bench.ckpt(&[&export[..], &["--max-shard-size", "1000GB"]].concat()))
            }
            Self::Theirs => bench.measure(&bench.script("bench_theirs.py", &["source", self.target()])),
            Self::Copy => bench.measure(bench.command("cp").args(["-r", "source", self.target()])),
        }
    }
}

/// What one way took.
#[derive(Debug, Serialize)]
struct Took {
    what: &'static str,
    /// Wall time of the whole process.
    seconds: Spread,
    /// Without start-up and imports, by the process's own clock.
    without_start: Option<Spread>,
    /// Processor time.
    processor: Spread,
    /// Files that it wrote.
    files: usize,
    peak_mebibytes: u64,
}

/// How many times as fast as each other's median round.
#[derive(Debug, Serialize)]
struct Ratios {
    /// Whole processes, as a user waits for them.
    over_theirs: Spread,
    /// Torch's imports not counted, all of our process counted.
    over_theirs_without_imports: Spread,
    one_file_over_theirs_without_imports: Spread,
    /// Of the speed of `cp -r`.
    of_the_floor: Spread,
}

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Conversion {
    gigabytes: f64,
    dtype: &'static str,
    took: Vec<Took>,
    ratios: Ratios,
}

/// Makes the source, measures, checks and prints.
pub(super) fn convert(bench: &Bench, options: &Options) -> Result<Conversion, Error> {
    let size = options.gigabytes.to_string();
    let dtype = options.dtype.name();
    println!("writing a torch DCP checkpoint of {size} GB of {dtype} on dp2,tp2");
    bench
        .measure(&bench.script("bench_checkpoint.py", &["source", "--gigabytes", &size, "--dtype", dtype]))?;
    let files = check(bench)?;
    let mut runs: BTreeMap<Way, Vec<Measured>> = BTreeMap::new();
    for round in 0..options.rounds.max(1) {
        for way in in_turn(&WAYS, round as usize) {
            runs.entry(*way).or_default().push(way.go(bench)?);
            bench.clear(way.target())?;
        }
        println!("round {} of {}", round + 1, options.rounds.max(1));
    }
    bench.clear("source")?;
    let took = WAYS.map(|way| took(way, &runs[&way], files[&way])).into_iter().collect();
    let conversion = Conversion { gigabytes: options.gigabytes, dtype, took, ratios: ratios(&runs) };
    conversion.print();
    Ok(conversion)
}

/// The round that does not count: whether all give the same tensors, and in how many files.
fn check(bench: &Bench) -> Result<BTreeMap<Way, usize>, Error> {
    let mut files = BTreeMap::new();
    Way::Theirs.go(bench)?;
    for way in [Way::Ours, Way::OneFile, Way::Copy] {
        way.go(bench)?;
        files.insert(way, written(bench, way)?);
        if way != Way::Copy {
            bench.measure(&bench.script("bench_same.py", &[way.target(), Way::Theirs.target()]))?;
        }
        bench.clear(way.target())?;
    }
    files.insert(Way::Theirs, written(bench, Way::Theirs)?);
    bench.clear(Way::Theirs.target())?;
    Ok(files)
}

fn written(bench: &Bench, way: Way) -> Result<usize, Error> {
    let folder = bench.folder.join(way.target());
    Ok(fs::read_dir(&folder).map_err(Error::path("list", &folder))?.count())
}

fn took(way: Way, runs: &[Measured], files: usize) -> Took {
    let own: Vec<f64> = runs.iter().filter_map(Measured::by_its_own_clock).collect();
    Took {
        what: way.name(),
        seconds: Spread::of(runs.iter().map(|run| run.seconds)),
        without_start: (way == Way::Theirs).then(|| Spread::of(own)),
        processor: Spread::of(runs.iter().map(|run| run.processor)),
        files,
        peak_mebibytes: mebibytes(runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0)),
    }
}

fn ratios(runs: &BTreeMap<Way, Vec<Measured>>) -> Ratios {
    let whole = |run: &Measured| run.seconds;
    let own = |run: &Measured| run.by_its_own_clock().unwrap_or(f64::NAN);
    let over = |other: Way, clock: &dyn Fn(&Measured) -> f64, way: Way| {
        Spread::of(runs[&other].iter().zip(&runs[&way]).map(|(other, run)| clock(other) / run.seconds))
    };
    Ratios {
        over_theirs: over(Way::Theirs, &whole, Way::Ours),
        over_theirs_without_imports: over(Way::Theirs, &own, Way::Ours),
        one_file_over_theirs_without_imports: over(Way::Theirs, &own, Way::OneFile),
        of_the_floor: over(Way::Copy, &whole, Way::Ours),
    }
}

impl Conversion {
    fn print(&self) {
        println!(
            "torch DCP to safetensors, {} GB of {}, medians (least to most)",
            self.gigabytes, self.dtype
        );
        for took in &self.took {
            line(took.what, &took.seconds, took);
            if let Some(own) = &took.without_start {
                line("  without its imports", own, took);
            }
        }
        let ratio = |what: &str, ratio: &Spread| {
            println!("  {what:<44}{:>6.2} ({:.2} to {:.2})", ratio.median, ratio.least, ratio.most);
        };
        ratio("times as fast as torch, its imports counted", &self.ratios.over_theirs);
        ratio("times as fast as torch, imports not counted", &self.ratios.over_theirs_without_imports);
        ratio("the same, into one file", &self.ratios.one_file_over_theirs_without_imports);
        ratio("of the speed of `cp -r`", &self.ratios.of_the_floor);
        println!("  targets: 6 times as fast, at most 512 MiB");
    }
}

fn line(what: &str, seconds: &Spread, took: &Took) {
    println!(
        "  {what:<28}{:>7.2} s ({:.2} to {:.2})  processor {:>6.2} s  peak {:>6} MiB  {} files",
        seconds.median, seconds.least, seconds.most, took.processor.median, took.peak_mebibytes, took.files,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: f64, said: &str) -> Measured {
        Measured { code: 0, said: said.to_owned(), seconds, processor: 1.0, peak_bytes: 1 << 20 }
    }

    #[test]
    fn a_ratio_is_within_a_round_so_that_a_slow_machine_slows_both() {
        let slow = |factor: f64| (run(factor, "some text"), run(8.0 * factor, &(5.0 * factor).to_string()));
        let rounds = [slow(1.0), slow(3.0), slow(2.0)];
        let ours: Vec<Measured> = rounds.iter().map(|round| round.0.clone()).collect();
        let theirs: Vec<Measured> = rounds.iter().map(|round| round.1.clone()).collect();
        let runs = [
            (Way::Ours, ours.clone()),
            (Way::OneFile, ours.clone()),
            (Way::Copy, ours),
            (Way::Theirs, theirs),
        ];
        let ratios = ratios(&runs.into_iter().collect());
        assert_eq!((ratios.over_theirs.least, ratios.over_theirs.most), (8.0, 8.0));
        assert_eq!(ratios.over_theirs_without_imports.rounds, [5.0; 3]);
        assert_eq!(ratios.of_the_floor.median, 1.0);
    }
}
