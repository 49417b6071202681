//! Speed of the trainer: whole training steps beside eager PyTorch's of the same model, and what its own promises cost.
//!
//! | part | ours | beside | target |
//! |---|---|---|---|
//! | `speed` | a step in f32, one process | eager PyTorch, AdamW as by default and fused | 1.0 times as fast |
//! | `exact` | exact mode, 1, 2 and 4 virtual ranks | fast mode | printed; 1.6 times as long at most |
//! | `bf16` | bf16 operands over f32 masters | eager PyTorch all in bf16, and with autocast | 5 times as fast |
//! | `fsdp` | 4 gloo processes, `FULL_SHARD` | FSDP2 on gloo | 1.4 times as fast |
//! | `ddp` | 4 gloo processes, `NO_SHARD` | DDP on gloo | 0.95 times as fast |
//! | `saves` | a save every ten steps | no saves | 1.03 times as long; 1 % of a step lost to a save |
//! | `resume` | start to the end of the first step | loading and a step | 1 s longer |
//! | `split` | I + W | a full backward | 1.03 times as long |
//! | `schedules` | a step of ZB-H1, on virtual devices | 1F1B | 1.20 times as fast |
//!
//! Ways that are compared take turns (see [`contest`]); one thread for each rank. A step is everything from reading its bytes to the
//! update: forward, backward, norm, clipping, AdamW. Both sides take the same samples in the same order, one microbatch a step.
//! Ours trains by the run's own loop (`trainer/examples/in_turns.rs`); theirs is `tests/python/bench_trainer.py`. Processor time, all
//! threads' of all ranks, is compared too: other work on the machine moves it less.

mod contest;
mod faster;
mod resume;
mod row;
mod saves;
mod schedules;
mod sizes;
mod split;
mod turns;
mod way;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use super::ground::load;
use crate::error::Error;
use crate::{libtorch, process, repository, test};
use row::Row;
use sizes::Sizes;
use way::Ground;

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these rows, several by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROW")]
    only: Vec<Part>,
    /// Rounds that count: in each, all ways that are compared have one turn
    #[arg(long, visible_alias = "rounds", default_value_t = 11, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Where saves go, several one beside the other [default: /dev/shm, where there is one, and target/bench]
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,
    /// A small model and two rounds: whether it runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Print all figures as JSON too, on the last line
    #[arg(long)]
    json: bool,
}

/// A group of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Part {
    /// A step in f32 beside eager PyTorch's.
    Speed,
    /// What exact mode costs beside fast mode.
    Exact,
    /// A step in bf16 beside eager PyTorch's.
    Bf16,
    /// Four processes, everything sharded, beside FSDP2.
    Fsdp,
    /// Four processes, nothing sharded, beside DDP.
    Ddp,
    /// What saves cost the steps.
    Saves,
    /// What a resume costs beside loading.
    Resume,
    /// A backward in two halves beside one in one.
    Split,
    /// Zero-bubble schedules beside 1F1B, on virtual devices.
    Schedules,
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// All figures.
#[derive(Debug, Serialize)]
struct Figures {
    /// Tokens of a step.
    tokens: u32,
    pairs: u32,
    processors: usize,
    /// Load averages before and after.
    load: [Option<f64>; 2],
    rows: Vec<Row>,
}

/// Measures and prints; an error if a process fails, or if the two sides do not do the same work.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    libtorch::set_up(None)?;
    let mut build = vec!["build", "--release", "--quiet", "--package", "trainer"];
    build.extend(["in_turns", "split_backward", "virtual"].iter().flat_map(|name| ["--example", *name]));
    process::run(&mut test::cargo(&build), "the build failed")?;
    let scratch = repository::root().join("target/bench");
    let ground = Ground::new(scratch.join("trainer-bench"))?;
    let figures = measure(options, &ground, &scratch);
    ground.clear()?;
    let figures = figures?;
    let missed = figures.rows.iter().filter(|row| row.met == Some(false)).count();
    let held = figures.rows.iter().filter(|row| row.met.is_some()).count();
    println!("{} of {held} targets met", held - missed);
    if options.json {
        let text = serde_json::to_string(&figures);
        println!("{}", text.map_err(|source| Error::Answer { command: "bench trainer".to_owned(), source })?);
    }
    Ok(())
}

fn measure(options: &Options, ground: &Ground, scratch: &Path) -> Result<Figures, Error> {
    let before = load();
    let (sizes, heavy, pairs) = if options.quick {
        (Sizes::QUICK, Sizes::QUICK, 2)
    } else {
        (Sizes::FULL, Sizes::HEAVY, options.pairs)
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "steps of {} tokens, one thread a rank; {processors} processors, load {}; medians of {pairs} rounds (least to most)",
        sizes.tokens(),
        before.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}"))
    );
    let mut rows = Vec::new();
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        let found = match part {
            Part::Saves => saves::rows(ground, &folders(options, scratch), sizes, pairs)?,
            Part::Resume => resume::rows(ground, heavy, pairs)?,
            Part::Split => split::rows(pairs)?,
            Part::Schedules => schedules::rows()?,
            part => faster::rows(*part, ground, sizes, pairs)?,
        };
        found.iter().for_each(|row| println!("{row}"));
        rows.extend(found);
    }
    Ok(Figures { tokens: sizes.tokens(), pairs, processors, load: [before, load()], rows })
}

fn folders(options: &Options, scratch: &Path) -> Vec<PathBuf> {
    if !options.folder.is_empty() {
        return options.folder.clone();
    }
    let memory = Path::new("/dev/shm");
    let default = [memory.to_path_buf(), scratch.to_path_buf()];
    default.into_iter().filter(|folder| folder != memory || folder.is_dir()).collect()
}
