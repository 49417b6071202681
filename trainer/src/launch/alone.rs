//! A launcher that knows of no other machine.

use super::{
    Hosted, Plan, StoreHost,
    accord::{Accord, Berth, Decision, Desk, Mustered, Patience, Seen, Then, decide},
};
use crate::Result;

/// Where ranks of one machine meet.
const HERE: &str = "127.0.0.1";

/// The only launcher of a run.
pub(super) struct Alone<'a> {
    plan: &'a Plan,
    host: &'a dyn StoreHost,
    /// Of this incarnation.
    store: Option<Hosted>,
    restart: u32,
    seen: Vec<(usize, Seen)>,
}

impl<'a> Alone<'a> {
    pub(super) const fn new(plan: &'a Plan, host: &'a dyn StoreHost) -> Self {
        Self { plan, host, store: None, restart: 0, seen: Vec::new() }
    }
}

impl Accord for Alone<'_> {
    fn muster(&mut self, _desk: &mut Desk<'_>) -> Result<Mustered> {
        // The last incarnation's, whose port may be the same.
        self.store = None;
        let hosted = self.host.start(HERE, self.plan.port)?;
        let berth = Berth {
            restart: self.restart,
            first: 0,
            world: self.plan.workers,
            node: 0,
            nodes: 1,
            address: HERE.to_owned(),
            port: hosted.port,
            served: hosted.served,
            run_id: self.plan.run_id.clone(),
        };
        self.store = Some(hosted);
        Ok(Mustered::Ready(berth))
    }

    fn elsewhere(&mut self, _desk: &mut Desk<'_>) -> Result<Option<String>> {
        Ok(None)
    }

    fn tell(&mut self, seen: Seen) -> Result<()> {
        self.seen.push((0, seen));
        Ok(())
    }

    fn verdict(&mut self, _desk: &mut Desk<'_>) -> Result<Decision> {
        let Plan { max_restarts, meaning, .. } = *self.plan;
        let patience = Patience { restart: self.restart, max_restarts, meaning };
        let decision = decide(&std::mem::take(&mut self.seen), 1, patience);
        self.restart += u32::from(decision.then == Then::Again);
        Ok(decision)
    }
}
