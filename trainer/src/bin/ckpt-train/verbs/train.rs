//! `ckpt-train train`: resolves the configuration, finds out which rank this is, and trains.

use trainer::{
    Error, ErrorKind, Result,
    config::{Resolved, check_world},
    launch::Ranks,
};

use crate::cli::Train;

pub(super) fn run(options: &Train) -> Result<u8> {
    let resolved = options.source.resolve()?;
    if options.print_config {
        return super::print(&resolved.to_toml()?);
    }
    let ranks = Ranks::from_env()?;
    if ranks.world > 1 {
        check_world(resolved.config.parallelism.mesh, ranks.world)?;
    }
    start(&resolved, &ranks)
}

/// The one place where training begins: `trainer::run::train(&resolved, &ranks)`, once this build has it.
fn start(resolved: &Resolved, ranks: &Ranks) -> Result<u8> {
    let mesh = resolved.config.parallelism.mesh;
    let said = format!("this build has no training loop yet (mesh {mesh}; {ranks})");
    Err(Error::new(ErrorKind::Unsupported, said).hint("--print-config shows what would be trained"))
}
