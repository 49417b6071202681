//! One tile of queries against all keys that it may see: scores, weights, and what follows from them, forward and back.
//!
//! The lanes of a register are queries, so that maxima and sums over keys need nothing of other lanes. Buffers are padded:
//! positions to a multiple of [`TILE`], widths of heads to one of [`WIDTH`]; padding holds zeros, and no query sees it.
//!
//! Invariant: a query's result depends on its head alone: every sum goes over keys, or over queries, in their order.

use super::lanes::{Lanes, exp2};

/// Queries that are treated together.
pub(super) const TILE: usize = 32;
/// What a head's width is padded to a multiple of: the most lanes.
pub(super) const WIDTH: usize = 16;

/// Sizes of one head's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) dim: usize,
    /// `dim`, padded.
    pub(super) width: usize,
}

/// What one head works on. `rows` are positions × width, `columns` are width × queries of the tile.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Rows of all positions.
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) key_grads: Vec<f32>,
    pub(super) value_grads: Vec<f32>,
    /// Rows of the tile.
    pub(super) queries: Vec<f32>,
    pub(super) grads: Vec<f32>,
    /// Columns of the tile; queries are scaled, so that scores are exponents of 2.
    pub(super) query_columns: Vec<f32>,
    pub(super) grad_columns: Vec<f32>,
    /// Columns of what comes out: mixed values, or gradients of queries.
    pub(super) out: Vec<f32>,
    /// Of each query: the logarithm of the sum of its weights; the product of its output and that one's gradient.
    pub(super) sums: Vec<f32>,
    pub(super) deltas: Vec<f32>,
    /// Keys × queries of the tile.
    weights: Vec<f32>,
    weight_grads: Vec<f32>,
    /// What is added to scores: from the middle on nothing, before it so much that nothing is left of the weight.
    mask: Vec<f32>,
}

impl Head {
    pub(super) const fn new(length: usize, dim: usize) -> Self {
        Self { length, dim, width: dim.next_multiple_of(WIDTH) }
    }

    pub(super) fn scale(&self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "heads are narrow")]
        let dim = self.dim as f32;
        1.0 / dim.sqrt()
    }
}

impl Buffers {
    pub(super) fn new(head: &Head, backward: bool) -> Self {
        let padded = head.length.next_multiple_of(TILE);
        let zeros = |count: usize, wanted: bool| vec![0.0; if wanted { count } else { 0 }];
        let (all, tile) = (padded * head.width, TILE * head.width);
        let mut mask = zeros(2 * TILE, true);
        mask[..TILE].fill(f32::NEG_INFINITY);
        Self {
            keys: zeros(all, true),
            values: zeros(all, true),
            key_grads: zeros(all, backward),
            value_grads: zeros(all, backward),
            queries: zeros(tile, true),
            grads: zeros(tile, true),
            query_columns: zeros(tile, true),
            grad_columns: zeros(tile, backward),
            out: zeros(tile, true),
            sums: zeros(TILE, true),
            deltas: zeros(TILE, backward),
            weights: zeros(padded * TILE, true),
            weight_grads: zeros(padded * TILE, backward),
            mask,
        }
    }

    /// The tile of queries from `first` on: `out` and `sums`.
    #[inline(always)]
    pub(super) fn forward<L: Lanes, const ROWS: usize>(&mut self, head: &Head, first: usize) {
        let many = first + TILE;
        for at in (0..TILE).step_by(2 * L::COUNT) {
            let mut most = [L::splat(f32::NEG_INFINITY); 2];
            for key in (0..many).step_by(ROWS) {
                for (row, score) in self.scores::<L, ROWS>(head, first, key, at).into_iter().enumerate() {
                    store(score, &mut self.weights[(key + row) * TILE + at..]);
                    most = [most[0].max(score[0]), most[1].max(score[1])];
                }
            }
            let mut sum = [L::splat(0.0); 2];
            for row in self.weights.chunks_exact_mut(TILE).take(many) {
                let [a, b] = load::<L>(&row[at..]);
                let weight = [exp2(a.sub(most[0])), exp2(b.sub(most[1]))];
                store(weight, &mut row[at..]);
                sum = [sum[0].add(weight[0]), sum[1].add(weight[1])];
            }
            let (mut total, mut inverse) = ([0.0_f32; TILE], [0.0; TILE]);
            store(sum, &mut total);
            store(most, &mut self.sums[at..]);
            for lane in 0..2 * L::COUNT {
                self.sums[at + lane] += total[lane].log2();
                inverse[lane] = 1.0 / total[lane];
            }
            let inverse = load::<L>(&inverse);
            for e in (0..head.width).step_by(ROWS) {
                let weights = &self.weights[at..];
                let mixed = mixed::<L, ROWS>(&self.values[e..], head.width, weights, many);
                for (row, [a, b]) in mixed.into_iter().enumerate() {
                    store([a.mul(inverse[0]), b.mul(inverse[1])], &mut self.out[(e + row) * TILE + at..]);
                }
            }
        }
    }

    /// The tile's gradients of queries in `out`; those of keys and values are added to.
    #[inline(always)]
    pub(super) fn backward<L: Lanes, const ROWS: usize>(&mut self, head: &Head, first: usize) {
        let many = first + TILE;
        let scale = L::splat(head.scale());
        for at in (0..TILE).step_by(2 * L::COUNT) {
            let (sums, deltas) = (load::<L>(&self.sums[at..]), load::<L>(&self.deltas[at..]));
            for key in (0..many).step_by(ROWS) {
                for (row, [a, b]) in self.scores::<L, ROWS>(head, first, key, at).into_iter().enumerate() {
                    let weight = [exp2(a.sub(sums[0])), exp2(b.sub(sums[1]))];
                    store(weight, &mut self.weights[(key + row) * TILE + at..]);
                }
                let columns = &self.grad_columns[at..];
                let products = products::<L, ROWS>(&self.values[key * head.width..], head, columns);
                for (row, [a, b]) in products.into_iter().enumerate() {
                    let at = (key + row) * TILE + at;
                    let [p, q] = load::<L>(&self.weights[at..]);
                    let grad = [p.mul(a.sub(deltas[0])).mul(scale), q.mul(b.sub(deltas[1])).mul(scale)];
                    store(grad, &mut self.weight_grads[at..]);
                }
            }
            for e in (0..head.width).step_by(ROWS) {
                let grads = &self.weight_grads[at..];
                let mixed = mixed::<L, ROWS>(&self.keys[e..], head.width, grads, many);
                for (row, sum) in mixed.into_iter().enumerate() {
                    store(sum, &mut self.out[(e + row) * TILE + at..]);
                }
            }
        }
        for key in (0..many).step_by(ROWS) {
            let (weights, grads) = (&self.weights[key * TILE..], &self.weight_grads[key * TILE..]);
            for e in (0..head.width).step_by(L::COUNT) {
                let into = key * head.width + e;
                add::<L, ROWS>(weights, &self.grads[e..], head.width, &mut self.value_grads[into..]);
                add::<L, ROWS>(grads, &self.queries[e..], head.width, &mut self.key_grads[into..]);
            }
        }
    }

    /// Of `ROWS` keys and two registers of queries.
    #[inline(always)]
    fn scores<L: Lanes, const ROWS: usize>(
        &self,
        head: &Head,
        first: usize,
        key: usize,
        at: usize,
    ) -> [[L; 2]; ROWS] {
        let columns = &self.query_columns[at..];
        let mut scores = products::<L, ROWS>(&self.keys[key * head.width..], head, columns);
        for (row, [a, b]) in scores.iter_mut().enumerate() {
            let Some(ahead) = (key + row).checked_sub(first) else { continue };
            let mask = load::<L>(&self.mask[TILE - ahead + at..]);
            (*a, *b) = (a.add(mask[0]), b.add(mask[1]));
        }
        scores
    }
}

#[inline(always)]
fn load<L: Lanes>(from: &[f32]) -> [L; 2] {
    [L::load(from), L::load(&from[L::COUNT..])]
}

#[inline(always)]
fn store<L: Lanes>([a, b]: [L; 2], to: &mut [f32]) {
    a.store(to);
    b.store(&mut to[L::COUNT..]);
}

/// Of each of `ROWS` rows with each of the columns, whose rows are as long as a tile.
#[inline(always)]
fn products<L: Lanes, const ROWS: usize>(rows: &[f32], head: &Head, columns: &[f32]) -> [[L; 2]; ROWS] {
    let rows: [&[f32]; ROWS] =
        std::array::from_fn(|row| &rows[row * head.width..row * head.width + head.dim]);
    let mut sums = [[L::splat(0.0); 2]; ROWS];
    for (e, column) in columns.chunks(TILE).take(head.dim).enumerate() {
        let [x, y] = load::<L>(column);
        for (row, [a, b]) in rows.iter().zip(&mut sums) {
            let factor = L::splat(row[e]);
            (*a, *b) = (factor.mul_add(x, *a), factor.mul_add(y, *b));
        }
    }
    sums
}

/// The first `ROWS` elements of each of `many` rows, weighed by columns and added up.
#[inline(always)]
fn mixed<L: Lanes, const ROWS: usize>(
    rows: &[f32],
    width: usize,
    columns: &[f32],
    many: usize,
) -> [[L; 2]; ROWS] {
    let mut sums = [[L::splat(0.0); 2]; ROWS];
    for (row, column) in rows.chunks(width).zip(columns.chunks(TILE)).take(many) {
        let [x, y] = load::<L>(column);
        for (factor, [a, b]) in row[..ROWS].iter().zip(&mut sums) {
            let factor = L::splat(*factor);
            (*a, *b) = (factor.mul_add(x, *a), factor.mul_add(y, *b));
        }
    }
    sums
}

/// To each of `ROWS` rows, the tile's `rows` weighed by a row of `weights`; as many elements as there are lanes.
#[inline(always)]
fn add<L: Lanes, const ROWS: usize>(weights: &[f32], rows: &[f32], width: usize, into: &mut [f32]) {
    let weights: [&[f32]; ROWS] = std::array::from_fn(|row| &weights[row * TILE..(row + 1) * TILE]);
    let mut sums: [L; ROWS] = std::array::from_fn(|row| L::load(&into[row * width..]));
    for (query, row) in rows.chunks(width).take(TILE).enumerate() {
        let row = L::load(row);
        for (weights, sum) in weights.iter().zip(&mut sums) {
            *sum = L::splat(weights[query]).mul_add(row, *sum);
        }
    }
    for (row, sum) in sums.into_iter().enumerate() {
        sum.store(&mut into[row * width..]);
    }
}
