//! The launcher of a machine that is not node 0: comes to node 0's, and does what that says.

use std::{
    net::{TcpStream, ToSocketAddrs as _},
    sync::mpsc::{self, Receiver, Sender},
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    Machines,
    hello::Hello,
    link::{Event, Link},
    words::{Ground, Refusal, Word},
};
use crate::{
    Error, ErrorKind, Result,
    launch::{
        Outcome, Plan,
        accord::{Accord, Decision, Desk, Mustered, Seen, Then},
        supervise::LOOK,
    },
};

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The launcher of a machine that is not node 0.
pub(in crate::launch) struct Other<'a> {
    plan: &'a Plan,
    machines: &'a Machines,
    link: Option<Link>,
    /// Number of the connection: what an earlier one left behind is not listened to.
    count: u64,
    sender: Sender<Event>,
    events: Receiver<Event>,
    restart: u32,
    /// How often node 0 was lost.
    losses: u32,
    /// Why node 0 is gone, if it is.
    lost: Option<String>,
    /// What comes next, if that is known already.
    decision: Option<Decision>,
}

impl<'a> Other<'a> {
    pub(in crate::launch) fn new(plan: &'a Plan, machines: &'a Machines) -> Self {
        let (sender, events) = mpsc::channel();
        Self {
            plan,
            machines,
            link: None,
            count: 0,
            sender,
            events,
            restart: 0,
            losses: 0,
            lost: None,
            decision: None,
        }
    }

    /// The next word of node 0's; that it is gone is remembered.
    fn next(&mut self) -> Option<Word> {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Said(id, word) if id == self.count && word != Word::Beat => return Some(word),
                Event::Gone(id, why) if id == self.count => {
                    self.link = None;
                    self.lost = Some(why);
                }
                _ => {}
            }
        }
        None
    }

    fn say(&self, word: &Word) {
        if let Some(link) = &self.link {
            link.say(word);
        }
    }

    fn connect(&mut self) -> std::io::Result<()> {
        let meeting = &self.machines.meeting;
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        for address in (meeting.host.as_str(), meeting.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => {
                    self.count += 1;
                    self.link =
                        Some(Link::begin(stream, self.count, self.machines.silence, self.sender.clone())?);
                    self.lost = None;
                    self.say(&Word::Hello(Box::new(Hello::of(self.plan, self.machines))));
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects; until `until`.
    fn reach(&mut self, until: Instant) -> Result<()> {
        let Err(error) = self.connect() else { return Ok(()) };
        if Instant::now() < until {
            sleep(PAUSE);
            return Ok(());
        }
        let Machines { meeting, wait, .. } = self.machines;
        let said =
            format!("no launcher of node 0 answers at {meeting} within {:.0} s: {error}", wait.as_secs_f64());
        Err(Error::new(ErrorKind::Peer, said)
            .hint(
                "start node 0 with the same --rdzv, which must be an address that every machine reaches it by; --rdzv-timeout is how \
                 long it is waited for",
            )
            .caused_by(error))
    }

    /// Whether node 0 may take this launcher for one that it has not yet noticed to be gone: this one, before.
    fn is_taken_for_itself(&self, refusal: &Refusal) -> bool {
        refusal.ground == Ground::Taken && self.losses > 0
    }

    fn stopped(&self, signal: i32) -> Decision {
        let said = format!("node {} was asked to stop by signal {signal}", self.machines.node);
        Decision { said, then: Then::End(Outcome::Stopped(signal)) }
    }

    /// Node 0 is gone, and no rank is left here.
    fn alone(&mut self, why: &str) -> Result<Decision> {
        let (at, most) = (&self.machines.meeting, self.plan.max_restarts);
        if self.losses >= most {
            let said =
                format!("node 0 at {at} is gone: {why}; giving up after {} of {most} restarts", self.losses);
            return Err(Error::new(ErrorKind::Peer, said).hint(
                "the output of node 0's launcher says why it ended; with --max-restarts the others wait for it to be started again",
            ));
        }
        self.losses += 1;
        let said =
            format!("node 0 at {at} is gone: {why}; waiting for it to come back ({} of {most})", self.losses);
        Ok(Decision { said, then: Then::Again })
    }
}

impl Accord for Other<'_> {
    fn muster(&mut self, desk: &mut Desk<'_>) -> Result<Mustered> {
        let until = Instant::now() + self.machines.wait;
        self.decision = None;
        loop {
            if let Some((signal, _)) = (desk.stop)() {
                return Ok(Mustered::Over(self.stopped(signal)));
            }
            if self.link.is_none() {
                self.reach(until)?;
            }
            match self.next() {
                Some(Word::Start(berth)) => {
                    self.restart = berth.restart;
                    return Ok(Mustered::Ready(berth));
                }
                Some(Word::Refused(refusal))
                    if self.is_taken_for_itself(&refusal) && Instant::now() < until =>
                {
                    self.link = None;
                    sleep(PAUSE);
                }
                Some(Word::Refused(refusal)) => return Err(refusal.error()),
                Some(Word::Verdict(decision)) if decision.then != Then::Again => {
                    return Ok(Mustered::Over(decision));
                }
                Some(_) => {}
                None => sleep(LOOK),
            }
        }
    }

    fn elsewhere(&mut self, _desk: &mut Desk<'_>) -> Result<Option<String>> {
        while let Some(word) = self.next() {
            match word {
                Word::Stop { restart, said } if restart == self.restart => {
                    return Ok(Some(format!("{said}; ending the ranks here")));
                }
                Word::Verdict(decision) => {
                    let said = format!("{}; ending the ranks here", decision.said);
                    self.decision = Some(decision);
                    return Ok(Some(said));
                }
                _ => {}
            }
        }
        Ok(self.lost.as_ref().map(|why| format!("node 0 is gone: {why}; ending the ranks here")))
    }

    fn tell(&mut self, seen: Seen) -> Result<()> {
        self.say(&Word::Fell { restart: self.restart, seen });
        Ok(())
    }

    fn verdict(&mut self, desk: &mut Desk<'_>) -> Result<Decision> {
        self.say(&Word::Ended { restart: self.restart });
        let mut asked = false;
        loop {
            // What comes after it is of the next incarnation, and waits.
            while self.decision.is_none()
                && let Some(word) = self.next()
            {
                if let Word::Verdict(decision) = word {
                    self.decision = Some(decision);
                }
            }
            if let Some(decision) = self.decision.take() {
                return Ok(decision);
            }
            if let Some(why) = self.lost.take() {
                return self.alone(&why);
            }
            match (desk.stop)() {
                Some((signal, 1)) if !asked => {
                    asked = true;
                    self.tell(Seen::Asked(signal))?;
                }
                Some((signal, count)) if count > 1 => return Ok(self.stopped(signal)),
                _ => {}
            }
            sleep(LOOK);
        }
    }
}
