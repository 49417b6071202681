//! Writing the fixtures anew, beside the committed ones, and saying how what they hold differs.
//!
//! Files never compare equal (torch puts random ids into them), so the models beside them are compared. Nothing is
//! replaced: a changed fixture is a decision, made by copying it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{process, python, repository};

/// In this order: later ones start from what earlier ones wrote. `torch_old.py` needs environments of its own.
const SCRIPTS: [&str; 6] =
    ["torch_dcp.py", "python_3_13_path.py", "pt.py", "hf.py", "hostile.py", "torch_sharding.py"];
const KINDS: [&str; 6] = ["torch_dcp", "pt", "hf", "safetensors", "hostile", "torch_sharding"];

/// Runs the scripts and prints the differences.
pub(crate) fn run() -> Result<(), Error> {
    let environment = python::environment()?;
    let committed = repository::root().join("fixtures");
    let scratch = repository::root().join("target/fixtures");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).map_err(Error::path("remove", &scratch))?;
    }
    fs::create_dir_all(&scratch).map_err(Error::path("create", &scratch))?;
    for script in SCRIPTS {
        let mut command = environment.python();
        command.arg("-Wignore").arg(committed.join("scripts").join(script)).current_dir(&scratch);
        eprintln!("$ {}", process::shown(&command));
        process::run(&mut command, "Python's message is above")?;
    }
    let lines = KINDS.iter().map(|kind| differences(&committed.join(kind), &scratch.join(kind)));
    let lines: Vec<_> = lines.collect::<Result<Vec<_>, _>>()?.concat();
    lines.iter().for_each(|line| println!("{line}"));
    println!("{} differences; the new ones are in {}", lines.len(), scratch.display());
    Ok(())
}

fn differences(committed: &Path, fresh: &Path) -> Result<Vec<String>, Error> {
    let names: BTreeSet<PathBuf> = models(committed)?.into_iter().chain(models(fresh)?).collect();
    let mut lines = Vec::new();
    for name in names {
        let (old, new) = (fs::read(committed.join(&name)), fs::read(fresh.join(&name)));
        let verdict = match (old, new) {
            (Ok(old), Ok(new)) if old == new => continue,
            (Ok(_), Ok(_)) => "changed",
            (Ok(_), Err(_)) => "not written by these scripts",
            (Err(_), _) => "new",
        };
        lines.push(format!("{verdict}  {}", committed.join(&name).display()));
    }
    Ok(lines)
}

fn models(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(Error::path("list", folder))?;
    let names = entries.flatten().map(|entry| PathBuf::from(entry.file_name()));
    Ok(names.filter(|name| name.extension().is_some_and(|extension| extension == "json")).collect())
}
