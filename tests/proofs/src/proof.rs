//! What all proofs have in common: their size, and what they answer.

use std::error::Error;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

/// How much is tried, and with which chance.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// As much as the project promises, instead of what fits CI
    #[arg(long)]
    pub(crate) full: bool,
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Size {
    /// One of two counts.
    pub(crate) const fn pick(&self, quick: u64, full: u64) -> u64 {
        if self.full { full } else { quick }
    }
}

/// A proof's answer.
pub(crate) trait Proof: Serialize {
    /// Its name, as typed.
    const NAME: &'static str;

    /// What is bad, a sentence each; nothing when it holds. That too little was tried is bad as well.
    fn bad(&self) -> Vec<String>;
}

#[derive(Serialize)]
struct Printed<'a, P> {
    proof: &'static str,
    seed: u64,
    full: bool,
    seconds: f64,
    holds: bool,
    figures: &'a P,
}

/// Runs a proof, prints what it came to, and says how the program ends.
pub(crate) fn conclude<P: Proof>(
    size: Size,
    run: impl FnOnce(Size) -> Result<P, Box<dyn Error>>,
) -> ExitCode {
    let began = std::time::Instant::now();
    let figures = match run(size) {
        Ok(figures) => figures,
        Err(error) => {
            eprintln!("{}: could not be carried out: {error}", P::NAME);
            return ExitCode::FAILURE;
        }
    };
    let bad = figures.bad();
    bad.iter().for_each(|what| eprintln!("bad  {}: {what}", P::NAME));
    let (seconds, holds) = (began.elapsed().as_secs_f64(), bad.is_empty());
    let printed =
        Printed { proof: P::NAME, seed: size.seed, full: size.full, seconds, holds, figures: &figures };
    match serde_json::to_string(&printed) {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("{}: its figures can't be printed: {error}", P::NAME);
            return ExitCode::FAILURE;
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
