//! The checks of a preflight, in the order in which each looks at what those before it left.

use dcp::{
    load::{Level, Loader},
    store::{Root, Stores},
};
use trainer::{
    Error, Result,
    data::log,
    metrics::{History, curve, first_difference},
    run::Outline,
};

use super::road::{BATCH, DIES, INTERVAL, Road, STEPS, VICTIM, WORKERS};

/// One that passes says what it found.
pub(super) type Check = fn(&Road) -> Result<String>;

pub(super) const ALL: &[(&str, Check)] = &[
    ("every name is on one stage", names),
    ("the schedule is valid and can't deadlock", schedule),
    ("one process trains, and the loss falls", alone),
    ("four workers survive the death of one", killed),
    ("another mesh goes on from their checkpoint", moved),
    ("the losses are those of one process", same),
    ("every sample was consumed once", samples),
    ("the checkpoint is whole, under the model's names", checkpoint),
];

/// Two runs: one that nothing happens to, and one that everything does.
const STILL: &str = "still";
const MOVED: &str = "moved";
const LOSS: &str = "loss_metrics/global_avg_loss";

fn failed(said: impl Into<String>) -> Error {
    Error::internal(said)
}

fn outline(road: &Road) -> Result<Outline> {
    Outline::new(&road.resolve(MOVED, &road.pipeline())?)
}

fn names(road: &Road) -> Result<String> {
    let inventory = outline(road)?.inventory()?.to_string();
    Ok(inventory.lines().last().unwrap_or_default().to_owned())
}

fn schedule(road: &Road) -> Result<String> {
    // The outline has a program only if the strict validator and both rules of communication let it pass.
    let outline = outline(road)?;
    let table = outline.program().table();
    let cells: usize = table.ranks.iter().map(Vec::len).sum();
    Ok(format!(
        "{} ranks, {} stages, {} microbatches, {cells} actions; safe under blocking sends",
        table.ranks.len(),
        table.stages(),
        table.microbatches
    ))
}

fn settings(of: &[(&str, u64)]) -> Vec<String> {
    of.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

fn alone(road: &Road) -> Result<String> {
    road.train(STILL, &settings(&[("training.steps", STEPS.1), ("checkpoint.interval", 0)]))?;
    let losses = curve(&road.path(STILL).join("metrics/rank_00000.jsonl"), LOSS)?;
    let value = |bits: Option<(&u64, &u32)>| bits.map_or(f32::NAN, |(_, bits)| f32::from_bits(*bits));
    let (first, last) = (value(losses.first_key_value()), value(losses.last_key_value()));
    if losses.len() as u64 == STEPS.1 && last < first {
        return Ok(format!("from {first:.4} to {last:.4} in {} steps", losses.len()));
    }
    Err(failed(format!("{} losses of {} steps, from {first} to {last}", losses.len(), STEPS.1)))
}

fn killed(road: &Road) -> Result<String> {
    let mut more = road.pipeline();
    more.extend(settings(&[
        ("checkpoint.interval", INTERVAL),
        ("debug.die_step", DIES),
        ("debug.die_rank", VICTIM as u64),
    ]));
    let workers = WORKERS.to_string();
    let said = road.launch(MOVED, &["--nproc", &workers, "--max-restarts", "1"], &more)?;
    let told = said.lines().find(|line| line.contains("restarting all (1 of 1)"));
    let told = told.ok_or_else(|| failed("no worker died, or the launcher did not start all again"))?;
    let resumed = History::read(&road.path(MOVED).join("metrics"))?;
    let starts = resumed.ranks.iter().map(|rank| rank.incarnations).min().unwrap_or(0);
    if resumed.ranks.len() != WORKERS || starts != 2 {
        return Err(failed(format!("{} ranks were started {starts} times", resumed.ranks.len())));
    }
    Ok(told.trim_start_matches("launch").trim().to_owned())
}

fn moved(road: &Road) -> Result<String> {
    let mesh = "2x1x2";
    let mut more = settings(&[("training.steps", STEPS.1), ("checkpoint.interval", INTERVAL)]);
    more.push(format!("parallelism.mesh={mesh}"));
    more.extend(["comm.transport=local", "checkpoint.resume=require"].map(str::to_owned));
    road.train(MOVED, &more)?;
    Ok(format!("{mesh} goes on from step {} to {}", STEPS.0, STEPS.1))
}

fn same(road: &Road) -> Result<String> {
    let of = |run: &str| curve(&road.path(run).join("metrics/rank_00000.jsonl"), LOSS);
    let (still, moved) = (of(STILL)?, of(MOVED)?);
    match first_difference(&still, &moved) {
        None => Ok(format!("{} of {} losses are equal to the last bit", moved.len(), still.len())),
        Some(apart) => Err(failed(format!(
            "at step {} it is {:?}, and {:?} in one process",
            apart.step,
            apart.second.map(f32::from_bits),
            apart.first.map(f32::from_bits)
        ))),
    }
}

fn samples(road: &Road) -> Result<String> {
    let path = road.path(MOVED).join("metrics/samples.jsonl");
    let folded = log::fold(&path).map_err(|error| failed(error.to_string()).caused_by(error))?;
    let (steps, starts) = (folded.steps.len() as u64, folded.incarnations);
    if (steps, folded.cursor) != (STEPS.1, STEPS.1 * BATCH) {
        return Err(failed(format!("{} samples in {steps} steps", folded.cursor)));
    }
    Ok(format!("{} samples in {steps} steps and {starts} starts: no gap, no repeat", folded.cursor))
}

fn checkpoint(road: &Road) -> Result<String> {
    let store = road.path(MOVED).join("store").display().to_string();
    let root = Root::open(&store, &Stores::new()).map_err(dcp::Error::from)?;
    let run = "main".parse().map_err(|error| failed(format!("{error}")))?;
    let loader = Loader::newest(&root, &run)?;
    if let Some(finding) = loader.check(Level::Full)?.first() {
        return Err(failed(finding.message.to_string()));
    }
    let params = loader.catalog().registry.entries().iter().filter(|entry| entry.role == fqn::Role::Param);
    let mut registry = fqn::Registry::new();
    for entry in params {
        registry.push(entry.clone()).map_err(|error| failed(error.to_string()).caused_by(error))?;
    }
    let baseline = fqn::baseline::read(&outline(road)?.baseline()?)
        .map_err(|error| failed(error.to_string()).caused_by(error))?;
    let observed = fqn::baseline::Observed { registry: &registry, pieces: &[] };
    let report = fqn::baseline::check(&baseline, observed);
    if let Some(finding) = report.findings.first() {
        return Err(failed(format!("{finding:?}")).at("names"));
    }
    let digests = loader.catalog().registry.entries().len();
    Ok(format!(
        "{} names, none missing, none more; {digests} tensors, every byte as it was hashed",
        report.agreeing
    ))
}
