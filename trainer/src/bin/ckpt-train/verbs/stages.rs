//! `ckpt-train stages`: the names of every stage, before anything runs; and the baseline of the unsplit model.

use std::{fs, path::Path};

use trainer::{Error, ErrorKind, Result, run::Outline};

use crate::cli::Stages;

pub(super) fn run(options: &Stages) -> Result<u8> {
    let outline = Outline::new(&options.source.resolve()?)?;
    let mut text = format!("{}\n", outline.inventory()?);
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
