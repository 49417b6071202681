//! Initial values as a function of (seed, FQN, index of the element): no generator state, no order, no mesh.
//!
//! ```text
//!  SHA-256(seed, FQN) ─► key, stream          block = index / 4          lane = index % 4
//!                           └───────► Philox 4x32-10 (stream, block) ─► 4 × u32 ─► Box–Muller twice ─► 4 normals
//! ```
//!
//! Invariants: element i of a name has one value, whatever box of the tensor is computed, on whatever machine: integers,
//! then f64 arithmetic and `libm` in pure Rust, rounded to f32 once. The values are part of what a seed means: the test
//! vectors never change.

mod normal;
mod philox;

pub use normal::Normals;

use fqn::Fqn;
use reshard::Region;

use crate::{Error, Result, model::Init};

/// Values of `region` of the parameter `fqn` of shape `shape`, row-major.
///
/// # Errors
/// `Internal` for a region that is not in the shape, or that does not fit into memory.
pub fn values(seed: u64, fqn: &Fqn, init: Init, shape: &[i64], region: &Region) -> Result<Vec<f32>> {
    let misfit = || Error::internal(format!("{fqn} has no region {region}: its shape is {shape:?}"));
    let extents = shape.iter().map(|extent| u64::try_from(*extent)).collect::<Result<Vec<_>, _>>();
    let extents = extents.map_err(|_| misfit())?;
    if !region.fits(&fqn::Shape::new(&extents)) {
        return Err(misfit());
    }
    let count = usize::try_from(region.elements()).map_err(|_| misfit())?;
    match init {
        Init::Constant(value) => Ok(vec![to_f32(value); count]),
        Init::Normal(std) => {
            let mut values = Vec::with_capacity(count);
            let normals = Normals::new(seed, fqn.as_str(), std);
            for (start, length) in runs(&extents, region) {
                normals.extend(&mut values, start, length);
            }
            Ok(values)
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
const fn to_f32(value: f64) -> f32 {
    value as f32
}

/// The stretches of consecutive elements that a region is made of: first index and length, in order.
fn runs(shape: &[u64], region: &Region) -> Vec<(u64, u64)> {
    let mut runs = vec![(0, 1)];
    if region.is_empty() {
        return Vec::new();
    }
    for ((extent, offset), length) in shape.iter().zip(region.offsets()).zip(region.extents()) {
        let whole = length == extent;
        let deeper = runs.iter().flat_map(|&(start, count): &(u64, u64)| {
            // A stretch of rows continues into a dimension that is taken whole; else each row begins a new one.
            let rows = if whole { 0..1 } else { 0..count };
            let count = if whole { count * extent } else { *length };
            rows.map(move |row| ((start + row) * extent + offset, count))
        });
        runs = deeper.collect();
    }
    runs
}

#[cfg(test)]
mod tests;
