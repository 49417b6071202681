//! `ckpt-train train`: resolves the configuration, finds out which rank this is, and trains.

use std::sync::{Arc, atomic::AtomicBool};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use trainer::{
    Error, Result,
    launch::Ranks,
    run::{self, Ended, Terms},
};

use crate::{cli::Train, exit};

pub(super) fn run(options: &Train) -> Result<u8> {
    let resolved = options.source.resolve()?;
    if options.print_config {
        return super::print(&resolved.to_toml()?);
    }
    let ranks = Ranks::from_env()?;
    let terms = Terms { stop: stop_on_signals()?, restart: u64::from(ranks.restart) };
    if resolved.config.debug.is_virtual() {
        let rehearsal = run::rehearse(&resolved, &ranks, &terms)?;
        return if ranks.rank == 0 { super::print(&rehearsal.to_string()) } else { Ok(exit::DONE.number) };
    }
    let summary = run::train(resolved, &ranks, &terms)?;
    Ok(match summary.ended {
        Ended::Done => exit::DONE.number,
        Ended::Stopped => exit::TERMINATED.number,
    })
}

/// The first signal asks to save and stop at the end of the step; the second ends the process.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let failed = |error| Error::internal("cannot install signal handlers").caused_by(error);
    let stop = Arc::new(AtomicBool::new(false));
    for (signal, code) in [(SIGINT, exit::INTERRUPTED), (SIGTERM, exit::TERMINATED)] {
        flag::register_conditional_shutdown(signal, i32::from(code.number), Arc::clone(&stop))
            .map_err(failed)?;
        flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    Ok(stop)
}
