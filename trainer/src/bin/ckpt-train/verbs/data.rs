//! `ckpt-train data`: what a folder is as training data, and the proof that every sample was consumed once.

use std::{fmt::Write as _, path::Path};

use trainer::{
    Place, Result,
    data::{Corpus, log},
};

use crate::cli::Data;

pub(super) fn run(verb: &Data) -> Result<u8> {
    match verb {
        Data::Describe { folder, seq_len } => super::print(&describe(folder, *seq_len)?),
        Data::CheckLog { file } => super::print(&check(file)?),
    }
}

fn describe(folder: &Path, seq_len: u64) -> Result<String> {
    let corpus = Corpus::open(folder)?;
    let (samples, found) = (corpus.samples(seq_len)?, corpus.describe()?);
    let mut text = String::new();
    for file in &found.files {
        let short = file.sha256.get(..12).unwrap_or(&file.sha256);
        let _ = writeln!(text, "{:>12}  {short}  {}", file.bytes, crate::exit::harmless(&file.name));
    }
    let _ = writeln!(
        text,
        "{} bytes in {} files, {samples} samples of {seq_len} tokens, sha256 {}",
        found.bytes,
        found.files.len(),
        found.sha256
    );
    Ok(text)
}

fn check(file: &Path) -> Result<String> {
    let folded = log::fold(file).place(file.display())?;
    Ok(format!(
        "every sample once: {} steps, {} samples, no gap, no repeat\n{} incarnations, {} steps done again after a \
         crash, {} records cut by one\n",
        folded.steps.len(),
        folded.cursor,
        folded.incarnations,
        folded.replayed,
        folded.cut
    ))
}
