//! `ckpt-train stages`: the names of every stage, before anything runs; and the baseline of the unsplit model.

use std::{fs, path::Path};

use trainer::{Error, ErrorKind, Result, run::Outline};

use crate::cli::Stages;

pub(super) fn run(options: &Stages) -> Result<u8> {
    let outline = Outline::new(&options.source.resolve()?)?;
    let mut text = format!("{}\n", outline.inventory()?);
    for (stage, account) in outline.accounts().iter().enumerate() {
        let rank = outline.program().table().placement.rank_of(stage).unwrap_or(0);
        let share = 100.0 * account.splittable_share();
        text += &format!(
            "stage {stage} on pipeline rank {rank}: gradients of {share:.0} % of its parameters can be put off\n"
        );
    }
    if options.schedule {
        text += &outline.program().table().to_string();
    }
    if let Some(path) = &options.baseline {
        write(path, &outline.baseline()?)?;
        text += &format!("baseline  {}\n", path.display());
    }
    super::print(&text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
    })
}
