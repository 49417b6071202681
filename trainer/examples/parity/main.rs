//! The parity matrix: every schedule × {2, 4} pipeline ranks × {1, 2} replicas × {1, 2} tensor-parallel ranks, sharded each way, with
//! tied embeddings and without; layers that are computed again; tokens that are cut over tensor-parallel ranks. Losses and the gradient
//! of every FQN are compared with one process, bit by bit.
//!
//! ```text
//! parity [--full] [--seed N]
//! ```
//! Figures go to stdout as one line of JSON; what differs, to stderr, and the exit code is 1. `cargo xtask parity` runs it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    error::Error,
    io::{self, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::json;
use trainer::{
    parity::{Case, Evidence, Place, evidence, full, quick},
    transport::Limits,
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut whole, mut seed, mut arguments) = (false, 1_u64, std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--full" => whole = true,
            "--seed" => seed = arguments.next().ok_or("--seed takes a number")?.parse()?,
            other => return Err(format!("{other:?} is not understood: parity [--full] [--seed N]").into()),
        }
    }
    let folder = tempfile::tempdir()?;
    let place = Place(folder.path());
    place.prepare()?;
    let began = Instant::now();
    let cases = if whole { full() } else { quick() };
    let mut alone = BTreeMap::new();
    for reference in cases.iter().map(Case::reference) {
        if let Entry::Vacant(place_of) = alone.entry(reference.to_string()) {
            place_of.insert(ran(place, &reference, seed)?);
        }
    }
    let mut bad = Vec::new();
    for case in &cases {
        let differs = match ran(place, case, seed) {
            Ok(found) => match alone.get(&case.reference().to_string()) {
                Some(alone) => found.differs(alone),
                None => vec!["nothing to compare it with".to_owned()],
            },
            Err(error) => vec![error.to_string()],
        };
        if !differs.is_empty() {
            writeln!(io::stderr(), "{case}: {}", differs.join("; "))?;
            bad.push(case.to_string());
        }
    }
    let gradients = alone.values().map(|alone| alone.gradients.len()).sum::<usize>();
    let figures = json!({
        "proof": "parity", "seed": seed, "full": whole, "cases": cases.len(), "schedules": schedules(&cases),
        "gradients_of_one_process": gradients, "seconds": began.elapsed().as_secs_f64(), "failures": bad.len(), "bad": bad,
    });
    writeln!(io::stdout(), "{figures}")?;
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ran(place: Place<'_>, case: &Case, seed: u64) -> trainer::Result<Evidence> {
    let mut case = case.clone();
    case.more.push(("training.seed", seed.to_string()));
    let limits =
        Limits { start: Duration::from_secs(120), step: Duration::from_secs(120), ..Limits::default() };
    evidence(&case.job(place)?, &limits)
}

fn schedules(cases: &[Case]) -> Vec<&str> {
    let mut names: Vec<&str> = cases.iter().map(|case| case.schedule).collect();
    names.sort_unstable();
    names.dedup();
    names
}
