//! SIGINT and SIGTERM: the first asks the work to stop cleanly, a second ends the process at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use dcp::{Cancel, Error, ErrorKind};
use signal_hook::consts::{SIGINT, SIGTERM};

static SEEN: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Installs the handlers and yields the wish to stop that they express.
///
/// # Errors
/// Where the system refuses handlers.
pub(crate) fn install() -> Result<Cancel, Error> {
    let cancel = Cancel::new();
    for signal in [SIGINT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        let code = 128 + signal;
        // Order matters: the conditional exit must see the flag as it was before this very signal.
        signal_hook::flag::register_conditional_shutdown(signal, code, cancel.flag())
            .and_then(|_| signal_hook::flag::register(signal, cancel.flag()))
            .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&SEEN), number))
            .map_err(|error| {
                Error::new(ErrorKind::Internal, "cannot install signal handlers").caused_by(error)
            })?;
    }
    Ok(cancel)
}

/// The signal that was seen last.
pub(crate) fn signal() -> Option<i32> {
    match SEEN.load(Ordering::Relaxed) {
        0 => None,
        number => i32::try_from(number).ok(),
    }
}
