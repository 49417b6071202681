//! [`Queue`]: units of work in the order that serves the source, spread over files so that threads do not meet in one.
//!
//! A unit is one block of a target chunk. Units come by pass and lane; in a lane by tensor, then position in the tensor,
//! so that cuts by column over the same rows are near each other and their source is read once. As many lanes as there
//! are threads go on side by side, or fewer where each needs so much of the cache that it would not keep what all of them need
//! ([`Need`](super::forecast::Need)), and a thread takes a file that nobody writes where there is one: the kernel lets one
//! thread at a time write a file, so two in one file are hardly faster than one. A thread that could run so far ahead of
//! a slow one that the cache would forget what that still needs has to wait. Invariant: every block of every chunk that
//! was asked for comes exactly once; of each lane only the units of one tensor, or of those that the source has row by row between
//! each other, are held at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

pub(crate) use super::lane::{Unit, blocks};
use super::{lane::Lane, plan::Piecework};

/// Hands out units.
#[derive(Debug)]
pub(crate) struct Queue<'w> {
    work: &'w [Piecework],
    state: Mutex<State>,
    changed: Condvar,
    /// How far, in bytes of the source, a unit may begin behind the earliest of its lane that is not done.
    lead: u64,
    /// How many lanes go on at a time.
    abreast: usize,
    /// Number of passes.
    pub(crate) passes: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Lanes that have not begun.
    waiting: VecDeque<Lane>,
    /// Lanes that have begun and are not done, by number; all of one pass.
    begun: BTreeMap<usize, Lane>,
    /// Threads that write each file now; none is 0.
    writers: BTreeMap<usize, usize>,
    stopped: bool,
}

impl<'w> Queue<'w> {
    /// The units of the chunks whose files `wanted` says yes to, `open_files` files in each pass, for so many threads, in as many lanes at
    /// most, that share a cache which forgets nothing within `lead` bytes.
    pub(crate) fn new(
        work: &'w [Piecework],
        wanted: impl Fn(usize) -> bool,
        open_files: usize,
        lead: u64,
        lanes: usize,
    ) -> Self {
        let mut passes: BTreeMap<usize, usize> = BTreeMap::new();
        for chunk in work.iter().filter(|chunk| wanted(chunk.file) && chunk.bytes > 0) {
            passes.insert(chunk.file, 0);
        }
        for (at, pass) in passes.values_mut().enumerate() {
            *pass = at / open_files.max(1);
        }
        let waiting = Lane::all(work, &passes);
        let abreast = lanes.min(waiting.len()).max(1);
        let lead = lead / abreast as u64;
        let state = State { waiting, ..State::default() };
        let passes = passes.values().max().map_or(0, |pass| pass + 1);
        Self { work, state: Mutex::new(state), changed: Condvar::new(), lead, abreast, passes }
    }

    /// Hands out the units of each file in the order of the file, whatever that costs the source.
    pub(crate) fn in_file_order(mut self) -> Self {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.waiting.iter_mut().for_each(Lane::keep_file_order);
        self
    }

    /// Another unit, if one may begin now, for a thread that has one already and must not wait for itself.
    pub(crate) fn another(&self) -> Option<Unit> {
        let mut state = self.lock();
        if state.stopped {
            return None;
        }
        state.begin(self.abreast);
        state.take(self.work, self.lead)
    }

    /// The next unit, once it may begin; `None` when there are no more. A pass begins when the one before it is done, so
    /// that its files are closed.
    pub(crate) fn next(&self) -> Option<Unit> {
        let mut state = self.lock();
        while !state.stopped {
            state.begin(self.abreast);
            if let Some(unit) = state.take(self.work, self.lead) {
                return Some(unit);
            }
            if state.waiting.is_empty() && !state.begun.values().any(Lane::has_units) {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// A unit is done, its file closed if it was the last of it.
    pub(crate) fn done(&self, unit: &Unit) {
        self.lock().done(unit);
        self.changed.notify_all();
    }

    /// No more units.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets lanes begin as long as fewer than `abreast` have units to hand out.
    fn begin(&mut self, abreast: usize) {
        while self.begun.values().filter(|lane| lane.has_units()).count() < abreast {
            let pass = self.begun.values().next().map(|lane| lane.pass);
            let next = self.waiting.front().is_some_and(|lane| pass.is_none_or(|pass| pass == lane.pass));
            let Some(lane) = self.waiting.pop_front_if(|_| next) else { return };
            self.begun.insert(lane.number(), lane);
        }
    }

    /// A unit of the file that the fewest threads write, of the first lane that has such a file.
    fn take(&mut self, work: &[Piecework], lead: u64) -> Option<Unit> {
        let Self { begun, writers, .. } = self;
        let of = |file: usize| writers.get(&file).copied().unwrap_or(0);
        let files = begun.values_mut().filter_map(|lane| {
            let (writers, file) = lane.next_file(work, lead, of)?;
            Some((writers, lane, file))
        });
        let (_, lane, file) = files.min_by_key(|(writers, ..)| *writers)?;
        let unit = lane.take(file)?;
        *writers.entry(file).or_default() += 1;
        Some(unit)
    }

    fn done(&mut self, unit: &Unit) {
        if let Some(writers) = self.writers.get_mut(&unit.file) {
            *writers -= 1;
            if *writers == 0 {
                self.writers.remove(&unit.file);
            }
        }
        if let Some(lane) = self.begun.get_mut(&unit.lane) {
            lane.done(unit);
            if lane.is_done() {
                self.begun.remove(&unit.lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use reshard::Region;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A chunk of `mib` MiB: rows of 1 MiB from `row` on, of a tensor of 8.
    fn chunk(job: usize, file: usize, row: u64, mib: u64) -> Piecework {
        Piecework {
            job,
            group: job,
            file,
            region: Region::new(&[row, 0], &[mib, MIB]).unwrap(),
            offset: 0,
            bytes: mib * MIB,
            place: 0,
            first: row * MIB,
            stride: MIB,
            tensor_bytes: 8 * MIB,
            width: 1,
        }
    }

    fn all(queue: &Queue<'_>) -> Vec<(usize, usize)> {
        let next = || {
            let unit = queue.next()?;
            queue.done(&unit);
            Some((unit.chunk, unit.block))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn one_thread_goes_by_tensor_and_position() {
        let work = [chunk(0, 0, 0, 8), chunk(1, 1, 4, 4), chunk(1, 0, 0, 4)];
        let found = all(&Queue::new(&work, |_| true, 9, 64 * MIB, 1));
        let first = (0..8).map(|block| (0, block));
        let wanted: Vec<_> = first.chain((0..4).map(|b| (2, b))).chain((0..4).map(|b| (1, b))).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn threads_are_in_different_files_as_long_as_there_are_some() {
        let work = [chunk(0, 0, 0, 8), chunk(1, 1, 0, 8), chunk(2, 2, 0, 8)];
        let queue = Queue::new(&work, |_| true, 9, 64 * MIB, 2);
        for _ in 0..8 {
            let (one, two) = (queue.next().unwrap(), queue.next().unwrap());
            assert_ne!(one.file, two.file);
            queue.done(&one);
            queue.done(&two);
        }
        let (one, two) = (queue.next().unwrap(), queue.next().unwrap());
        assert_eq!((one.file, two.file), (2, 2), "the last file is shared rather than waited for");
    }

    #[test]
    fn files_that_share_a_tensor_are_written_side_by_side_but_not_far_from_each_other() {
        let work = [chunk(0, 0, 0, 4), chunk(0, 1, 4, 4)];
        let near = Queue::new(&work, |_| true, 9, 3 * MIB, 2);
        let far = Queue::new(&work, |_| true, 9, 4 * MIB, 2);
        let both = |queue: &Queue<'_>| [queue.next().unwrap().file, queue.next().unwrap().file];
        assert_eq!((both(&near), both(&far)), ([0, 0], [0, 1]));
    }

    #[test]
    fn in_the_order_of_the_file_a_box_comes_whole_before_the_next() {
        let half = |place, first| Piecework {
            place,
            first,
            offset: place as u64 * 2 * MIB,
            bytes: 2 * MIB,
            region: Region::new(&[0, first], &[4, MIB / 2]).unwrap(),
            ..chunk(0, 0, 0, 4)
        };
        let work = [half(0, 0), half(1, MIB / 2)];
        let by_rows = all(&Queue::new(&work, |_| true, 9, 64 * MIB, 1));
        let by_file = all(&Queue::new(&work, |_| true, 9, 64 * MIB, 1).in_file_order());
        assert_eq!(by_rows, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        assert_eq!(by_file, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_pass_begins_when_the_one_before_it_is_done() {
        let work = [chunk(0, 0, 0, 1), chunk(1, 1, 0, 1)];
        let queue = Queue::new(&work, |_| true, 1, 64 * MIB, 2);
        assert_eq!(queue.passes, 2);
        let first = queue.next().unwrap();
        let later = std::thread::scope(|scope| {
            let later = scope.spawn(|| queue.next());
            assert!(!later.is_finished());
            queue.done(&first);
            later.join().unwrap().unwrap()
        });
        assert_eq!((first.file, later.file), (0, 1));
        queue.done(&later);
        assert!(queue.next().is_none());
    }

    #[test]
    fn files_that_are_not_wanted_have_no_units() {
        let work = [chunk(0, 0, 0, 8), chunk(1, 1, 0, 2)];
        assert_eq!(all(&Queue::new(&work, |file| file == 1, 9, MIB, 4)), [(1, 0), (1, 1)]);
    }
}
