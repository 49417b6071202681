//! Cutting one dimension: `torch.chunk`'s unevenness, nested cuts, cuts that fall inside fused parts.
//!
//! Invariant: the pieces of all coordinates of a cut tile what it was given, in order.

use smallvec::SmallVec;

/// A stretch of a dimension: first index and length.
pub(super) type Stretch = (u64, u64);

/// What a rank holds of one dimension, ascending. One stretch, but for fused tensors.
pub(super) type Stretches = SmallVec<[Stretch; 1]>;

/// The part with number `index` of `parts` of `len` elements, as `torch.chunk` cuts: parts of `ceil(len / parts)`, the
/// last ones shorter or empty. An empty part starts at `len`, which is where torch puts it.
#[must_use]
pub fn chunk(len: u64, parts: u64, index: u64) -> (u64, u64) {
    let size = len.div_ceil(parts.max(1));
    let start = size.saturating_mul(index).min(len);
    (start, size.min(len - start))
}

/// Cuts the concatenation of `held` and keeps part `index` of `parts`.
pub(super) fn across(held: &Stretches, parts: u64, index: u64) -> Stretches {
    let (mut skip, mut take) = chunk(held.iter().map(|(_, len)| len).sum(), parts, index);
    let mut kept = Stretches::new();
    for &(start, len) in held {
        let skipped = skip.min(len);
        let taken = take.min(len - skipped);
        if taken > 0 {
            kept.push((start + skipped, taken));
        }
        skip -= skipped;
        take -= taken;
    }
    kept
}

/// Cuts every stretch of `held` by itself and keeps part `index` of each: how TP cuts a fused tensor.
pub(super) fn within(held: &Stretches, parts: u64, index: u64) -> Stretches {
    let pieces = held.iter().map(|&(start, len)| {
        let (skip, taken) = chunk(len, parts, index);
        (start + skip, taken)
    });
    pieces.filter(|(_, len)| *len > 0).collect()
}

/// What of `held` lies inside one stretch.
pub(super) fn inside(held: &Stretches, (from, len): Stretch) -> Stretches {
    let end = from.saturating_add(len);
    let clipped = held.iter().map(|&(start, len)| {
        let first = start.max(from);
        (first, start.saturating_add(len).min(end).saturating_sub(first))
    });
    clipped.filter(|(_, len)| *len > 0).collect()
}

/// What of `held` lies below `end`: padding that a layout adds holds no elements.
pub(super) fn below(held: &Stretches, end: u64) -> Stretches {
    let clipped = held.iter().map(|&(start, len)| (start, (start + len).min(end).saturating_sub(start)));
    clipped.filter(|(_, len)| *len > 0).collect()
}
