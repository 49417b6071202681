//! The arithmetic of [`super::stats`]: blocks of elements as `f64`, summed in lanes of fixed number that compilers turn
//! into vector instructions.
//!
//! Invariant: the order of additions depends on a block alone, so that no sum depends on threads or on the machine.

use fqn::Dtype;

use crate::element::{Element, decode};

/// Elements of a block: both sides stay in the first level of a cache.
pub(super) const BLOCK: usize = 1024;

/// Sums kept apart; four of each kind fit the registers of every 64-bit machine.
const LANES: usize = 4;

/// How elements of one dtype become numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Dtype of a component.
    component: Dtype,
    /// Components of an element: two where it is complex.
    pub(super) parts: usize,
    /// Bytes of an element.
    pub(super) width: usize,
    /// Every value that a byte can have.
    table: Option<Vec<f64>>,
}

impl Numbers {
    /// `None` for elements narrower than a byte, which are not computed with.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        let (component, parts) = match dtype {
            Dtype::C32 => (Dtype::F16, 2),
            Dtype::C64 => (Dtype::F32, 2),
            Dtype::C128 => (Dtype::F64, 2),
            real => (real, 1),
        };
        decode(dtype, &[])?;
        let width = usize::try_from(dtype.bits() / 8).ok()?;
        let bytes = || (0..=u8::MAX).collect::<Vec<_>>();
        let table = if width == 1 {
            Some(decode(component, &bytes())?.into_iter().map(number).collect())
        } else {
            None
        };
        Some(Self { component, parts, width, table })
    }

    /// Replaces `out` by this many components of each of the packed elements.
    pub(super) fn read(&self, bytes: &[u8], parts: usize, out: &mut Vec<f64>) {
        self.components(bytes, out);
        if parts > self.parts {
            *out = out.iter().flat_map(|real| [*real, 0.0]).collect();
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "distances are reported in f64")]
    fn components(&self, bytes: &[u8], out: &mut Vec<f64>) {
        match (self.component, &self.table) {
            (_, Some(table)) => {
                each(bytes, out, |[b]| table.get(usize::from(b)).copied().unwrap_or(f64::NAN));
            }
            (Dtype::F64, _) => each(bytes, out, f64::from_le_bytes),
            (Dtype::F32, _) => each(bytes, out, |b| f32::from_le_bytes(b).into()),
            (Dtype::BF16, _) => {
                each(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into());
            }
            (Dtype::F16, _) => each(bytes, out, |b| half(u16::from_le_bytes(b)).into()),
            (Dtype::I64, _) => each(bytes, out, |b| i64::from_le_bytes(b) as f64),
            (Dtype::I32, _) => each(bytes, out, |b| i32::from_le_bytes(b).into()),
            (Dtype::I16, _) => each(bytes, out, |b| i16::from_le_bytes(b).into()),
            (Dtype::U64, _) => each(bytes, out, |b| u64::from_le_bytes(b) as f64),
            (Dtype::U32, _) => each(bytes, out, |b| u32::from_le_bytes(b).into()),
            (Dtype::U16, _) => each(bytes, out, |b| u16::from_le_bytes(b).into()),
            (other, _) => {
                out.clear();
                out.extend(decode(other, bytes).unwrap_or_default().into_iter().map(number));
            }
        }
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut Vec<f64>, number: impl Fn([u8; N]) -> f64) {
    let chunks = bytes.as_chunks::<N>().0;
    out.resize(chunks.len(), 0.0);
    for (out, chunk) in out.iter_mut().zip(chunks) {
        *out = number(*chunk);
    }
}

/// A real element's value.
#[expect(clippy::cast_precision_loss, reason = "distances are reported in f64")]
fn number(element: Element) -> f64 {
    match element {
        Element::Float(value) | Element::Complex(value, _) => value,
        Element::Int(value) => value as f64,
        Element::Uint(value) => value as f64,
        Element::Bool(value) => u8::from(value).into(),
    }
}

/// IEEE binary16 without branches, which would keep the loop around it from becoming vector instructions.
fn half(bits: u16) -> f32 {
    let (sign, size) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7FFF));
    let normal = (size << 13) + (112 << 23);
    #[expect(clippy::cast_precision_loss, reason = "15 bits are exact")]
    let subnormal = (size.cast_signed() as f32 * f32::from_bits(103 << 23)).to_bits();
    let special = (size << 13) | 0x7F80_0000;
    let finite = if size < 0x400 { subnormal } else { normal };
    f32::from_bits(sign | if size < 0x7C00 { finite } else { special })
}

/// What is added up over the components of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) dot: f64,
    /// Sums of squares of each.
    pub(super) norms: [f64; 2],
    /// Sum of squared differences.
    pub(super) squares: f64,
    pub(super) max_abs: f64,
    pub(super) max_rel: f64,
}

#[derive(Default)]
struct Lanes {
    dot: [f64; LANES],
    norms: [[f64; LANES]; 2],
    squares: [f64; LANES],
    max_abs: [f64; LANES],
    max_rel: [f64; LANES],
}

impl Lanes {
    #[inline]
    fn add(&mut self, a: &[f64; LANES], b: &[f64; LANES]) {
        for lane in 0..LANES {
            let (a, b) = (a[lane], b[lane]);
            let apart = (a - b).abs();
            // Not a number where both are zero, which is more than nothing.
            let relative = apart / larger(a.abs(), b.abs());
            self.dot[lane] += a * b;
            self.norms[0][lane] += a * a;
            self.norms[1][lane] += b * b;
            self.squares[lane] += apart * apart;
            self.max_abs[lane] = larger(apart, self.max_abs[lane]);
            self.max_rel[lane] = larger(relative, self.max_rel[lane]);
        }
    }
}

/// `b` where either is NaN: one instruction, unlike [`f64::max`].
const fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// Of two blocks of as many components. Where one holds NaN or infinity, or is too large to square, a norm is not finite.
pub(super) fn moments(a: &[f64], b: &[f64]) -> Moments {
    let mut lanes = Lanes::default();
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks(), b.as_chunks());
    for (a, b) in a.iter().zip(b) {
        lanes.add(a, b);
    }
    lanes.add(&padded(rest_a), &padded(rest_b));
    let most = |of: [f64; LANES]| of.into_iter().fold(0.0, |most, it| larger(it, most));
    Moments {
        dot: total(lanes.dot),
        norms: lanes.norms.map(total),
        squares: total(lanes.squares),
        max_abs: most(lanes.max_abs),
        max_rel: most(lanes.max_rel),
    }
}

/// [`moments`] of a block with itself, of which nothing but its norm has to be computed.
pub(super) fn own_moments(a: &[f64]) -> Moments {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = a.as_chunks();
    for a in chunks.iter().chain([&padded(rest)]) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * a[lane];
        }
    }
    let norm = total(lanes);
    Moments { dot: norm, norms: [norm; 2], ..Moments::default() }
}

fn total([a, b, c, d]: [f64; LANES]) -> f64 {
    (a + b) + (c + d)
}

/// With zeros, which add nothing.
fn padded(rest: &[f64]) -> [f64; LANES] {
    std::array::from_fn(|lane| rest.get(lane).copied().unwrap_or(0.0))
}
