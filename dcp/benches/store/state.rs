//! The state of a training job of four ranks, in memory: f32 tensors of 33 MB, each cut by rows.

use dcp::save::{SavePlan, SaveSpec};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};

use crate::Any;

/// Ranks of the job.
pub(crate) const RANKS: u32 = 4;

/// Extents of each tensor.
const SHAPE: [u64; 2] = [4096, 2048];

/// Bytes of what one rank holds of a tensor.
const BOX: usize = 4096 * 2048 * 4 / 4;

/// Tensors that make up about so many gigabytes.
pub(crate) fn tensors(gigabytes: &str) -> Result<u32, Any> {
    const TENSOR: f64 = 4096.0 * 2048.0 * 4.0;
    let count = (gigabytes.parse::<f64>()? * 1e9 / TENSOR).round().clamp(1.0, 1e5);
    Ok(format!("{count}").parse()?)
}

pub(crate) fn plan(tensors: u32, step: u64) -> Result<SavePlan, Any> {
    let mut registry = Registry::new();
    for at in 0..tensors {
        let fqn = Fqn::new(format!("layers.{at}.weight"))?;
        let mut entry = Entry::new(fqn, Role::Param, Dtype::F32, Shape::new(&SHAPE));
        entry.placement = Some("dp:0".parse()?);
        registry.push(entry)?;
    }
    Ok(SavePlan::new(SaveSpec::new("main".parse()?, registry, format!("dp={RANKS}").parse()?, step))?)
}

/// What one rank holds, tensor by tensor: numbers that no compression or page of zeros makes cheap.
pub(crate) fn of_rank(tensors: u32, rank: u32) -> Result<Vec<u8>, Any> {
    let mut bytes = vec![0; BOX * usize::try_from(tensors)?];
    let mut seed = u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.as_chunks_mut::<8>().0 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // No NaN and no infinity, as in a healthy state.
        *word = (seed & 0xbfff_ffff_bfff_ffff).to_le_bytes();
    }
    Ok(bytes)
}

/// The boxes of a rank, in the order of tensors.
pub(crate) fn boxes(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(BOX)
}
