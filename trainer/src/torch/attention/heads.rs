//! All heads of all sequences, one after the other: into the buffers of a tile, turned, and out of them again.
//!
//! Tensors are `[sequences, length, heads, dim]`, contiguous. Several neighbouring query heads share a head of keys and
//! values, whose gradients are summed over them in order.

use super::{
    lanes::{Lanes, Work},
    tile::{Buffers, Head, TILE},
};

/// log2(e): weights are powers of 2.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// How many of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) sequences: usize,
    pub(super) length: usize,
    pub(super) heads: usize,
    /// Heads of keys and values.
    pub(super) shared: usize,
    pub(super) dim: usize,
}

/// What attention is a function of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) queries: &'a [f32],
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    /// Cosine and sine of each position and pair of elements that queries and keys are turned by.
    pub(super) turns: Option<&'a [f32]>,
}

/// From inputs to `mixed`, like queries, and `sums`, `[sequences, heads, length]`.
#[derive(Debug)]
pub(super) struct Forward<'a> {
    pub(super) sizes: Sizes,
    pub(super) inputs: Inputs<'a>,
    pub(super) mixed: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
}

/// From the gradient of what came out to those of the inputs.
#[derive(Debug)]
pub(super) struct Backward<'a> {
    pub(super) sizes: Sizes,
    pub(super) inputs: Inputs<'a>,
    pub(super) mixed: &'a [f32],
    pub(super) sums: &'a [f32],
    pub(super) grad: &'a [f32],
    pub(super) queries: &'a mut [f32],
    pub(super) keys: &'a mut [f32],
    pub(super) values: &'a mut [f32],
}

impl Work for Forward<'_> {
    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize>(self) {
        let Self { sizes, inputs, mixed, sums } = self;
        let head = Head::new(sizes.length, sizes.dim);
        let mut buffers = Buffers::new(&head, false);
        for (sequence, shared) in sizes.pairs() {
            inputs.keys_and_values(&sizes, &head, &mut buffers, sequence, shared);
            for query in sizes.served(shared) {
                for first in (0..sizes.length).step_by(TILE) {
                    let tile = Tile { sizes: &sizes, head: &head, sequence, query, first };
                    inputs.queries(&tile, &mut buffers);
                    buffers.forward::<L, ROWS>(&head, first);
                    tile.write(&buffers.out, None, mixed);
                    tile.sums_mut(sums).copy_from_slice(&buffers.sums[..tile.count()]);
                }
            }
        }
    }
}

impl Work for Backward<'_> {
    #[inline(always)]
    fn run<L: Lanes, const ROWS: usize>(self) {
        let Self { sizes, inputs, mixed, sums, grad, queries, keys, values } = self;
        let head = Head::new(sizes.length, sizes.dim);
        let mut buffers = Buffers::new(&head, true);
        for (sequence, shared) in sizes.pairs() {
            inputs.keys_and_values(&sizes, &head, &mut buffers, sequence, shared);
            buffers.key_grads.fill(0.0);
            buffers.value_grads.fill(0.0);
            for query in sizes.served(shared) {
                for first in (0..sizes.length).step_by(TILE) {
                    let tile = Tile { sizes: &sizes, head: &head, sequence, query, first };
                    tile.read(mixed, None, &mut buffers.grads);
                    columns(&buffers.grads, head.width, 1.0, &mut buffers.out);
                    tile.read(grad, None, &mut buffers.grads);
                    columns(&buffers.grads, head.width, 1.0, &mut buffers.grad_columns);
                    deltas(&buffers.out, &buffers.grad_columns, &mut buffers.deltas);
                    inputs.queries(&tile, &mut buffers);
                    buffers.sums.fill(0.0);
                    buffers.sums[..tile.count()].copy_from_slice(tile.sums(sums));
                    buffers.backward::<L, ROWS>(&head, first);
                    tile.write(&buffers.out, inputs.turns, queries);
                }
            }
            for position in 0..sizes.length {
                let at = sizes.at(sequence, position, sizes.shared, shared);
                let row = position * head.width..position * head.width + head.dim;
                values[at..at + head.dim].copy_from_slice(&buffers.value_grads[row.clone()]);
                let back = turns_of(inputs.turns, position, head.dim);
                turned_back(&buffers.key_grads[row], back, &mut keys[at..at + head.dim]);
            }
        }
    }
}

impl Sizes {
    /// Elements of queries, and of what comes out.
    pub(super) const fn elements(&self) -> usize {
        self.sequences * self.length * self.heads * self.dim
    }

    /// Elements of keys, and of values.
    pub(super) const fn shared_elements(&self) -> usize {
        self.sequences * self.length * self.shared * self.dim
    }

    /// Every sequence with every head of keys and values.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let shared = self.shared;
        (0..self.sequences).flat_map(move |sequence| (0..shared).map(move |head| (sequence, head)))
    }

    /// The query heads that a head of keys and values serves.
    const fn served(&self, shared: usize) -> std::ops::Range<usize> {
        let many = self.heads / self.shared;
        shared * many..(shared + 1) * many
    }

    /// Where a head's row begins in a tensor of `heads`.
    const fn at(&self, sequence: usize, position: usize, heads: usize, head: usize) -> usize {
        ((sequence * self.length + position) * heads + head) * self.dim
    }
}

impl Inputs<'_> {
    /// Rows of all positions: keys turned, values as they are.
    #[inline(always)]
    fn keys_and_values(&self, sizes: &Sizes, head: &Head, to: &mut Buffers, sequence: usize, shared: usize) {
        for position in 0..sizes.length {
            let at = sizes.at(sequence, position, sizes.shared, shared);
            let row = position * head.width..position * head.width + head.dim;
            to.values[row.clone()].copy_from_slice(&self.values[at..at + head.dim]);
            let turns = turns_of(self.turns, position, head.dim);
            turned(&self.keys[at..at + head.dim], turns, &mut to.keys[row]);
        }
    }

    /// A tile's queries, turned: as rows, and scaled as columns.
    #[inline(always)]
    fn queries(&self, tile: &Tile<'_>, to: &mut Buffers) {
        tile.read(self.queries, self.turns, &mut to.queries);
        columns(&to.queries, tile.head.width, tile.head.scale() * LOG2_E, &mut to.query_columns);
    }
}

/// Queries `first..first + TILE` of one head, as far as there are any.
struct Tile<'a> {
    sizes: &'a Sizes,
    head: &'a Head,
    sequence: usize,
    query: usize,
    first: usize,
}

impl Tile<'_> {
    fn count(&self) -> usize {
        TILE.min(self.sizes.length - self.first)
    }

    fn sums_range(&self) -> std::ops::Range<usize> {
        let at = (self.sequence * self.sizes.heads + self.query) * self.sizes.length + self.first;
        at..at + self.count()
    }

    fn sums<'a>(&self, all: &'a [f32]) -> &'a [f32] {
        &all[self.sums_range()]
    }

    fn sums_mut<'a>(&self, all: &'a mut [f32]) -> &'a mut [f32] {
        &mut all[self.sums_range()]
    }

    /// Its rows of a tensor; zeros beyond the last position.
    #[inline(always)]
    fn read(&self, from: &[f32], turns: Option<&[f32]>, to: &mut [f32]) {
        let (width, dim) = (self.head.width, self.head.dim);
        to[self.count() * width..].fill(0.0);
        for (position, row) in (self.first..).zip(to.chunks_exact_mut(width)).take(self.count()) {
            let at = self.sizes.at(self.sequence, position, self.sizes.heads, self.query);
            turned(&from[at..at + dim], turns_of(turns, position, dim), &mut row[..dim]);
        }
    }

    /// Puts columns into its rows of a tensor, turned back.
    #[inline(always)]
    fn write(&self, columns: &[f32], turns: Option<&[f32]>, to: &mut [f32]) {
        let dim = self.head.dim;
        for query in 0..self.count() {
            let position = self.first + query;
            let at = self.sizes.at(self.sequence, position, self.sizes.heads, self.query);
            let row = &mut to[at..at + dim];
            for (value, column) in row.iter_mut().zip(columns.chunks_exact(TILE)) {
                *value = column[query];
            }
            turn_back(row, turns_of(turns, position, dim));
        }
    }
}

#[inline(always)]
fn columns(rows: &[f32], width: usize, factor: f32, to: &mut [f32]) {
    for (e, column) in to.chunks_exact_mut(TILE).enumerate() {
        for (value, row) in column.iter_mut().zip(rows.chunks_exact(width)) {
            *value = row[e] * factor;
        }
    }
}

/// Of each query: the product of what came out and its gradient.
#[inline(always)]
fn deltas(out: &[f32], grads: &[f32], to: &mut [f32]) {
    to.fill(0.0);
    for (out, grads) in out.chunks_exact(TILE).zip(grads.chunks_exact(TILE)) {
        for ((sum, out), grad) in to.iter_mut().zip(out).zip(grads) {
            *sum += out * grad;
        }
    }
}

#[inline(always)]
fn turns_of(turns: Option<&[f32]>, position: usize, dim: usize) -> Option<&[f32]> {
    turns.map(|turns| &turns[position * dim..(position + 1) * dim])
}

/// Each pair of neighbours is a complex number, turned by the angle whose cosine and sine `turns` has.
#[inline(always)]
fn turned(from: &[f32], turns: Option<&[f32]>, to: &mut [f32]) {
    let Some(turns) = turns else { return to.copy_from_slice(from) };
    let pairs = from.as_chunks::<2>().0.iter().zip(turns.as_chunks::<2>().0);
    for ([x, y], ([a, b], [cosine, sine])) in to.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        (*x, *y) = (a * cosine - b * sine, a * sine + b * cosine);
    }
}

#[inline(always)]
fn turned_back(from: &[f32], turns: Option<&[f32]>, to: &mut [f32]) {
    to.copy_from_slice(from);
    turn_back(to, turns);
}

#[inline(always)]
fn turn_back(row: &mut [f32], turns: Option<&[f32]>) {
    let Some(turns) = turns else { return };
    for ([x, y], [cosine, sine]) in row.as_chunks_mut::<2>().0.iter_mut().zip(turns.as_chunks::<2>().0) {
        (*x, *y) = (*x * cosine + *y * sine, *y * cosine - *x * sine);
    }
}
