//! In which order, and by which steps, a tool copies.

use std::path::Path;
use std::process::Command;

use super::scene::State;
use crate::chance::Chance;
use crate::training::{Outcome, location};

/// How a tool writes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Into its name, from its beginning: `cp`, `tar`.
    InPlace,
    /// Into a temporary name beside it, then renamed: `rsync`.
    Beside,
    /// At once: a bucket shows an object whole or not at all.
    AtOnce,
}

/// A way to copy.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) name: String,
    pub(super) manner: Manner,
    pub(super) paths: Vec<String>,
}

/// The orders that are tried: of the tools that are there, and others.
pub(super) fn orders(copied: &State, random: u64, chance: &mut Chance) -> Outcome<Vec<Order>> {
    let sorted: Vec<String> = copied.keys().cloned().collect();
    let order = |name: &str, manner, paths: Vec<String>| Order { name: name.to_owned(), manner, paths };
    let log_first = |first: bool| {
        let mut paths = sorted.clone();
        paths.sort_by_key(|path| path.starts_with("commits/") != first);
        paths
    };
    let mut orders = vec![
        order("sorted", Manner::InPlace, sorted.clone()),
        order("reversed", Manner::InPlace, sorted.iter().rev().cloned().collect()),
        order("the log first", Manner::AtOnce, log_first(true)),
        order("the log last", Manner::AtOnce, log_first(false)),
        // rsync sorts its list, files of a folder before folders in it.
        order("rsync", Manner::Beside, files_first(&sorted)),
    ];
    for tool in ["cp -r", "tar"] {
        if let Some(paths) = told_by(tool, copied)? {
            orders.push(order(tool, Manner::InPlace, paths));
        }
    }
    for number in 0..random {
        let mut paths = sorted.clone();
        chance.shuffle(&mut paths);
        let manner = [Manner::InPlace, Manner::Beside, Manner::AtOnce];
        orders.push(order(
            &format!("random {number}"),
            *chance.of(&manner).unwrap_or(&Manner::AtOnce),
            paths,
        ));
    }
    Ok(orders)
}

fn files_first(sorted: &[String]) -> Vec<String> {
    let mut paths = sorted.to_vec();
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned()).unwrap_or_default();
    paths.sort_by_key(|path| (folder(path), path.clone()));
    paths
}

/// The order that the real tool tells of.
fn told_by(tool: &str, copied: &State) -> Outcome<Option<Vec<String>>> {
    let scratch = crate::training::scratch()?;
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    lay_out(&from, copied)?;
    let mut command = match tool {
        "tar" => {
            let mut tar = Command::new("tar");
            tar.args([
                "-c",
                "-v",
                "-f",
                location(&scratch.path().join("all.tar"))?,
                "-C",
                location(&from)?,
                ".",
            ]);
            tar
        }
        _ => {
            let mut cp = Command::new("cp");
            cp.args(["-r", "-v", location(&from)?, location(&to)?]);
            cp
        }
    };
    let Ok(output) = command.output() else { return Ok(None) };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let known = |line: &str| {
        let path = copied.keys().find(|path| line.contains(&format!("/{path}")));
        path.cloned()
    };
    let mut paths: Vec<String> = Vec::new();
    for path in text.lines().filter_map(known) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok((paths.len() == copied.len()).then_some(paths))
}

/// Writes a state into a folder.
pub(super) fn lay_out(folder: &Path, state: &State) -> Outcome<()> {
    for (path, bytes) in state {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
        std::fs::write(file, bytes)?;
    }
    Ok(())
}
