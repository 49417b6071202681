//! [`Watched`]: a transport that remembers when each action began, and how long messages and collectives took.
//!
//! Everything that a rank does passes its transport: the interpreter notes each action there before it runs, tensors go
//! through it, groups are made by it. So measuring sits at this seam alone, and neither stages nor schedules know of it.
//!
//! It costs a few readings of a clock and a look at the action's name: 6 us an action in an unoptimised build on a crowded machine, and a step of a
//! rank has some 50 actions, so about a five-thousandth of a step of the demo's model; `how_long_watching_takes` measures it.
//!
//! Invariant: what is asked of the transport is handed on unchanged, and what it answers too.

use std::{
    cell::RefCell,
    fmt,
    rc::Rc,
    time::{Duration, Instant},
};

use schedule::Action;
use tch::{Device, Tensor};

use super::{Clock, Pace, Span};
use crate::{
    Result,
    transport::{Gathering, Group, Header, Purpose, Traffic, Transport},
};

/// What was seen since it was last taken. One rank's own: not shared between threads.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    began_us: u64,
    seen: RefCell<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    spans: Vec<Span>,
    now: Option<(Action, u64)>,
    messages: Duration,
    collectives: Duration,
}

impl Watch {
    /// Begins to watch. The clock is asked once; times between are the monotonic clock's.
    #[must_use]
    pub fn new(clock: &dyn Clock) -> Self {
        Self { began: Instant::now(), began_us: clock.now_us(), seen: RefCell::default() }
    }

    /// What was seen since the last call.
    #[must_use]
    pub fn take(&self) -> Pace {
        self.end();
        let seen = self.seen.take();
        Pace::new(seen.spans, seen.messages.as_secs_f64(), seen.collectives.as_secs_f64())
    }

    fn now_us(&self) -> u64 {
        self.began_us + u64::try_from(self.began.elapsed().as_micros()).unwrap_or(0)
    }

    /// The action in progress is over.
    fn end(&self) {
        let now = self.now_us();
        let mut seen = self.seen.borrow_mut();
        if let Some((action, begin_us)) = seen.now.take() {
            seen.spans.push(Span { action, begin_us, end_us: now });
        }
    }

    fn begin(&self, action: Action) {
        self.end();
        self.seen.borrow_mut().now = Some((action, self.now_us()));
    }

    fn message<T>(&self, done: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = done();
        self.seen.borrow_mut().messages += began.elapsed();
        answer
    }

    fn collective<T>(&self, done: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let answer = done();
        self.seen.borrow_mut().collectives += began.elapsed();
        answer
    }
}

/// A transport under watch.
pub struct Watched<'a> {
    transport: &'a dyn Transport,
    watch: Rc<Watch>,
}

impl<'a> Watched<'a> {
    /// `transport`, watched.
    #[must_use]
    pub const fn new(transport: &'a dyn Transport, watch: Rc<Watch>) -> Self {
        Self { transport, watch }
    }
}

impl Transport for Watched<'_> {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn size(&self) -> usize {
        self.transport.size()
    }

    fn device(&self) -> Device {
        self.transport.device()
    }

    fn group(&self, name: &str, members: &[usize]) -> Result<Rc<dyn Group>> {
        let group = self.transport.group(name, members)?;
        Ok(Rc::new(WatchedGroup { group, watch: Rc::clone(&self.watch) }))
    }

    fn link(&self, pairs: &[(usize, usize)]) -> Result<()> {
        self.transport.link(pairs)
    }

    fn send(&self, to: usize, header: &Header, tensors: &[Tensor]) -> Result<()> {
        self.watch.message(|| self.transport.send(to, header, tensors))
    }

    fn recv(&self, from: usize, expect: &Header) -> Result<Vec<Tensor>> {
        self.watch.message(|| self.transport.recv(from, expect))
    }

    fn expect(&self, from: usize, header: &Header) -> Result<()> {
        self.transport.expect(from, header)
    }

    fn flush(&self) -> Result<()> {
        self.watch.end();
        self.watch.message(|| self.transport.flush())
    }

    fn starting(&self, starting: bool) {
        self.transport.starting(starting);
    }

    fn traffic(&self) -> Traffic {
        self.transport.traffic()
    }

    fn note(&self, action: &dyn fmt::Display) {
        // The interpreter notes actions; notes of other kinds do not begin one.
        if let Ok(action) = action.to_string().parse() {
            self.watch.begin(action);
        }
        self.transport.note(action);
    }

    fn scene(&self) -> String {
        self.transport.scene()
    }

    fn abort(&self, why: &dyn fmt::Display) {
        self.transport.abort(why);
    }
}

struct WatchedGroup {
    group: Rc<dyn Group>,
    watch: Rc<Watch>,
}

impl Group for WatchedGroup {
    fn index(&self) -> usize {
        self.group.index()
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn imagined(&self) -> bool {
        self.group.imagined()
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.watch.collective(|| self.group.all_gather(purpose, mine, shapes))
    }

    /// What passes between beginning and taking is no wait.
    fn begin_all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Gathering> {
        let begun = self.watch.collective(|| self.group.begin_all_gather(purpose, mine, shapes))?;
        let watch = Rc::clone(&self.watch);
        Ok(Gathering::later(move || watch.collective(|| begun.take())))
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.watch.collective(|| self.group.exchange(purpose, parts, shapes))
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        self.watch.collective(|| self.group.all_reduce(purpose, mine))
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.watch.collective(|| self.group.all_gather_bytes(purpose, mine))
    }

    fn barrier(&self, purpose: &Purpose) -> Result<()> {
        self.watch.collective(|| self.group.barrier(purpose))
    }
}

impl fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("watch", &self.watch).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::{
        metrics::SystemClock,
        transport::{Limits, local::World},
    };

    /// Far more than a busy machine keeps a thread waiting.
    const LATE: Duration = Duration::from_millis(400);

    #[test]
    fn actions_are_spans_and_waits_are_counted_apart_by_messages_and_collectives() {
        let paces: Vec<Pace> = thread::scope(|scope| {
            let ranks = World::new(2, Limits::default()).into_iter().map(|transport| {
                scope.spawn(move || {
                    let watch = Rc::new(Watch::new(&SystemClock));
                    let watched = Watched::new(&transport, Rc::clone(&watch));
                    let world = watched.group("world", &[0, 1]).unwrap();
                    watched.note(&format_args!("begins"));
                    watched.note(&format_args!("0F0"));
                    if watched.rank() == 1 {
                        thread::sleep(LATE);
                    }
                    watched.note(&format_args!("0REDUCE_GRAD"));
                    world.barrier(&Purpose("test".to_owned())).unwrap();
                    watched.flush().unwrap();
                    watch.take()
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for pace in &paces {
            let names: Vec<String> = pace.spans.iter().map(|span| span.action.to_string()).collect();
            assert_eq!(names, ["0F0", "0REDUCE_GRAD"]);
            assert!(pace.spans[0].end_us <= pace.spans[1].begin_us);
        }
        let late = LATE.as_secs_f64();
        assert!(paces[1].busy() >= late && paces[0].busy() < paces[1].busy(), "{paces:?}");
        assert!(paces[0].collectives > paces[1].collectives, "rank 0 waits for rank 1: {paces:?}");
    }

    /// Run by hand: `cargo test -p trainer --release -- --ignored --nocapture how_long_watching_takes`.
    #[test]
    #[ignore = "a measurement, not a check"]
    fn how_long_watching_takes() {
        const TIMES: u32 = 100_000;
        let transport = World::new(1, Limits::default()).remove(0);
        let watch = Rc::new(Watch::new(&SystemClock));
        let watched = Watched::new(&transport, Rc::clone(&watch));
        let world = (watched.group("world", &[0]).unwrap(), transport.group("other", &[0]).unwrap());
        let purpose = Purpose("test".to_owned());
        let nanoseconds = |act: &dyn Fn()| {
            let began = Instant::now();
            (0..TIMES).for_each(|_| act());
            began.elapsed().as_nanos() as f64 / f64::from(TIMES)
        };
        let actions = (
            nanoseconds(&|| watched.note(&format_args!("3SEND_B11"))),
            nanoseconds(&|| transport.note(&format_args!("3SEND_B11"))),
        );
        let collectives = (
            nanoseconds(&|| drop(world.0.barrier(&purpose))),
            nanoseconds(&|| drop(world.1.barrier(&purpose))),
        );
        println!("an action: {:.0} ns watched, {:.0} ns not", actions.0, actions.1);
        println!("a collective: {:.0} ns watched, {:.0} ns not", collectives.0, collectives.1);
    }
}
