//! Speed of the trainer: a whole training step against eager PyTorch's of the same model, and what saves cost it.
//!
//! Method: every way is a process of its own that lives as long as the measurement and does a few steps (three; ten where
//! saves are compared) whenever it is its turn, alone, on one thread; in a round every way has one turn, each round beginning
//! with another, so that a machine that slows down slows all of them. One round before them does not count. A step is everything from reading its
//! bytes to the update: forward, backward, norm, clipping, AdamW. Steps have one microbatch, on both sides.
//!
//! Ours trains by the run's own loop (`trainer/examples/in_turns.rs`), in exact mode with one virtual rank and in fast
//! mode, without saves and with one save in each turn: it begins with the turn, and writes behind its steps. Theirs is
//! `tests/python/bench_trainer.py`, with `torch.optim.AdamW` as it is by default, and fused.
//!
//! A ratio is the median of the ratios within a round. Processor time, all threads', is compared too: other work on the
//! machine moves it less. Of saves, the median step is compared as well as the mean, which alone sees what a save costs
//! the few steps beside it; and what the training thread itself lost to each: beginning it, back-pressure, and waiting for
//! the copy before the next update.

mod figures;
mod turns;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::target_folder;
use crate::error::Error;
use crate::{libtorch, process, python, repository, test};
use figures::Figures;
use turns::{Answer, Turns};

/// Steps between two saves, and of the turns that show what saves cost.
const STEPS: usize = 10;
/// Steps of the other turns.
const FEW: usize = 3;

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where saves go, several one beside the other [default: /dev/shm, where there is one, and target/bench]
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,
    /// Rounds that count
    #[arg(long, default_value_t = 11)]
    rounds: u32,
    /// Only one half of it
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// A small model and three rounds: whether it runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Print all figures as JSON too, on the last line
    #[arg(long)]
    json: bool,
}

/// The model and its batch.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    layers: u32,
    dim: u32,
    ffn: u32,
    rows: u32,
    length: u32,
}

impl Sizes {
    const FULL: Self = Self { layers: 8, dim: 128, ffn: 352, rows: 8, length: 256 };
    const QUICK: Self = Self { layers: 2, dim: 128, ffn: 352, rows: 2, length: 64 };
    const HEADS: u32 = 16;
    const KV_HEADS: u32 = 8;
    const HEAD_DIM: u32 = 16;
    const VOCABULARY: u32 = 256;

    const fn tokens(self) -> u32 {
        self.rows * self.length
    }

    fn for_torch(self) -> Value {
        let Self { layers, dim, ffn, length, .. } = self;
        json!({
            "layers": layers, "dim": dim, "ffn": ffn, "heads": Self::HEADS, "kv_heads": Self::KV_HEADS,
            "head_dim": Self::HEAD_DIM, "vocab": Self::VOCABULARY, "max_length": length,
        })
    }

    fn for_us(self) -> Vec<String> {
        let Self { layers, dim, ffn, rows, length } = self;
        let (heads, kv_heads, head_dim) = (Self::HEADS, Self::KV_HEADS, Self::HEAD_DIM);
        vec![
            format!("model.layers={layers}"),
            format!("model.dim={dim}"),
            format!("model.ffn={ffn}"),
            format!("model.heads={heads}"),
            format!("model.kv_heads={kv_heads}"),
            format!("model.head_dim={head_dim}"),
            format!("training.global_batch={rows}"),
            format!("training.micro_batch={rows}"),
            format!("training.seq_len={length}"),
            "training.steps=1000000".to_owned(),
        ]
    }
}

/// A way to train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Ours, in this mode, without saves.
    Ours(&'static str),
    /// Ours in exact mode, saving in this folder.
    Saving(PathBuf),
    /// Theirs, with the optimizer's default form or the fused one.
    Torch { fused: bool },
}

impl Way {
    /// What those with saves are compared with.
    const PLAIN: Self = Self::Ours("exact");
}

/// One half of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A step against PyTorch's.
    Speed,
    /// What saves cost.
    Saves,
}

/// Measures and prints; an error if a process fails or trains another model.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    libtorch::set_up(None)?;
    let build = ["build", "--release", "--quiet", "--package", "trainer", "--example", "in_turns"];
    process::run(&mut test::cargo(&build), "the build failed")?;
    let scratch = repository::root().join("target/bench");
    let bench = Bench::new(options, &scratch)?;
    let figures = bench.measure(options.only);
    bench.clear()?;
    let figures = figures?;
    figures.print();
    if options.json {
        let text = serde_json::to_string(&figures);
        println!("{}", text.map_err(|source| Error::Answer { command: "bench trainer".to_owned(), source })?);
    }
    Ok(())
}

/// Everything that a round needs.
#[derive(Debug)]
struct Bench {
    sizes: Sizes,
    rounds: u32,
    /// Holds the text.
    scratch: PathBuf,
    /// Where saves go.
    folders: Vec<PathBuf>,
}

impl Bench {
    fn new(options: &Options, scratch: &Path) -> Result<Self, Error> {
        let memory = Path::new("/dev/shm");
        let default = [memory.to_path_buf(), scratch.to_path_buf()];
        let default = default.into_iter().filter(|folder| folder != memory || folder.is_dir());
        let folders = if options.folder.is_empty() { default.collect() } else { options.folder.clone() };
        let (sizes, rounds) =
            if options.quick { (Sizes::QUICK, 3) } else { (Sizes::FULL, options.rounds.max(1)) };
        let bench = Self { sizes, rounds, scratch: scratch.join("trainer-bench"), folders };
        bench.clear()?;
        let text = bench.scratch.join("text");
        fs::create_dir_all(&text).map_err(Error::path("create", &text))?;
        let file = text.join("text.txt");
        fs::write(&file, letters(1 << 20)).map_err(Error::path("write", &file))?;
        Ok(bench)
    }

    fn measure(&self, only: Option<Part>) -> Result<Figures, Error> {
        let before = load();
        let speed = [Way::PLAIN, Way::Torch { fused: false }, Way::Ours("fast"), Way::Torch { fused: true }];
        let saves = [Way::PLAIN].into_iter().chain(self.folders.iter().cloned().map(Way::Saving));
        let wanted = |part| only.is_none_or(|only| only == part);
        let speed = if wanted(Part::Speed) { self.rounds(speed.to_vec(), FEW)? } else { Vec::new() };
        let saves = if wanted(Part::Saves) { self.rounds(saves.collect(), STEPS)? } else { Vec::new() };
        Figures::new(self.sizes.tokens(), [before, load()], &speed, &saves)
    }

    /// All of `ways`, turn by turn of `steps` steps.
    fn rounds(&self, ways: Vec<Way>, steps: usize) -> Result<Vec<(Way, Vec<Answer>)>, Error> {
        let start = |way: Way| Ok((self.start(&way)?, way, Vec::new()));
        let mut all: Vec<(Turns, Way, Vec<Answer>)> =
            ways.into_iter().map(start).collect::<Result<_, Error>>()?;
        for round in 0..=self.rounds {
            let first = round as usize % all.len();
            let mut seconds = Vec::new();
            for at in (first..all.len()).chain(0..first) {
                let Some((turns, way, answers)) = all.get_mut(at) else { continue };
                let answer = turns.go(steps)?;
                seconds.push(format!("{way:?} {:.3} ({:.3})", answer.mean(), answer.used()));
                if round > 0 {
                    answers.push(answer);
                }
            }
            eprintln!(
                "round {round} of {}: seconds of a step (of a processor): {}",
                self.rounds,
                seconds.join(", ")
            );
        }
        Ok(all.into_iter().map(|(_, way, answers)| (way, answers)).collect())
    }

    fn start(&self, way: &Way) -> Result<Turns, Error> {
        let text = self.scratch.join("text");
        let Way::Torch { fused } = way else {
            let example = target_folder().join("release/examples/in_turns");
            let mut command = std::process::Command::new(example);
            let (mode, root, interval) = match way {
                Way::Saving(folder) => ("exact", saves(folder), STEPS),
                Way::Ours(mode) => (*mode, self.scratch.join(format!("unused-{mode}")), 0),
                Way::Torch { .. } => ("exact", PathBuf::new(), 0),
            };
            // What an earlier measurement left would be gone on from.
            remove(&root)?;
            command.args(self.sizes.for_us()).args([
                format!("training.mode={mode}"),
                format!("data.folder={}", text.display()),
                format!("checkpoint.root={}", root.display()),
                format!("checkpoint.interval={interval}"),
            ]);
            return Turns::start(command);
        };
        let mut command = python::environment()?.python();
        command.arg(repository::root().join("tests/python/bench_trainer.py")).arg(text.join("text.txt"));
        command.args(["--sizes", &self.sizes.for_torch().to_string(), "--microbatches", "1"]);
        command.args(["--rows", &self.sizes.rows.to_string(), "--length", &self.sizes.length.to_string()]);
        command.args(fused.then_some("--fused"));
        Turns::start(command)
    }

    /// Leaves nothing behind.
    fn clear(&self) -> Result<(), Error> {
        for path in self.folders.iter().map(|folder| saves(folder)).chain([self.scratch.clone()]) {
            remove(&path)?;
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    Ok(())
}

fn saves(folder: &Path) -> PathBuf {
    folder.join("ckpt-trainer-bench-saves")
}

/// Text of these many bytes: letters of a generator, so that every run trains on the same.
fn letters(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let letter = || {
        state = state * 48_271 % 2_147_483_647;
        let at = usize::try_from(state % 16).unwrap_or_default();
        b"etaoin shrdlu.\n ".get(at).copied().unwrap_or(b' ')
    };
    std::iter::repeat_with(letter).take(count).collect()
}

/// How busy the machine is, where it says so: the mean of the last minute.
fn load() -> Option<f64> {
    let said = fs::read_to_string("/proc/loadavg").ok()?;
    said.split_whitespace().next()?.parse().ok()
}
