//! [`VirtualRank`]: a rank whose device is imagined. Its actions take the time that a configuration gives them, by sleeping, and
//! what it sends are zeros of the right shape, over the real transport and with the real headers. So the makespan of a schedule can
//! be measured on a machine that has no devices, and held against the simulated one.
//!
//! Invariants: an action begins when its rank is free and what it needs has arrived, as in `schedule::simulate_program` with
//! posted communication; it never takes less than its time; a transfer occupies neither side. What is measured besides is what
//! threads, processes and the transport really cost, and not that the system may let a sleeper lie for a while to wake several at
//! once.

mod clock;
mod slack;
mod times;

pub use times::times;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use schedule::{Action, Direction, Durations, Edge, Placement, Program, Step, Timing};
use tch::{Device, Kind as Dtype, Tensor};

use self::clock::Stamp;
use super::{
    Executor, interpret,
    posted::{self, Letter, Posted},
};
use crate::{
    Error, Result,
    transport::{Header, Kind, Transport},
};

/// What a virtual rank is made of.
#[derive(Clone, Copy)]
pub struct VirtualLinks<'a> {
    /// Messages.
    pub transport: &'a dyn Transport,
    /// The transport's rank of each pipeline rank.
    pub peers: &'a [usize],
    /// Milliseconds of every action and transfer.
    pub timing: &'a Timing,
    /// Shapes of what each stage gives the next.
    pub shapes: &'a [Vec<Vec<i64>>],
}

/// When a rank's first action of a step began, and its last one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Microseconds since the epoch of the system's clock.
    pub first: u64,
    /// Likewise.
    pub last: u64,
}

/// One rank with an imagined device.
pub struct VirtualRank<'a> {
    links: VirtualLinks<'a>,
    placement: &'a Placement,
    step: u64,
    defers: bool,
    posted: Posted,
    arrived: HashMap<Letter, Stamp>,
    span: Option<Span>,
}

impl<'a> VirtualRank<'a> {
    /// Runs the row of pipeline rank `rank` once, as training step `step`.
    ///
    /// # Errors
    /// The transport's, with the place in the schedule.
    pub fn run(program: &'a Program, rank: usize, links: VirtualLinks<'a>, step: u64) -> Result<Span> {
        let placement = &program.table().placement;
        let (posted, arrived, defers) =
            (Posted::default(), HashMap::new(), posted::has_room(program, links.transport));
        let mut it = Self { links, placement, step, defers, posted, arrived, span: None };
        let _punctual = slack::Punctual::begin();
        interpret(program, rank, &mut it)?;
        links.transport.flush()?;
        it.span.ok_or_else(|| Error::internal(format!("pipeline rank {rank} computed nothing")))
    }

    fn compute(&mut self, cell: &Action) -> Result<()> {
        for part in cell.parts() {
            if let Some(letter) = self.needs(part) {
                self.arrival(letter)?;
            }
        }
        self.spend(self.links.timing.cell(*cell));
        Ok(())
    }

    /// Sleeps for so many milliseconds, and counts them as work.
    fn spend(&mut self, millis: f64) {
        let begun = Stamp::now();
        sleep_until(Instant::now() + duration(millis));
        let (first, last) = (begun.micros(), Stamp::now().micros());
        self.span = Some(Span { first: self.span.map_or(first, |span| span.first), last });
    }

    /// What must come from another rank before `part` can begin.
    fn needs(&self, part: Action) -> Option<Letter> {
        let letter = Letter::needed_by(part)?;
        let from = match letter.kind {
            Kind::Forward => self.placement.rank_before(part.stage),
            Kind::Backward => self.placement.next_rank(part.stage),
        };
        from.map(|_| letter)
    }

    /// Waits until a message is here and its transfer is over.
    fn arrival(&mut self, letter: Letter) -> Result<()> {
        if let Some((peer, due)) = self.posted.until(letter) {
            for (letter, header) in due {
                self.take(peer, letter, &header)?;
            }
        }
        let sent = self.arrived.remove(&letter);
        let sent = sent.ok_or_else(|| Error::internal(format!("{letter:?} is not there yet")))?;
        let transfer = duration(self.links.timing.transfer(edge(letter)));
        std::thread::sleep(transfer.saturating_sub(sent.age()));
        Ok(())
    }

    fn take(&mut self, peer: usize, letter: Letter, header: &Header) -> Result<()> {
        let tensors = self.links.transport.recv(peer, header)?;
        let stamp = tensors.last().ok_or_else(|| Error::internal("a message without its stamp"))?;
        self.arrived.insert(letter, Stamp::read(stamp)?);
        Ok(())
    }

    fn send(&self, action: &Action, kind: Kind, microbatch: usize) -> Result<()> {
        let (peer, partner) = self.other_side(action)?;
        let header = self.header(Letter { stage: partner.stage, kind, microbatch });
        let payload = header.shapes.split_last().map_or(&[][..], |(_, payload)| payload);
        let zeros = payload.iter().map(|shape| Tensor::f_zeros(shape, (Dtype::Float, Device::Cpu)));
        let mut tensors = zeros.collect::<std::result::Result<Vec<_>, _>>()?;
        tensors.push(Stamp::now().tensor()?);
        self.links.transport.send(peer, &header, &tensors)
    }

    fn receive(&mut self, action: &Action, kind: Kind, microbatch: usize) -> Result<()> {
        let (peer, _) = self.other_side(action)?;
        let letter = Letter { stage: action.stage, kind, microbatch };
        let header = self.header(letter);
        if self.defers {
            self.links.transport.expect(peer, &header)?;
            self.posted.post(peer, letter, header);
            return Ok(());
        }
        self.take(peer, letter, &header)
    }

    fn header(&self, letter: Letter) -> Header {
        let Letter { stage, kind, microbatch } = letter;
        let mut shapes = self.links.shapes.get(edge(letter).below).cloned().unwrap_or_default();
        shapes.push(clock::SHAPE.to_vec());
        Header { step: self.step, stage, microbatch, kind, shapes, dtype: Dtype::Float }
    }

    fn other_side(&self, action: &Action) -> Result<(usize, Action)> {
        let partner = action.partner();
        let rank = partner.and_then(|partner| self.placement.rank_of(partner.stage));
        let peer = rank.and_then(|rank| self.links.peers.get(rank)).copied();
        peer.zip(partner).ok_or_else(|| Error::internal(format!("{action} has no other side")))
    }
}

/// What a message goes over: activations for a stage come from the one below.
const fn edge(letter: Letter) -> Edge {
    match letter.kind {
        Kind::Forward => Edge { below: letter.stage.saturating_sub(1), direction: Direction::Forward },
        Kind::Backward => Edge { below: letter.stage, direction: Direction::Backward },
    }
}

/// Times of a checked [`Timing`] are finite and not negative.
fn duration(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default()
}

/// The system wakes a sleeper late, if only by a little, never early.
fn sleep_until(end: Instant) {
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
}

impl Executor for VirtualRank<'_> {
    fn note(&self, action: &Action) {
        self.links.transport.note(action);
    }

    fn run(&mut self, action: &Action) -> Result<()> {
        match action.step {
            Step::SendF(m) => self.send(action, Kind::Forward, m),
            Step::SendB(m) => self.send(action, Kind::Backward, m),
            Step::RecvF(m) => self.receive(action, Kind::Forward, m),
            Step::RecvB(m) => self.receive(action, Kind::Backward, m),
            Step::Unshard | Step::Reshard | Step::ReduceGrad => {
                let millis = self.links.timing.action(*action);
                if millis > 0.0 {
                    self.spend(millis);
                }
                Ok(())
            }
            _ => self.compute(action),
        }
    }
}

impl std::fmt::Debug for VirtualLinks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualLinks")
            .field("peers", &self.peers)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for VirtualRank<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualRank")
            .field("step", &self.step)
            .field("span", &self.span)
            .finish_non_exhaustive()
    }
}
