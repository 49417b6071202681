//! Fingerprints of so many bytes that are in memory.

use std::sync::Mutex;

use dcp::fingerprint::FingerprintSum;
use fqn::{Dtype, Shape};
use reshard::Region;
use serde_json::json;

use crate::{Any, processor_seconds, state, timed, turns::share_out};

/// Columns of the tensor.
const COLUMNS: u64 = 2048;

/// Bytes of what a thread takes at a time.
const SHARE: usize = 8 << 20;

pub(crate) fn measure(gigabytes: f64, dtype: Dtype, threads: usize) -> Result<serde_json::Value, Any> {
    let bytes = state::of_rank(state::tensors(&(gigabytes * 4.0).to_string())?, 0)?;
    let width = dtype.element_bytes().ok_or("elements narrower than a byte")?;
    let row = COLUMNS * width;
    let shape = Shape::new(&[bytes.len() as u64 / row, COLUMNS]);
    let shares: Vec<&[u8]> = bytes.chunks(SHARE).collect();
    let all = Mutex::new(FingerprintSum::default());
    let before = processor_seconds();
    let (seconds, ()) = timed(|| {
        share_out(threads, shares.len(), |at| {
            let share = shares.get(at).ok_or("no share")?;
            let rows = share.len() as u64 / row;
            let region = Region::new(&[(at * SHARE) as u64 / row, 0], &[rows, COLUMNS])?;
            let mut sum = FingerprintSum::default();
            sum.add_region(dtype, &shape, &region, share)?;
            *all.lock().map_err(|_| "a thread panicked")? += sum;
            Ok(())
        })
    })?;
    let sum = all.into_inner().map_err(|_| "a thread panicked")?;
    let fingerprint = sum.finish(dtype, &shape).to_string();
    Ok(
        json!({"seconds": seconds, "threads": threads, "processor": processor_seconds() - before, "bytes": bytes.len(), "fingerprint": fingerprint}),
    )
}
