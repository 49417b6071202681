//! What a rank reads that takes its columns of every matrix, whatever mesh wrote them.

use dcp::{
    fingerprint::FingerprintSum,
    load::Loader,
    store::{Root, Stores},
};
use reshard::Region;
use serde_json::{Value, json};

use crate::{Any, timed};

/// The columns of all of `ranks` ranks in turn, read alone and proven together; and those of the first by blocks.
pub(crate) fn read(root: &str, ranks: u64) -> Result<Value, Any> {
    let loader = Loader::open(&Root::open(root, &Stores::new())?, &"latest".parse()?)?;
    let entries = loader.catalog().registry.entries();
    let (mut own, mut read, mut seconds) = (0, 0, 0.0);
    let mut sums = vec![FingerprintSum::default(); entries.len()];
    for rank in 0..ranks {
        let reader = loader.group_reader();
        let (took, bytes) = timed(|| {
            let mut bytes = 0;
            for (entry, sum) in entries.iter().zip(&mut sums) {
                let Some(region) = columns(&entry.shape, rank, ranks)? else { continue };
                let mut buffer =
                    vec![0; usize::try_from(entry.dtype.bytes_for(region.elements()).ok_or("bits")?)?];
                *sum += reader.read(&entry.id(), &region, &mut buffer)?;
                bytes += buffer.len() as u64;
            }
            Ok(bytes)
        })?;
        (own, read, seconds) = (own + bytes, read + reader.counts().0, seconds + took);
    }
    for (entry, sum) in entries.iter().zip(sums) {
        loader.group_reader().prove(&entry.id(), sum)?;
    }
    let (blocks, mine) = by_blocks(&loader, ranks)?;
    Ok(json!({"bytes": own, "read": read, "seconds": seconds, "blocks_read": blocks, "blocks_bytes": mine}))
}

fn by_blocks(loader: &Loader, ranks: u64) -> Result<(u64, u64), Any> {
    let (reader, mut mine) = (loader.reader(), 0);
    for entry in loader.catalog().registry.entries() {
        if let Some(region) = columns(&entry.shape, 0, ranks)? {
            mine += reader.read_vec(&entry.id(), &region)?.len() as u64;
        }
    }
    Ok((reader.counts().0, mine))
}

/// A rank's part of the last dimension; of a vector its part too, of a scalar rank 0 has all.
fn columns(shape: &[u64], rank: u64, ranks: u64) -> Result<Option<Region>, Any> {
    let (mut offsets, mut extents) = (vec![0; shape.len()], shape.to_vec());
    match (offsets.last_mut(), extents.last_mut()) {
        (Some(offset), Some(extent)) => {
            let part = extent.div_ceil(ranks);
            *offset = (part * rank).min(*extent);
            *extent = part.min(*extent - *offset);
        }
        _ if rank > 0 => return Ok(None),
        _ => {}
    }
    Ok(Some(Region::new(&offsets, &extents)?))
}
