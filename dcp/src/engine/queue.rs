//! [`Queue`]: units of work in the order that serves the source.
//!
//! A unit is one block of a target chunk. Units come by pass, then tensor, then position in the tensor, so that cuts by
//! column over the same rows are near each other and their source is read once; a thread that could run so far ahead of
//! a slow one that the cache would forget what that still needs has to wait. Invariant: every block of every chunk that
//! was asked for comes exactly once; only the units of one tensor are held at a time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use super::plan::Piecework;
use crate::digest::BLOCK_LEN;

/// A block of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Position in the list of chunks.
    pub(crate) chunk: usize,
    /// Number of the block in the chunk.
    pub(crate) block: usize,
    /// Bytes of the chunk.
    pub(crate) bytes: Range<u64>,
    /// Where its rows begin among the bytes of all tensors in order.
    at: u64,
}

/// Hands out units.
#[derive(Debug)]
pub(crate) struct Queue<'w> {
    work: &'w [Piecework],
    state: Mutex<State>,
    changed: Condvar,
    /// How far, in bytes of the source, a unit may begin behind the earliest that is being worked on.
    lead: u64,
    /// Number of passes.
    pub(crate) passes: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Chunks of each pass and tensor, in order.
    groups: VecDeque<(usize, Vec<usize>)>,
    ready: VecDeque<Unit>,
    pass: usize,
    /// Bytes of the tensors that came before.
    base: u64,
    /// Units that are being worked on.
    open: BTreeSet<(u64, usize, usize)>,
    stopped: bool,
}

impl<'w> Queue<'w> {
    /// The units of the chunks whose files `wanted` says yes to, `open_files` files in each pass.
    pub(crate) fn new(
        work: &'w [Piecework],
        wanted: impl Fn(usize) -> bool,
        open_files: usize,
        lead: u64,
    ) -> Self {
        let mut passes: BTreeMap<usize, usize> = BTreeMap::new();
        for chunk in work.iter().filter(|chunk| wanted(chunk.file) && chunk.bytes > 0) {
            passes.insert(chunk.file, 0);
        }
        for (at, pass) in passes.values_mut().enumerate() {
            *pass = at / open_files.max(1);
        }
        let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (at, chunk) in work.iter().enumerate().filter(|(_, chunk)| chunk.bytes > 0) {
            if let Some(pass) = passes.get(&chunk.file) {
                groups.entry((*pass, chunk.job)).or_default().push(at);
            }
        }
        let last = passes.values().max().map_or(0, |pass| pass + 1);
        let groups = groups.into_iter().map(|((pass, _), chunks)| (pass, chunks)).collect();
        let state = State { groups, ..State::default() };
        Self { work, state: Mutex::new(state), changed: Condvar::new(), lead, passes: last }
    }

    /// The next unit, once it may begin; `None` when there are no more. A pass begins when the one before it is done, so
    /// that its files are closed.
    pub(crate) fn next(&self) -> Option<Unit> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            self.refill(&mut state);
            let earliest = state.open.first().map(|(at, ..)| *at);
            match (state.ready.front(), earliest) {
                (Some(unit), Some(earliest)) if unit.at > earliest.saturating_add(self.lead) => {}
                (Some(_), _) => {
                    let unit = state.ready.pop_front()?;
                    state.open.insert(unit.key());
                    return Some(unit);
                }
                (None, _) if state.groups.is_empty() => return None,
                (None, _) => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A unit is done, its file closed if it was the last of it.
    pub(crate) fn done(&self, unit: &Unit) {
        self.lock().open.remove(&unit.key());
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

    fn refill(&self, state: &mut State) {
        while state.ready.is_empty() {
            let next = state.groups.front().map(|(pass, _)| *pass);
            let Some(pass) = next.filter(|pass| *pass == state.pass || state.open.is_empty()) else { return };
            state.pass = pass;
            if let Some((_, chunks)) = state.groups.pop_front() {
                state.ready = self.units(&chunks, state.base);
                let tensor =
                    chunks.first().and_then(|at| self.work.get(*at)).map_or(0, |chunk| chunk.tensor_bytes);
                state.base = state.base.saturating_add(tensor);
            }
        }
    }

    fn units(&self, chunks: &[usize], base: u64) -> VecDeque<Unit> {
        let mut units: Vec<(u64, Unit)> = Vec::new();
        for &at in chunks {
            let Some(chunk) = self.work.get(at) else { continue };
            let row = chunk.region.extents().iter().skip(1).product::<u64>().max(1);
            for (block, bytes) in blocks(chunk.bytes).enumerate() {
                // Where the block's first row begins in the tensor: bands of rows, whatever the width of the cut.
                let rows = bytes.start / chunk.width.max(1) / row;
                let position = chunk.first.saturating_add(rows.saturating_mul(chunk.stride.max(1)));
                let begins = base.saturating_add(position.saturating_mul(chunk.width));
                units.push((position, Unit { chunk: at, block, bytes, at: begins }));
            }
        }
        units.sort_by_key(|(position, unit)| (*position, unit.chunk, unit.block));
        units.into_iter().map(|(_, unit)| unit).collect()
    }
}

impl Unit {
    const fn key(&self) -> (u64, usize, usize) {
        (self.at, self.chunk, self.block)
    }
}

/// The blocks of a chunk of so many bytes.
pub(crate) fn blocks(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let len = u64::from(BLOCK_LEN);
    (0..bytes.div_ceil(len)).map(move |block| block * len..bytes.min((block + 1) * len))
}
