//! `cargo xtask kills`: a training run that is killed again and again and moved to another mesh each time, held against one
//! that nothing happened to.
//!
//! ```text
//!  round: mesh, schedule, moment and victim by chance ─► ckpt-train launch ─► kill -9 ─► nobody is left ─► next round
//!  end:   one launch without a kill to the last step; one process without interruption beside it
//!  held:  curve of losses bit for bit, each sample once (an independent reader of both logs), weights and moments (`ckpt diff`),
//!         the newest checkpoint whole (`ckpt verify`)
//! ```
//!
//! Invariants: all chance comes from the seed; a round in which nobody was killed counts for nothing; a kill comes at any
//! moment from the start of the processes on, so also before the first step, in saves, and while groups are made.

mod plan;
mod round;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::error::Error;
use crate::{libtorch, process, python, repository, test};
use plan::{BATCH, Plan, SETTINGS};
use round::{Killed, Launch};

/// How much is tried.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// As much as the project promises, instead of what fits CI
    #[arg(long)]
    full: bool,
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    const fn kills(&self) -> u32 {
        if self.full { 100 } else { 6 }
    }
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Figures {
    proof: &'static str,
    seed: u64,
    kills: u32,
    /// Kills of ranks, of launchers, and before the first step of an incarnation.
    ranks: u32,
    launchers: u32,
    before_first_step: u32,
    /// Rounds that ended before their kill.
    missed: u32,
    meshes: usize,
    steps: u64,
    seconds: f64,
    bad: Vec<String>,
}

/// Kills, and holds what is left against an undisturbed run.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let began = Instant::now();
    let trial = Trial::new(options)?;
    let mut figures = trial.rounds(options)?;
    trial.finish(&mut figures)?;
    trial.hold(&mut figures)?;
    figures.seconds = began.elapsed().as_secs_f64();
    let text = serde_json::to_string(&figures);
    println!("{}", text.map_err(|source| Error::Answer { command: "kills".to_owned(), source })?);
    match figures.bad.len() {
        0 => Ok(()),
        count => Err(Error::Checks { count, what: "the checks of a run that was killed".to_owned() }),
    }
}

/// The folder, and the programs that are called in it.
struct Trial {
    folder: PathBuf,
    programs: PathBuf,
    python: python::Environment,
}

impl Trial {
    fn new(options: &Options) -> Result<Self, Error> {
        libtorch::require_cxx_compiler()?;
        libtorch::set_up(None)?;
        let python = python::environment()?;
        // Each alone, as the demo builds them: together they would be built with other features, all anew.
        for (package, program) in [("ckpt", "ckpt"), ("trainer", "ckpt-train")] {
            let build = ["build", "--quiet", "--package", package, "--bin", program];
            process::run(&mut test::cargo(&build), "cargo's own message is above")?;
        }
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository::root().join("target"), PathBuf::from);
        let folder = target.join("kills");
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(Error::path("remove", &folder))?;
        }
        let text = folder.join("text");
        fs::create_dir_all(&text).map_err(Error::path("create", &text))?;
        let file = text.join("text.txt");
        fs::write(&file, letters(options.seed)).map_err(Error::path("write", &file))?;
        Ok(Self { folder, programs: target.join("debug"), python })
    }

    fn rounds(&self, options: &Options) -> Result<Figures, Error> {
        let mut plan = Plan::new(options.seed);
        let mut figures = Figures { proof: "kills", seed: options.seed, ..Figures::default() };
        let mut meshes = std::collections::BTreeSet::new();
        while figures.kills < options.kills() && figures.missed <= options.kills() {
            let round = plan.round();
            meshes.insert(round.mesh);
            let launch =
                Launch::start(self.launcher("moved", round.ranks(), &round.settings()), &self.folder)?;
            match launch.kill(&round)? {
                Killed::Nobody(said) => {
                    figures.missed += 1;
                    eprintln!("kills: {round}: ended before the kill: {said}");
                }
                Killed::Somebody { launcher, trained } => {
                    figures.kills += 1;
                    figures.launchers += u32::from(launcher);
                    figures.ranks += u32::from(!launcher);
                    figures.before_first_step += u32::from(!trained);
                    eprintln!("kills: {} of {}: {round}", figures.kills, options.kills());
                }
                Killed::Left(left) => {
                    figures.kills += 1;
                    figures.bad.push(format!("{round}: processes {left:?} outlived their launcher"));
                }
            }
        }
        if figures.kills < options.kills() {
            figures.bad.push(format!("only {} of {} rounds came to a kill", figures.kills, options.kills()));
        }
        figures.meshes = meshes.len();
        Ok(figures)
    }

    /// Some steps more than any incarnation has seen, on a mesh of four, and the same in one process.
    fn finish(&self, figures: &mut Figures) -> Result<(), Error> {
        figures.steps = self.last_step("moved") + 5;
        let steps = format!("training.steps={}", figures.steps);
        let settings = [steps.clone(), "parallelism.mesh=2x2x1".to_owned()];
        let mut last = self.launcher("moved", 4, &settings);
        let mut still = self.train("still", &[steps]);
        for (what, command) in [("the last launch", &mut last), ("the run without kills", &mut still)] {
            let output = process::output(command.current_dir(&self.folder))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                figures.bad.push(format!("{what} ended with {}: {}", output.status, tail(&said)));
            }
        }
        Ok(())
    }

    fn hold(&self, figures: &mut Figures) -> Result<(), Error> {
        let script = repository::root().join("tests/python/check_trainer_run.py");
        let mut curves = self.python.python();
        curves.arg(script).args([figures.steps.to_string(), BATCH.to_string()]).args([
            "moved-metrics/rank_00000.jsonl",
            "moved-metrics/samples.jsonl",
            "still-metrics/rank_00000.jsonl",
        ]);
        let mut verify = self.program("ckpt");
        verify.args(["verify", "moved"]);
        let mut diff = self.program("ckpt");
        diff.args(["diff", "moved", "still"]);
        for (what, command) in
            [("curves and samples", &mut curves), ("verify", &mut verify), ("diff", &mut diff)]
        {
            let output = process::output(command.current_dir(&self.folder))?;
            let said = [&output.stdout[..], &output.stderr[..]].concat();
            let said = String::from_utf8_lossy(&said);
            if !output.status.success() || said.trim().is_empty() {
                figures.bad.push(format!("{what}: {}: {}", output.status, tail(&said)));
            }
        }
        Ok(())
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
    }

    fn launcher(&self, run: &str, ranks: u32, settings: &[String]) -> Command {
        let mut command = self.program("ckpt-train");
        command
            .args(["launch", "--max-restarts", "0", "--grace", "20s", "--logs"])
            .arg(format!("{run}-logs"));
        command.args(["--nproc", &ranks.to_string(), "--"]).args(of(run, settings));
        command
    }

    fn train(&self, run: &str, settings: &[String]) -> Command {
        let mut command = self.program("ckpt-train");
        command.arg("train").args(of(run, settings));
        command
    }

    /// The highest step that any incarnation has a loss of.
    fn last_step(&self, run: &str) -> u64 {
        let path = self.folder.join(format!("{run}-metrics/rank_00000.jsonl"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let steps = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        steps.filter_map(|record| record["step"].as_u64()).max().unwrap_or(0)
    }
}

fn of(run: &str, settings: &[String]) -> Vec<String> {
    let own = [format!("checkpoint.root={run}"), format!("metrics.folder={run}-metrics")];
    let common = SETTINGS.iter().map(|setting| (*setting).to_owned());
    common.chain(own).chain(settings.iter().cloned()).map(|setting| format!("--{setting}")).collect()
}

/// The last lines, for a report.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().rev().take(6).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

/// A text to train on.
fn letters(seed: u64) -> Vec<u8> {
    let mut chance = plan::Chance::new(seed ^ 0x7e87);
    let letter = || b"etaoin shrdlu.\n "[usize::try_from(chance.below(16)).unwrap_or_default()];
    std::iter::repeat_with(letter).take(1 << 20).collect()
}

/// The processes that `pid` has started and that are still there.
fn children(pid: u32) -> Vec<u32> {
    let path = Path::new("/proc").join(format!("{pid}/task/{pid}/children"));
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
