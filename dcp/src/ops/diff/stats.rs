//! [`Stats`]: how the values of two tensors differ, summed tile by tile.

use fqn::Dtype;
use serde::Serialize;

use crate::element::{Element, decode};

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
    squares: f64,
    dot: f64,
    norms: [f64; 2],
    ulps: u64,
}

impl Sums {
    /// Adds a tile: the packed elements of both, of which the first has this row-major index.
    pub(super) fn add(&mut self, first: u64, one: (Dtype, &[u8]), other: (Dtype, &[u8])) {
        let decoded = decode(one.0, one.1).zip(decode(other.0, other.1));
        let Some((a, b)) = decoded else { return self.add_bytes(first, one.1, other.1) };
        let widths = [one, other].map(|(dtype, _)| usize::try_from(dtype.bits() / 8).unwrap_or(1).max(1));
        let bits = one.1.chunks_exact(widths[0]).zip(other.1.chunks_exact(widths[1]));
        let same_dtype = one.0 == other.0;
        for ((index, (a, b)), (bits_a, bits_b)) in (first..).zip(a.into_iter().zip(b)).zip(bits) {
            let equal = if same_dtype { bits_a == bits_b } else { a == b || number(a) == number(b) };
            self.element(index, a, b, equal);
            if same_dtype && !equal {
                self.ulps += u64::from(ulps(one.0, bits_a, bits_b).is_some_and(|apart| apart > 1));
            }
        }
    }

    pub(super) fn finish(self, same: Option<Dtype>) -> Stats {
        let [a, b] = self.norms.map(f64::sqrt);
        let l2 = self.squares.sqrt();
        let rel_l2 = if a > 0.0 { l2 / a } else { l2 };
        let cosine = (a > 0.0 && b > 0.0).then(|| self.dot / (a * b));
        let beyond_one_ulp = same.filter(|dtype| float_bits(*dtype).is_some()).map(|_| self.ulps);
        Stats { l2, rel_l2, cosine, beyond_one_ulp, ..self.stats }
    }

    /// Elements narrower than a byte: byte by byte, as they are not computed with.
    fn add_bytes(&mut self, first: u64, one: &[u8], other: &[u8]) {
        for (index, (a, b)) in (first..).zip(one.iter().zip(other)) {
            self.stats.elements += 1;
            if a != b {
                self.differs(index);
            }
        }
    }

    fn differs(&mut self, index: u64) {
        self.stats.differing += 1;
        self.stats.first = Some(self.stats.first.map_or(index, |first| first.min(index)));
    }

    fn element(&mut self, index: u64, a: Element, b: Element, equal: bool) {
        self.stats.elements += 1;
        if !equal {
            self.differs(index);
        }
        let (a, b) = (number(a), number(b));
        for (side, value) in [a, b].into_iter().enumerate() {
            let (nan, infinite) =
                (value.0.is_nan() || value.1.is_nan(), value.0.is_infinite() || value.1.is_infinite());
            if let (Some(nans), Some(infinities)) =
                (self.stats.nans.get_mut(side), self.stats.infinities.get_mut(side))
            {
                *nans += u64::from(nan);
                *infinities += u64::from(infinite && !nan);
            }
        }
        if ![a.0, a.1, b.0, b.1].into_iter().all(f64::is_finite) {
            return;
        }
        self.dot += a.0.mul_add(b.0, a.1 * b.1);
        self.norms[0] += a.0.mul_add(a.0, a.1 * a.1);
        self.norms[1] += b.0.mul_add(b.0, b.1 * b.1);
        if equal {
            return;
        }
        let apart = (a.0 - b.0).hypot(a.1 - b.1);
        self.squares += apart * apart;
        self.stats.max_abs = self.stats.max_abs.max(apart);
        let magnitude = a.0.hypot(a.1).max(b.0.hypot(b.1));
        if magnitude > 0.0 {
            self.stats.max_rel = self.stats.max_rel.max(apart / magnitude);
        }
    }
}

/// Real and imaginary part.
#[expect(clippy::cast_precision_loss, reason = "distances are reported in f64")]
fn number(element: Element) -> (f64, f64) {
    match element {
        Element::Float(value) => (value, 0.0),
        Element::Int(value) => (value as f64, 0.0),
        Element::Uint(value) => (value as f64, 0.0),
        Element::Bool(value) => (f64::from(u8::from(value)), 0.0),
        Element::Complex(re, im) => (re, im),
    }
}

/// Bits without the sign, of dtypes whose order is that of their bits.
const fn float_bits(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => Some(dtype.bits() - 1),
        Dtype::F8E4M3FN | Dtype::F8E5M2 | Dtype::F8E4M3FNUZ | Dtype::F8E5M2FNUZ => Some(7),
        Dtype::F8E8M0 => Some(8),
        _ => None,
    }
}

/// How many representable numbers apart two floats are; `None` for other dtypes and NaNs.
fn ulps(dtype: Dtype, a: &[u8], b: &[u8]) -> Option<u64> {
    let magnitude = float_bits(dtype)?;
    let place = |bytes: &[u8]| {
        let Some(Element::Float(value)) = decode(dtype, bytes)?.first().copied() else { return None };
        let mut wide = [0_u8; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        let size = i128::from(bits & ((1 << magnitude) - 1));
        (!value.is_nan()).then_some(if bits >> magnitude == 0 { size } else { -size })
    };
    u64::try_from((place(a)? - place(b)?).unsigned_abs()).ok()
}
