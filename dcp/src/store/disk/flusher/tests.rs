//! Tests of order, failures and ends of the thread that writes.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::super::pool::Pool;
use super::*;

/// Writes down the numbers of the blocks; fails, panics or waits where a test wants it.
#[derive(Debug, Default)]
struct Fake {
    written: Mutex<Vec<u64>>,
    fails_at: Option<u64>,
    panics_at: Option<u64>,
    gate: Option<Mutex<Receiver<()>>>,
}

impl Out for Fake {
    fn write(&self, block: &Block) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate.lock().unwrap().recv().map_err(io::Error::other)?;
        }
        assert_ne!(Some(block.index()), self.panics_at, "as the test wants it");
        if Some(block.index()) == self.fails_at {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.written.lock().unwrap().push(block.index());
        Ok(())
    }

    fn write_through(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Fake {
    fn gated() -> (Self, Sender<()>) {
        let (open, gate) = channel();
        (Self { gate: Some(Mutex::new(gate)), ..Self::default() }, open)
    }
}

fn written(flusher: &Flusher<Fake>) -> Vec<u64> {
    flusher.out().written.lock().unwrap().clone()
}

/// Pushes blocks with these numbers until one is refused.
fn push_all(flusher: &Flusher<Fake>, indexes: impl IntoIterator<Item = u64>) -> io::Result<()> {
    let pool = Arc::new(Pool::new(AHEAD + 1));
    // One that is filled, and those that are under way: there are never more.
    indexes.into_iter().try_for_each(|index| flusher.push(Block::new(index, pool.take().unwrap())))
}

#[test]
fn blocks_are_written_in_the_order_in_which_they_came_and_few_are_under_way() {
    let flusher = Flusher::new(Fake::default());
    push_all(&flusher, (0..200).map(|it| it % 7)).unwrap();
    flusher.settle().unwrap();
    assert_eq!(written(&flusher), (0..200).map(|it| it % 7).collect::<Vec<_>>());
}

#[test]
fn settling_waits_for_the_last_block() {
    let (fake, open) = Fake::gated();
    let flusher = Flusher::new(fake);
    push_all(&flusher, 0..AHEAD as u64).unwrap();
    assert!(written(&flusher).is_empty());
    thread::scope(|scope| {
        let settled = scope.spawn(|| flusher.settle().map(|()| written(&flusher).len()));
        for _ in 0..AHEAD {
            open.send(()).unwrap();
        }
        assert_eq!(settled.join().unwrap().unwrap(), AHEAD);
    });
}

#[test]
fn a_failure_is_told_by_every_later_call_and_nothing_is_written_after_it() {
    let flusher = Flusher::new(Fake { fails_at: Some(5), ..Fake::default() });
    // Whether a push hears of it is a matter of time; settling does.
    drop(push_all(&flusher, 0..50));
    for _ in 0..3 {
        assert_eq!(flusher.settle().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert!(push_all(&flusher, [60]).is_err() && flusher.check().is_err());
    assert_eq!(written(&flusher), [0, 1, 2, 3, 4]);
}

#[test]
fn a_panic_of_the_thread_is_a_failure_and_hangs_nobody() {
    let flusher = Flusher::new(Fake { panics_at: Some(1), ..Fake::default() });
    drop(push_all(&flusher, 0..20));
    let told = flusher.settle().unwrap_err();
    assert!(told.to_string().contains("panicked"), "{told}");
}

#[test]
fn one_that_is_dropped_writes_what_it_took_and_leaves_no_thread() {
    let flusher = Flusher::new(Fake::default());
    push_all(&flusher, 0..9).unwrap();
    let shared: Weak<_> = Arc::downgrade(&flusher.0);
    drop(flusher);
    // The thread is on its way out of its last function.
    let until = Instant::now() + Duration::from_mins(1);
    while shared.strong_count() > 0 {
        assert!(Instant::now() < until, "a thread is left");
        thread::yield_now();
    }
}

#[test]
fn a_thread_that_ended_is_followed_by_another() {
    let flusher = Flusher::new(Fake::default());
    for index in 0..3 {
        push_all(&flusher, [index]).unwrap();
        drop(flusher.0.wait_while(|state| state.is_served));
    }
    assert_eq!(written(&flusher), [0, 1, 2]);
}
