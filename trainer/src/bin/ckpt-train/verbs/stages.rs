//! `ckpt-train stages`: the names of every stage, before anything runs; and the baseline of the unsplit model.

use std::{fs, path::Path};

use serde_json::json;
use trainer::{Error, ErrorKind, Result, run::Outline, stage::Account};

use crate::{cli::Stages, exit};

pub(super) fn run(options: &Stages) -> Result<u8> {
    let outline = Outline::new(&options.source.resolve()?)?;
    let text =
        if options.json { json(&outline, options.schedule)? } else { text(&outline, options.schedule)? };
    super::print(&text)?;
    if let Some(path) = &options.baseline {
        write(path, &outline.baseline()?)?;
        if !options.json {
            super::print(&format!("baseline  {}\n", path.display()))?;
        }
    }
    Ok(exit::DONE.number)
}

fn text(outline: &Outline, schedule: bool) -> Result<String> {
    let mut text = format!("{}\n", outline.inventory()?);
    let table = outline.program().table();
    for (stage, account) in outline.accounts().iter().enumerate() {
        let rank = table.placement.rank_of(stage).unwrap_or(0);
        let share = 100.0 * account.splittable_share();
        text += &format!(
            "stage {stage} on pipeline rank {rank}: gradients of {share:.0} % of its parameters can be put off\n"
        );
    }
    if schedule {
        text += &table.to_string();
    }
    Ok(text)
}

fn json(outline: &Outline, schedule: bool) -> Result<String> {
    let (inventory, table) = (outline.inventory()?, outline.program().table());
    let stage = |(stage, account): (usize, &Account)| {
        let names = inventory.names(stage).iter();
        json!({
            "stage": stage,
            "rank": table.placement.rank_of(stage),
            "elements": account.elements,
            "splittable": account.splittable,
            "names": names.map(|(name, elements)| json!({"fqn": name.to_string(), "elements": elements})).collect::<Vec<_>>(),
        })
    };
    let mut all = json!({
        "stages": outline.accounts().iter().enumerate().map(stage).collect::<Vec<_>>(),
        "on_several_stages": inventory.ties().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ranks": table.ranks.len(),
        "microbatches": table.microbatches,
    });
    if schedule {
        let row = |row: &Vec<schedule::Action>| row.iter().map(ToString::to_string).collect::<Vec<_>>();
        all["schedule"] = json!(table.ranks.iter().map(row).collect::<Vec<_>>());
    }
    let text = serde_json::to_string_pretty(&all);
    text.map(|text| text + "\n").map_err(|error| Error::internal(error.to_string()).caused_by(error))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
    })
}
