//! `ckpt-train preflight`: the whole road once, on this machine, in seconds: four workers train a model of eight layers in a pipeline, one
//! of them is killed, the launcher starts all again from the last checkpoint, another mesh goes on from there; and it is proven that nothing
//! of that can be seen in the losses, the samples or the names. What fails here would fail on many machines, after hours.
//!
//! Invariant: a check says what it found, not only that it passed; whatever a process of this road printed is kept in the folder.

mod checks;
mod road;

use std::{fs, path::PathBuf, time::Instant};

use clap::Args;
use serde::Serialize;
use trainer::{Error, ErrorKind, Result};

use self::road::Road;
use crate::exit;

/// Options of `preflight`.
#[derive(Debug, Args)]
pub(crate) struct Preflight {
    /// The pipeline schedule of the four workers.
    #[arg(long, default_value = "ZBH1", value_name = "NAME")]
    schedule: String,
    /// Where the run, its logs and its metrics are kept; a folder of its own that is removed if all is well, if not given.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a check found.
#[derive(Debug, Serialize)]
struct Found {
    check: &'static str,
    passed: bool,
    /// What was found, or why not.
    said: String,
    seconds: f64,
}

pub(super) fn run(options: &Preflight) -> Result<u8> {
    let own = std::env::temp_dir().join(format!("ckpt-train-preflight-{}", std::process::id()));
    let folder = options.folder.clone().unwrap_or_else(|| own.clone());
    if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::new(ErrorKind::Conflict, format!("{} is not empty", folder.display()))
            .hint("give --folder one that is empty, or does not exist"));
    }
    let road = Road::new(&folder, &options.schedule)?;
    let mut found = Vec::new();
    for (check, act) in checks::ALL {
        let began = Instant::now();
        let outcome = act(&road);
        let passed = outcome.is_ok();
        let said = outcome.unwrap_or_else(|error| told(&error));
        let it = Found { check, passed, said, seconds: began.elapsed().as_secs_f64() };
        if !options.json {
            let word = if passed { "ok    " } else { "FAILED" };
            super::print(&format!(
                "{word}  {check:<42} {:>5.1} s  {}\n",
                it.seconds,
                exit::harmless(&it.said)
            ))?;
        }
        found.push(it);
        // What comes later looks at what this one left.
        if !passed {
            break;
        }
    }
    let all = found.len() == checks::ALL.len() && found.iter().all(|it| it.passed);
    if options.json {
        let text = serde_json::to_string_pretty(&serde_json::json!({ "passed": all, "checks": found }));
        super::print(&(text.map_err(|error| Error::internal(error.to_string()))? + "\n"))?;
    }
    let kept = !all || options.folder.is_some();
    if !kept {
        // What is left in a folder for temporary files harms nobody.
        let _ = fs::remove_dir_all(&folder);
    } else if !options.json {
        super::print(&format!("kept    {}: settings, logs, metrics, checkpoints\n", folder.display()))?;
    }
    Ok(if all { exit::DONE.number } else { exit::DIFFERENT.number })
}

fn told(error: &Error) -> String {
    error.hint_text().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"))
}
