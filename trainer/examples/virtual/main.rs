//! Every pipeline schedule on imagined devices, whose actions sleep: measured beside simulated, with ranks that are threads of this process
//! and with ranks that are processes over gloo.
//!
//! ```text
//! virtual [--full] [--json]
//! ```
//! What deviates by more than 3 % is named, as is a gain of ZB-H1 over 1F1B below 1.20, and the exit code is 1. `cargo xtask virtual` runs
//! it. For ranks that are processes it starts itself, with `--rank R --world P --port N`.

mod processes;

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
    time::Instant,
};

use serde_json::json;
use trainer::rehearsal::{ALLOWED, Case, GAIN, Measured, full, gain, limits, quick};

/// What was asked for.
#[derive(Debug, Default)]
struct Asked {
    full: bool,
    json: bool,
    rank: Option<processes::Rank>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let asked = asked(std::env::args().skip(1))?;
    let cases = if asked.full { full() } else { quick() };
    match asked.rank {
        Some(rank) => processes::be(rank, &cases).map(|()| ExitCode::SUCCESS),
        None => measure(&asked, &cases),
    }
}

fn asked(mut arguments: impl Iterator<Item = String>) -> Result<Asked, Box<dyn Error>> {
    let mut asked = Asked::default();
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<usize, Box<dyn Error>> {
            let text = arguments.next().ok_or_else(|| format!("{argument} takes a number"))?;
            Ok(text.parse().map_err(|error| format!("{argument} {text}: {error}"))?)
        };
        match argument.as_str() {
            "--full" => asked.full = true,
            "--json" => asked.json = true,
            "--rank" => asked.rank.get_or_insert_default().rank = number()?,
            "--world" => asked.rank.get_or_insert_default().world = number()?,
            "--port" => asked.rank.get_or_insert_default().port = u16::try_from(number()?)?,
            other => return Err(format!("{other:?} is not understood: virtual [--full] [--json]").into()),
        }
    }
    Ok(asked)
}

fn measure(asked: &Asked, cases: &[Case]) -> Result<ExitCode, Box<dyn Error>> {
    let began = Instant::now();
    let mut all: Vec<Measured> = Vec::new();
    let mut show = |found: Measured| -> Result<(), Box<dyn Error>> {
        if !asked.json {
            let mark = if found.holds() { "" } else { "   <<<" };
            writeln!(io::stdout(), "{found}{mark}")?;
        }
        all.push(found);
        Ok(())
    };
    for case in cases {
        let found = case.plan()?.in_threads(&limits())?;
        show(case.measured("local", &found))?;
    }
    let mut worlds: Vec<usize> = cases.iter().map(|case| case.ranks).collect();
    worlds.dedup();
    for world in worlds {
        processes::measure(world, asked.full)?.into_iter().try_for_each(&mut show)?;
    }
    let bad: Vec<_> = all.iter().filter(|found| !found.holds()).map(ToString::to_string).collect();
    let gains = ["local", "gloo"].map(|transport| (transport, gain(&all, transport)));
    let gained = gains.iter().all(|(_, gain)| gain.is_some_and(|gain| gain >= GAIN));
    let seconds = began.elapsed().as_secs_f64();
    if asked.json {
        let figures = json!({
            "proof": "virtual", "full": asked.full, "allowed_deviation": ALLOWED, "cases": all, "least_gain": GAIN,
            "zbh1_over_1f1b": gains.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
            "seconds": seconds, "failures": bad.len() + usize::from(!gained),
        });
        writeln!(io::stdout(), "{figures}")?;
    } else {
        for (transport, gain) in gains {
            let gain = gain.map_or_else(|| "not measured".to_owned(), |gain| format!("{gain:.3}"));
            writeln!(
                io::stdout(),
                "ZBH1 over 1F1B, {transport}: {gain} (at least {GAIN:.2}; in theory 33/27 = 1.222)"
            )?;
        }
        let most = all.iter().map(|found| found.deviation).fold(0.0, f64::max);
        writeln!(io::stdout(), "{} cases in {seconds:.0} s, at most {:+.2} %", all.len(), 100.0 * most)?;
    }
    for line in &bad {
        writeln!(io::stderr(), "deviates by more than {:.0} %: {line}", 100.0 * ALLOWED)?;
    }
    if !gained {
        writeln!(io::stderr(), "ZBH1 gains less than {GAIN} over 1F1B: {gains:?}")?;
    }
    if !bad.is_empty() || !gained {
        writeln!(
            io::stderr(),
            "a machine that does other things too makes steps longer: try again when it is idle"
        )?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
