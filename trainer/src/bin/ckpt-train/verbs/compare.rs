//! `ckpt-train compare`: two runs: their curves bit for bit, and where whole runs are given, how fast each was, what it held,
//! and what differs in how it ran.

use std::{collections::BTreeMap, path::Path};

use trainer::{
    Error, ErrorKind, Result,
    metrics::{Contrast, History, curve, first_difference},
};

use crate::{cli::Compare, exit};

pub(super) fn run(options: &Compare) -> Result<u8> {
    let (first, second) = (History::read(&options.first)?, History::read(&options.second)?);
    let (a, b) = (bits(&first, &options.first, options)?, bits(&second, &options.second, options)?);
    let apart = first_difference(&a, &b);
    let contrast = Contrast::of(&first, &second);
    if options.json {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "name": options.name,
            "same": apart.is_none(),
            "steps": a.len(),
            "differs_at": apart.map(|apart| apart.step),
            "runs": contrast,
        }));
        let text = text.map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
        super::print(&(text + "\n"))?;
        return Ok(if apart.is_none() { exit::DONE.number } else { exit::DIFFERENT.number });
    }
    // Two files are compared as curves; whole runs also by what they took.
    let rest =
        if options.first.is_dir() && options.second.is_dir() { contrast.to_string() } else { String::new() };
    let Some(apart) = apart else {
        return super::print(&format!("same  {} steps of {}, to the bit\n{rest}", a.len(), options.name));
    };
    let value = |bits: Option<u32>| {
        bits.map_or_else(|| "nothing".to_owned(), |bits| format!("{} ({bits:08x})", f32::from_bits(bits)))
    };
    let last = |of: &BTreeMap<u64, u32>| of.last_key_value().map_or(0, |(step, _)| *step);
    // One that was stopped earlier has no other losses, only fewer.
    let shorter = apart.step > last(&a).min(last(&b));
    let told = match shorter {
        true => format!(
            "one ends with step {}, the other with step {}; the steps that both have are the same, to the bit",
            last(&a),
            last(&b)
        ),
        false => format!("at step {}: {} and {}", apart.step, value(apart.first), value(apart.second)),
    };
    super::print(&format!("different  {} {told}\n{rest}", options.name))?;
    Ok(exit::DIFFERENT.number)
}

/// The curve of a run: of the file that was given, or of the first rank; every rank has the loss of the whole step.
fn bits(history: &History, given: &Path, options: &Compare) -> Result<BTreeMap<u64, u32>> {
    let rank = history.ranks.first().map_or(0, |rank| rank.rank);
    let of_rank = history.folder.join(format!("rank_{rank:05}.jsonl"));
    let path = if given.is_file() { given } else { &of_rank };
    let found = curve(path, &options.name)?;
    if found.is_empty() {
        let said = format!("{} has no values of {}", path.display(), options.name);
        return Err(Error::new(ErrorKind::NotFound, said).hint("give another --name"));
    }
    Ok(found)
}
