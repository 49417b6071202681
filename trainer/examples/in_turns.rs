//! Trains by the run's own loop, so many steps at a time as it is told, so that other programs can have their turn between:
//!
//! ```text
//! in_turns KEY=VALUE ...        keys of the configuration
//! ```
//! Each line on stdin is a number of steps; after them it prints one line of JSON: the seconds of each step from the end of
//! the one before (the first, from the line on), what saves kept the training thread from, and the last loss; the first time also how
//! long loading or initialising took. The end of stdin ends the run. One of several ranks where the variables of a launcher say so: each
//! rank has its own stdin and answers for itself. `cargo xtask bench trainer` is its counterpart.
//!
//! Invariant: a step's seconds hold everything that the training thread did, the begin of a save too.

use std::{
    error::Error,
    io::{self, BufRead},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use trainer::{
    Result,
    config::{Override, resolve},
    launch::Ranks,
    run::{Begun, Job, Observer, StepDone, Terms, train_observed},
};

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let overrides = std::env::args().skip(1).map(|text| text.parse());
    let overrides: Vec<Override> = overrides.collect::<std::result::Result<_, _>>()?;
    let job = Job::new(resolve(None, &overrides)?)?;
    let parameters = job.parameters();
    let ranks = Ranks::from_env()?;
    if job.ranks() != ranks.world {
        let (wanted, world) = (job.ranks(), ranks.world);
        return Err(format!(
            "the mesh has {wanted} ranks, but {world} processes were started: each needs a stdin of its own"
        )
        .into());
    }
    let terms = Terms { stop: Arc::new(AtomicBool::new(false)), restart: 0 };
    let turns = |_| Ok(Turns::new(parameters, Arc::clone(&terms.stop)));
    train_observed(&job, &ranks, &terms, turns)?;
    Ok(())
}

/// What happens between two lines on stdin.
struct Turns {
    parameters: i64,
    stop: Arc<AtomicBool>,
    left: usize,
    steps: Vec<f64>,
    /// What each save took of the training thread: to begin it, and to wait for its copy before the next update.
    saves: Vec<f64>,
    /// How many steps were done while a save was in flight.
    during_saves: usize,
    /// Steps that the checkpoint has behind it which the run goes on from, and what loading it, or initialising, took.
    begun: Option<(u64, Duration)>,
    last: Instant,
}

impl Turns {
    fn new(parameters: i64, stop: Arc<AtomicBool>) -> Self {
        let (steps, saves, last) = (Vec::new(), Vec::new(), Instant::now());
        Self { parameters, stop, left: 0, steps, saves, during_saves: 0, begun: None, last }
    }

    /// Waits for the next turn; at the end of stdin, asks to stop.
    fn wait(&mut self) -> Result<()> {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line)?;
        match line.trim().parse() {
            Ok(left) if read > 0 => self.left = left,
            _ => {
                self.left = usize::MAX;
                self.stop.store(true, Ordering::SeqCst);
            }
        }
        self.last = Instant::now();
        Ok(())
    }

    fn tell(&mut self, loss: f32) {
        let begun = self.begun.take();
        let answer = json!({
            "from": begun.map(|(step, _)| step),
            "loading": begun.map(|(_, took)| took.as_secs_f64()),
            "steps": std::mem::take(&mut self.steps),
            "saves": std::mem::take(&mut self.saves),
            "during_saves": std::mem::take(&mut self.during_saves),
            "parameters": self.parameters,
            "loss": loss,
        });
        println!("{answer}");
    }
}

impl Observer for Turns {
    fn begun(&mut self, begun: &Begun) -> Result<()> {
        self.begun = Some((begun.step, begun.took));
        self.wait()
    }

    fn step(&mut self, step: &StepDone) -> Result<()> {
        let now = Instant::now();
        self.steps.push(now.duration_since(self.last).as_secs_f64());
        self.last = now;
        self.during_saves += usize::from(step.saving);
        if let Some(save) = self.saves.last_mut() {
            *save += step.stall.as_secs_f64();
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.tell(step.loss);
            self.wait()?;
        }
        Ok(())
    }

    fn saving(&mut self, _: u64, _: Duration) -> Result<()> {
        self.saves.push(self.last.elapsed().as_secs_f64());
        Ok(())
    }

    fn warn(&mut self, text: &str) -> Result<()> {
        eprintln!("{text}");
        Ok(())
    }

    fn speaker(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        Arc::new(|line| eprintln!("{line}"))
    }
}
