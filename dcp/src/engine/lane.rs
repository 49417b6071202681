//! [`Lane`]: chunks that go one tensor after the other, because their files or tensors hang together.
//!
//! Files that no tensor spans have nothing to do with each other: the shards of a Hugging Face folder. Their lanes are
//! worked on side by side, since two threads that write one file wait for each other in the kernel. Files that share
//! tensors are one lane, so that a source that several of them want is read once. Invariant: the units of one file come
//! in the order of tensors and positions, whatever other files do.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
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
    /// The file that it goes to.
    pub(super) file: usize,
    /// Number of its lane.
    pub(super) lane: usize,
    /// Where its rows begin among the bytes of the lane's tensors in order.
    at: u64,
}

/// What orders the units of a lane.
type Key = (u64, usize, usize);

/// Chunks whose units are handed out together.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Which pass it belongs to.
    pub(super) pass: usize,
    number: usize,
    /// Chunks of each tensor, or of those that the source has row by row between each other, in order.
    groups: VecDeque<Vec<usize>>,
    /// Units of the tensor whose turn it is, by file; no queue is empty.
    ready: BTreeMap<usize, VecDeque<Unit>>,
    /// Bytes of the tensors that came before.
    base: u64,
    /// Units that are being worked on.
    open: BTreeSet<Key>,
    /// Whether the units of a file come in the order of the file, not of the tensor.
    by_file: bool,
}

impl Lane {
    /// The lanes of chunks whose files have a pass, in the order of their first tensors.
    pub(super) fn all(work: &[Piecework], passes: &BTreeMap<usize, usize>) -> VecDeque<Self> {
        let mut groups: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (at, chunk) in work.iter().enumerate().filter(|(_, chunk)| chunk.bytes > 0) {
            if let Some(pass) = passes.get(&chunk.file) {
                groups.entry((*pass, chunk.group)).or_default().push(at);
            }
        }
        let mut ties = Ties::default();
        for chunks in groups.values() {
            let files: Vec<usize> = chunks.iter().filter_map(|at| Some(work.get(*at)?.file)).collect();
            files.windows(2).for_each(|pair| ties.tie(pair));
        }
        let (mut lanes, mut found) = (VecDeque::<Self>::new(), BTreeMap::new());
        for ((pass, _), chunks) in groups {
            let file = chunks.first().and_then(|at| work.get(*at)).map_or(0, |chunk| chunk.file);
            let number = *found.entry(ties.root(file)).or_insert_with(|| {
                lanes.push_back(Self { pass, number: lanes.len(), ..Self::default() });
                lanes.len() - 1
            });
            if let Some(lane) = lanes.get_mut(number) {
                lane.groups.push_back(chunks);
            }
        }
        lanes
    }

    pub(super) const fn keep_file_order(&mut self) {
        self.by_file = true;
    }

    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Whether there are units to be handed out.
    pub(super) fn has_units(&self) -> bool {
        !(self.ready.is_empty() && self.groups.is_empty())
    }

    /// Whether every unit is done.
    pub(super) fn is_done(&self) -> bool {
        !self.has_units() && self.open.is_empty()
    }

    /// The file to go on with: of those whose next unit begins at most `lead` bytes behind the earliest that is not
    /// done, the one that the fewest threads write; of these, the one whose unit comes first.
    pub(super) fn next_file(
        &mut self,
        work: &[Piecework],
        lead: u64,
        writers: impl Fn(usize) -> usize,
    ) -> Option<(usize, usize)> {
        self.refill(work);
        let fronts = || self.ready.iter().filter_map(|(file, units)| Some((*file, units.front()?)));
        let earliest =
            fronts().map(|(_, unit)| unit.at).chain(self.open.first().map(|(at, ..)| *at)).min()?;
        let near = fronts().filter(|(_, unit)| unit.at <= earliest.saturating_add(lead));
        let best = near.min_by_key(|(file, unit)| (writers(*file), unit.key()))?.0;
        Some((writers(best), best))
    }

    /// Hands out the next unit of a file.
    pub(super) fn take(&mut self, file: usize) -> Option<Unit> {
        let units = self.ready.get_mut(&file)?;
        let unit = units.pop_front()?;
        if units.is_empty() {
            self.ready.remove(&file);
        }
        self.open.insert(unit.key());
        Some(unit)
    }

    /// A unit is done.
    pub(super) fn done(&mut self, unit: &Unit) {
        self.open.remove(&unit.key());
    }

    fn refill(&mut self, work: &[Piecework]) {
        while self.ready.is_empty() {
            let Some(chunks) = self.groups.pop_front() else { return };
            for unit in self.units(work, &chunks) {
                self.ready.entry(unit.file).or_default().push_back(unit);
            }
            let tensor = chunks.first().and_then(|at| work.get(*at)).map_or(0, |chunk| chunk.tensor_bytes);
            self.base = self.base.saturating_add(tensor);
        }
    }

    fn units(&self, work: &[Piecework], chunks: &[usize]) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        for &at in chunks {
            let Some(chunk) = work.get(at) else { continue };
            let row = chunk.region.extents().iter().skip(1).product::<u64>().max(1);
            for (block, bytes) in blocks(chunk.bytes).enumerate() {
                // Where the block's first row begins in the tensor: bands of rows, whatever the width of the cut.
                let rows = bytes.start / chunk.width.max(1) / row;
                let position = chunk.first.saturating_add(rows.saturating_mul(chunk.stride.max(1)));
                let begins = self.base.saturating_add(position.saturating_mul(chunk.width));
                units.push(Unit { chunk: at, block, bytes, file: chunk.file, lane: self.number, at: begins });
            }
        }
        units.sort_by_key(Unit::key);
        if self.by_file {
            let place = |unit: &Unit| work.get(unit.chunk).map_or(0, |chunk| chunk.place);
            units.sort_by_key(|unit| (unit.file, place(unit), unit.block));
        }
        units
    }
}

impl Unit {
    const fn key(&self) -> Key {
        (self.at, self.chunk, self.block)
    }
}

/// The blocks of a chunk of so many bytes.
pub(crate) fn blocks(bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let len = u64::from(BLOCK_LEN);
    (0..bytes.div_ceil(len)).map(move |block| block * len..bytes.min((block + 1) * len))
}

/// Which files hang together: each points to one of its own, up to one that points nowhere.
#[derive(Debug, Default)]
struct Ties(BTreeMap<usize, usize>);

impl Ties {
    fn root(&self, file: usize) -> usize {
        let mut at = file;
        while let Some(&up) = self.0.get(&at) {
            at = up;
        }
        at
    }

    fn tie(&mut self, files: &[usize]) {
        let roots: BTreeSet<usize> = files.iter().map(|file| self.root(*file)).collect();
        if let (Some(&first), Some(&last), true) = (roots.first(), roots.last(), roots.len() > 1) {
            self.0.insert(last, first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_hang_together_by_way_of_others_have_one_root() {
        let mut ties = Ties::default();
        for pair in [[4, 2], [7, 6], [2, 6], [2, 4]] {
            ties.tie(&pair);
        }
        assert_eq!([2, 4, 6, 7].map(|file| ties.root(file)), [2; 4]);
        assert_eq!(ties.root(3), 3);
    }
}
