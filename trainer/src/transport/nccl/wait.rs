//! Waiting for NCCL: by looking again and again, as it has no time limits and tells nobody that a peer has died.
//!
//! Invariant: a wait ends when what it is for has happened, when the library knows of an error, soon after a peer has failed or
//! left and said so, or at the time limit: whatever the library does.

use std::{
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use super::library::Ticket;
use crate::{
    torch::c10d::{C10dError, Status},
    transport::processes::{Alarm, Carried, Pending},
};

/// From look to look: short at first, as most calls are.
const LOOK: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How often the marks of peers are read.
const MARKS: Duration = Duration::from_millis(100);
/// How long what a peer took part in before it failed or left may take to end here.
const GRACE: Duration = Duration::from_secs(1);

/// A call under way, and who else is needed for it.
pub(super) struct Running {
    pub(super) ticket: Rc<dyn Ticket>,
    pub(super) alarm: Rc<Alarm>,
}

impl Pending for Running {
    fn wait(&self, limit: Duration) -> Carried<()> {
        until("waiting for NCCL", &self.alarm, Instant::now() + limit, || self.ticket.done())
    }
}

/// Waits until `ready`.
pub(super) fn until(
    what: &'static str,
    alarm: &Alarm,
    mut deadline: Instant,
    ready: impl Fn() -> Carried<bool>,
) -> Carried<()> {
    let (mut pause, mut looked) = (LOOK.0, Instant::now());
    let mut parted = None;
    while !ready()? {
        let now = Instant::now();
        if now >= deadline {
            let (status, why) = parted.map_or_else(
                || (Status::Late, "the time limit has passed".to_owned()),
                |why: String| (Status::Network, why),
            );
            return Err(C10dError { what, status, why });
        }
        if parted.is_none() && now.duration_since(looked) >= MARKS {
            looked = now;
            parted = alarm.sounds();
            if parted.is_some() {
                deadline = deadline.min(now + GRACE);
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LOOK.1);
    }
    Ok(())
}
