//! Node 0's launcher: listens, leads, serves the store.

use std::{
    collections::BTreeMap,
    io,
    net::TcpListener,
    sync::mpsc::{self, Receiver, Sender},
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    Machines,
    council::{Council, Share},
    hello::Hello,
    link::{Event, Link},
    named,
    words::{Refusal, Word},
};
use crate::{
    Error, ErrorKind, Result,
    config::check_world,
    launch::{
        Hosted, NodeMap, Outcome, Plan, StoreHost,
        accord::{Accord, Berth, Decision, Desk, Mustered, Seen, Then},
        supervise::LOOK,
    },
};

/// How long whoever was told the end may take to hang up.
const LINGER: Duration = Duration::from_secs(5);
/// How often it is said who is waited for.
const REMIND: Duration = Duration::from_secs(30);
/// Connections that may be open beside those of launchers.
const STRANGERS: usize = 64;

/// The launcher of node 0.
pub(in crate::launch) struct First<'a> {
    plan: &'a Plan,
    machines: &'a Machines,
    host: &'a dyn StoreHost,
    council: Council,
    listener: TcpListener,
    links: BTreeMap<u64, Link>,
    /// The connection of each other machine.
    of_node: BTreeMap<usize, u64>,
    count: u64,
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// Of this incarnation.
    store: Option<Hosted>,
    /// Whether the others were told that this incarnation is over.
    called_off: bool,
}

impl<'a> First<'a> {
    /// Begins to listen.
    ///
    /// # Errors
    /// `Conflict` for a port that is taken, `Config` for an address that is none of this machine.
    pub(in crate::launch) fn new(
        plan: &'a Plan,
        machines: &'a Machines,
        host: &'a dyn StoreHost,
    ) -> Result<Self> {
        let meeting = &machines.meeting;
        let listener = TcpListener::bind((meeting.host.as_str(), meeting.port))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| unheard(machines, error))?;
        let (sender, events) = mpsc::channel();
        Ok(Self {
            plan,
            machines,
            host,
            council: Council::new(Hello::of(plan, machines), plan.meaning),
            listener,
            links: BTreeMap::new(),
            of_node: BTreeMap::new(),
            count: 0,
            sender,
            events,
            store: None,
            called_off: false,
        })
    }

    /// Takes in whatever has come since.
    fn pump(&mut self, desk: &mut Desk<'_>) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.links.len() >= self.machines.nodes + STRANGERS {
                continue;
            }
            self.count += 1;
            // One that can't be listened to is as if it had not come.
            if let Ok(link) = Link::begin(stream, self.count, self.machines.silence, self.sender.clone()) {
                self.links.insert(self.count, link);
            }
        }
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Said(id, Word::Hello(hello)) => self.greet(id, *hello, desk),
                Event::Said(id, word) => self.hear(id, word),
                Event::Gone(id, why) => self.part(id, &why, desk),
            }
        }
        if let Some(said) = self.council.fallen().filter(|_| !self.called_off) {
            let word = Word::Stop { restart: self.council.restart(), said: said.to_owned() };
            self.called_off = true;
            self.tell_all(&word);
        }
    }

    fn greet(&mut self, id: u64, hello: Hello, desk: &mut Desk<'_>) {
        let (node, who, ranks) = (hello.node, hello.who(), hello.ranks);
        if self.of_node.values().any(|known| *known == id) {
            return;
        }
        match self.council.admit(hello) {
            Ok(()) => {
                (desk.say)(&format!("{who} is here, with {ranks} ranks"));
                self.of_node.insert(node, id);
            }
            Err(refusal) => {
                (desk.say)(&format!("refused {}", refusal.said));
                self.refuse(id, refusal);
            }
        }
    }

    fn refuse(&self, id: u64, refusal: Refusal) {
        if let Some(link) = self.links.get(&id) {
            link.say(&Word::Refused(refusal));
            link.fall_silent();
        }
    }

    fn hear(&mut self, id: u64, word: Word) {
        let Some(node) = self.node(id) else {
            // A stranger that does not say who it is.
            self.links.remove(&id);
            return;
        };
        match word {
            Word::Fell { restart, seen } => self.council.heard(node, restart, seen),
            Word::Ended { restart } => self.council.ended(node, restart),
            _ => {}
        }
    }

    fn part(&mut self, id: u64, why: &str, desk: &mut Desk<'_>) {
        self.links.remove(&id);
        if let Some(node) = self.node(id) {
            self.of_node.remove(&node);
            self.council.lost(node, why);
            (desk.say)(&format!("node {node} is gone: {why}"));
        }
    }

    fn node(&self, id: u64) -> Option<usize> {
        self.of_node.iter().find(|(_, known)| **known == id).map(|(node, _)| *node)
    }

    fn tell_all(&self, word: &Word) {
        for id in self.of_node.values() {
            if let Some(link) = self.links.get(id) {
                link.say(word);
            }
        }
    }

    /// Says a last word to all, and waits until they have heard it.
    fn farewell(&mut self, word: &Word, desk: &mut Desk<'_>) {
        self.tell_all(word);
        self.links.values().for_each(Link::fall_silent);
        // They are no machines of the run any more: that they go is no loss.
        self.of_node.clear();
        let until = Instant::now() + LINGER;
        while !self.links.is_empty() && Instant::now() < until {
            self.pump(desk);
            sleep(LOOK);
        }
    }

    fn refuse_all(&mut self, error: Error, desk: &mut Desk<'_>) -> Error {
        self.farewell(&Word::Refused(Refusal::of(&error)), desk);
        error
    }

    /// All are there.
    fn start(&mut self) -> Result<Berth> {
        let machines = self.council.machines();
        if let Some((mesh, tp_across_nodes)) = self.machines.laid {
            check_world(mesh, machines.len())?;
            if !tp_across_nodes {
                NodeMap::new(mesh, machines.clone()).check()?;
            }
        }
        let address = &self.machines.meeting.host;
        let hosted = self.host.start(address, self.plan.port)?;
        let restart = self.council.restart();
        let berth = |share: &Share| Berth {
            restart,
            first: share.first,
            world: machines.len(),
            node: share.node,
            nodes: self.machines.nodes,
            address: address.clone(),
            port: hosted.port,
            served: hosted.served,
            run_id: self.plan.run_id.clone(),
        };
        let shares = self.council.begin();
        for share in &shares {
            let link = self.of_node.get(&share.node).and_then(|id| self.links.get(id));
            if let Some(link) = link {
                link.say(&Word::Start(berth(share)));
            }
        }
        let own = shares.first().map(berth).ok_or_else(|| Error::internal("a run without machines"))?;
        self.store = Some(hosted);
        self.called_off = false;
        Ok(own)
    }

    fn nobody_came(&self) -> Error {
        let Machines { meeting, wait, .. } = self.machines;
        let missing = named(&self.council.missing());
        let why: String = self.council.absences().iter().map(|why| format!("; {why}")).collect();
        let said = format!("{missing} did not come to {meeting} within {:.0} s{why}", wait.as_secs_f64());
        Error::new(ErrorKind::Peer, said).hint(
            "start `ckpt-train launch` with the same arguments and its own --node-rank on every machine, and see that a firewall lets them \
             reach the address; --rdzv-timeout is how long they are waited for",
        )
    }
}

impl Accord for First<'_> {
    fn muster(&mut self, desk: &mut Desk<'_>) -> Result<Mustered> {
        // The last incarnation's, whose port may be the same.
        self.store = None;
        let until = Instant::now() + self.machines.wait;
        let mut remind = Instant::now();
        loop {
            self.pump(desk);
            let missing = self.council.missing();
            if missing.is_empty() {
                return match self.start() {
                    Ok(berth) => Ok(Mustered::Ready(berth)),
                    Err(error) => Err(self.refuse_all(error, desk)),
                };
            }
            if let Some((signal, _)) = (desk.stop)() {
                return Ok(Mustered::Over(self.stopped(signal, desk)));
            }
            if Instant::now() >= until {
                let error = self.nobody_came();
                return Err(self.refuse_all(error, desk));
            }
            if Instant::now() >= remind {
                remind += REMIND;
                let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
                let meeting = &self.machines.meeting;
                (desk.say)(&format!(
                    "node 0 waits at {meeting} for {}, for {left:.0} s more",
                    named(&missing)
                ));
            }
            sleep(LOOK);
        }
    }

    fn elsewhere(&mut self, desk: &mut Desk<'_>) -> Result<Option<String>> {
        self.pump(desk);
        Ok(self.council.fallen().map(|said| format!("{said}; ending the ranks here")))
    }

    fn tell(&mut self, seen: Seen) -> Result<()> {
        let restart = self.council.restart();
        self.council.heard(0, restart, seen);
        // The others learn of it now, and not when all ranks here have ended.
        if let Some(said) = self.council.fallen().filter(|_| !self.called_off) {
            let word = Word::Stop { restart, said: said.to_owned() };
            self.called_off = true;
            self.tell_all(&word);
        }
        Ok(())
    }

    fn verdict(&mut self, desk: &mut Desk<'_>) -> Result<Decision> {
        let restart = self.council.restart();
        self.council.ended(0, restart);
        loop {
            self.pump(desk);
            if let Some(decision) = self.council.verdict() {
                let word = Word::Verdict(decision.clone());
                match decision.then {
                    Then::Again => self.tell_all(&word),
                    Then::End(_) => self.farewell(&word, desk),
                }
                return Ok(decision);
            }
            match (desk.stop)() {
                Some((signal, 1)) => self.council.heard(0, restart, Seen::Asked(signal)),
                Some((signal, _)) => return Ok(self.stopped(signal, desk)),
                None => {}
            }
            sleep(LOOK);
        }
    }
}

impl First<'_> {
    /// Ends all, now.
    fn stopped(&mut self, signal: i32, desk: &mut Desk<'_>) -> Decision {
        let said = format!("node 0 was asked to stop by signal {signal}");
        let decision = Decision { said, then: Then::End(Outcome::Stopped(signal)) };
        self.farewell(&Word::Verdict(decision.clone()), desk);
        decision
    }
}

fn unheard(machines: &Machines, error: io::Error) -> Error {
    let meeting = &machines.meeting;
    let (kind, why, hint) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            ErrorKind::Conflict,
            "is taken",
            "end the launcher that has it, or give all launchers another port in --rdzv",
        ),
        io::ErrorKind::AddrNotAvailable => (
            ErrorKind::Config,
            "is no address of this machine",
            "--rdzv names node 0: give it on all machines as one of node 0's addresses, and --node-rank 0 there alone",
        ),
        _ => {
            (ErrorKind::Io, "can't be listened at", "give --rdzv a name or address of node 0 and a free port")
        }
    };
    Error::new(kind, format!("{meeting} {why} (node 0 listens there)")).hint(hint).caused_by(error)
}
