//! [`Stats`]: how the values of two tensors differ, summed tile by tile.
//!
//! A tile is taken in blocks. Most blocks of most checkpoints hold only finite numbers and need neither a branch nor a
//! look at single elements; where a block's norm is not finite, its elements are told apart and it is summed again.

use fqn::Dtype;
use serde::Serialize;

use super::{
    bits::{beyond_one_ulp, differing, ordered},
    lanes::{BLOCK, Moments, Numbers, moments, own_moments},
    wide::{Scale, Wide},
};

/// How the values of two tensors of one shape differ. NaNs and infinities count as differing unless they are the same, and are
/// left out of distances.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct Stats {
    /// Elements compared.
    pub elements: u64,
    /// Elements that differ.
    pub differing: u64,
    /// Row-major index of the first that does.
    pub first: Option<u64>,
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest difference relative to the larger of both magnitudes.
    pub max_rel: f64,
    /// Root of the sum of squared differences.
    pub l2: f64,
    /// The same, relative to the norm of the first tensor.
    pub rel_l2: f64,
    /// Cosine of the angle between both tensors as vectors; `None` where one is zero.
    pub cosine: Option<f64>,
    /// Elements more than one unit in the last place apart, where both have the same floating-point dtype.
    pub beyond_one_ulp: Option<u64>,
    /// NaNs in each.
    pub nans: [u64; 2],
    /// Infinities in each.
    pub infinities: [u64; 2],
}

/// Sums that become [`Stats`].
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    stats: Stats,
    squares: Wide,
    dot: Wide,
    norms: [Wide; 2],
    ulps: u64,
}

/// The same elements of both tensors.
struct Block<'a> {
    /// Row-major index of the first.
    first: u64,
    /// Packed elements of each.
    packed: [&'a [u8]; 2],
    /// The dtype of both, where it is one.
    same: Option<Dtype>,
    /// Bytes of an element of the first.
    width: usize,
    /// Components of an element.
    parts: usize,
}

impl Sums {
    /// Adds a tile: the packed elements of both, of which the first has this row-major index.
    pub(super) fn add(&mut self, first: u64, one: (Dtype, &[u8]), other: (Dtype, &[u8])) {
        let (Some(left), Some(right)) = (Numbers::of(one.0), Numbers::of(other.0)) else {
            return self.add_bytes(first, one.1, other.1);
        };
        let parts = left.parts.max(right.parts);
        let same = Some(one.0).filter(|dtype| *dtype == other.0);
        let blocks = one.1.chunks(BLOCK * left.width).zip(other.1.chunks(BLOCK * right.width));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (first, (x, y)) in (first..).step_by(BLOCK).zip(blocks) {
            let block = Block { first, packed: [x, y], same, width: left.width, parts };
            self.stats.elements += (x.len() / left.width) as u64;
            left.read(x, parts, &mut a);
            if same.is_some() && x == y {
                self.equal(&mut a, parts);
            } else {
                right.read(y, parts, &mut b);
                self.apart(&block, &mut a, &mut b);
            }
        }
    }

    pub(super) fn finish(self, same: Option<Dtype>) -> Stats {
        let [a, b] = self.norms.map(Wide::root);
        let squares = self.squares.root();
        let l2 = squares.value();
        let rel_l2 = if a.is_zero() { l2 } else { squares.over(a).value() };
        let cosine = (!a.is_zero() && !b.is_zero()).then(|| self.dot.over(a).over(b).value());
        let beyond_one_ulp = same.filter(|dtype| ordered(*dtype)).map(|_| self.ulps);
        Stats { l2, rel_l2, cosine, beyond_one_ulp, ..self.stats }
    }

    /// Elements narrower than a byte: byte by byte, as they are not computed with.
    fn add_bytes(&mut self, first: u64, one: &[u8], other: &[u8]) {
        self.stats.elements += one.len().min(other.len()) as u64;
        let differing = one.iter().zip(other).map(|(a, b)| u64::from(a != b)).sum();
        self.differ(differing, || {
            (first..).zip(one.iter().zip(other)).find(|(_, (a, b))| a != b).map(|it| it.0)
        });
    }

    fn differ(&mut self, differing: u64, first: impl FnOnce() -> Option<u64>) {
        self.stats.differing += differing;
        if differing > 0 && self.stats.first.is_none() {
            self.stats.first = first();
        }
    }

    /// Adds a block that is the same bits in both.
    fn equal(&mut self, a: &mut [f64], parts: usize) {
        let mut sums = own_moments(a);
        if !sums.dot.is_finite() {
            let mut b = a.to_vec();
            self.set_aside(a, &mut b, parts);
            sums = own_moments(a);
        }
        let scale = scale_of(sums.dot, a);
        if !scale.is_one() {
            sums = own_moments(&scale.of_numbers(a));
        }
        self.sum(&sums, [scale; 2], scale);
    }

    /// Adds a block that may differ.
    fn apart(&mut self, block: &Block<'_>, a: &mut [f64], b: &mut [f64]) {
        self.count(block, a, b);
        let mut sums = moments(a, b);
        let finite = sums.norms.iter().all(|norm| norm.is_finite());
        if let Some(dtype) = block.same {
            let [x, y] = block.packed;
            self.ulps += beyond_one_ulp(dtype, x, y, (!finite).then_some((&*a, &*b)));
        }
        if !finite {
            self.set_aside(a, b, block.parts);
            sums = moments(a, b);
        }
        if block.parts == 2 {
            (sums.max_abs, sums.max_rel) = farthest(a, b);
        }
        let sides = [scale_of(sums.norms[0], a), scale_of(sums.norms[1], b)];
        let apart = Scale::of(sums.squares, || sums.max_abs > 0.0);
        if [sides[0], sides[1], apart].iter().any(|scale| !scale.is_one()) {
            rescale(&mut sums, [a, b], sides, apart, block.parts);
        }
        self.sum(&sums, sides, apart);
    }

    /// Counts elements that differ: in bits where those mean the same, else in value.
    fn count(&mut self, block: &Block<'_>, a: &[f64], b: &[f64]) {
        let &Block { first, packed: [x, y], same, width, parts } = block;
        if same.is_some() {
            let bits = || x.chunks_exact(width).zip(y.chunks_exact(width));
            let at = || (first..).zip(bits()).find(|(_, (x, y))| x != y).map(|it| it.0);
            self.differ(differing(width, x, y), at);
        } else {
            let values = || a.chunks_exact(parts).zip(b.chunks_exact(parts)).map(|(a, b)| a != b);
            let at = || (first..).zip(values()).find(|(_, differ)| *differ).map(|it| it.0);
            self.differ(values().map(u64::from).sum(), at);
        }
    }

    /// Counts elements that are not finite, and makes them zero on both sides, where they add nothing.
    fn set_aside(&mut self, a: &mut [f64], b: &mut [f64], parts: usize) {
        for (a, b) in a.chunks_exact_mut(parts).zip(b.chunks_exact_mut(parts)) {
            let nan = [&*a, &*b].map(|side| side.iter().any(|value| value.is_nan()));
            let infinite = [&*a, &*b].map(|side| side.iter().any(|value| value.is_infinite()));
            for side in 0..2 {
                self.stats.nans[side] += u64::from(nan[side]);
                self.stats.infinities[side] += u64::from(infinite[side] && !nan[side]);
            }
            if nan.into_iter().chain(infinite).any(|it| it) {
                a.fill(0.0);
                b.fill(0.0);
            }
        }
    }

    /// Adds what a block comes to, its sides and their differences at these scales.
    fn sum(&mut self, sums: &Moments, sides: [Scale; 2], apart: Scale) {
        self.dot.add(Wide::of_products(sums.dot, sides));
        for ((norm, sum), scale) in self.norms.iter_mut().zip(sums.norms).zip(sides) {
            norm.add(Wide::of_products(sum, [scale; 2]));
        }
        self.squares.add(Wide::of_products(sums.squares, [apart; 2]));
        self.stats.max_abs = self.stats.max_abs.max(sums.max_abs);
        self.stats.max_rel = self.stats.max_rel.max(sums.max_rel);
    }
}

fn scale_of(norm: f64, numbers: &[f64]) -> Scale {
    Scale::of(norm, || numbers.iter().any(|number| *number != 0.0))
}

/// Takes the sums of a block again, its sides and their differences at these scales. Largest distances are not scaled.
fn rescale(sums: &mut Moments, [a, b]: [&[f64]; 2], sides: [Scale; 2], apart: Scale, parts: usize) {
    let again = moments(&sides[0].of_numbers(a), &sides[1].of_numbers(b));
    (sums.dot, sums.norms) = (again.dot, again.norms);
    sums.squares = own_moments(&apart.of_differences(a, b)).norms[0];
    // The difference of two numbers may be none, and their ratio still one.
    if sums.max_abs.is_infinite() {
        let (a, b) = (apart.of_numbers(a), apart.of_numbers(b));
        sums.max_rel = if parts == 2 { farthest(&a, &b).1 } else { moments(&a, &b).max_rel };
    }
}

/// The largest absolute and relative distances of complex numbers.
fn farthest(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (mut most, mut relative) = (0_f64, 0_f64);
    for ([a, i], [b, j]) in a.as_chunks().0.iter().zip(b.as_chunks().0) {
        let apart = (a - b).hypot(i - j);
        most = most.max(apart);
        // Not a number where both are zero, which `max` leaves out.
        relative = relative.max(apart / a.hypot(*i).max(b.hypot(*j)));
    }
    (most, relative)
}

#[cfg(test)]
mod tests;
