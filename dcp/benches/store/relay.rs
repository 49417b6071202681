//! The floor of a reshard: every byte is read once, hashed as the source's and as the target's, and written once.

use std::{fs, os::unix::fs::FileExt, path::Path};

use serde_json::{Value, json};

use crate::{
    Any, timed,
    turns::{PIECE, cores, hash, list, share_out},
};

/// Copies the blobs below `from` into `to`, a file a thread at a time, two MiB after two MiB.
pub(crate) fn relay(from: &str, to: &str) -> Result<Value, Any> {
    let mut files = Vec::new();
    list(Path::new(from), &mut files)?;
    let to = Path::new(to);
    let (seconds, ()) = timed(|| {
        share_out(cores()?, files.len(), |at| {
            let (file, len) = files.get(at).ok_or("no file")?;
            one(file, *len, &fs::File::create(to.join(format!("floor-{at}")))?)
        })
    })?;
    Ok(json!({"seconds": seconds, "bytes": files.iter().map(|(_, len)| len).sum::<u64>()}))
}

fn one(from: &fs::File, len: u64, to: &fs::File) -> Result<(), Any> {
    let mut buffer = vec![0; 2 * PIECE];
    for at in (0..len).step_by(2 * PIECE) {
        let piece =
            buffer.get_mut(..usize::try_from((len - at).min(2 * PIECE as u64))?).ok_or("no buffer")?;
        from.read_exact_at(piece, at)?;
        for _of in ["source", "target"] {
            hash(piece.chunks(PIECE));
        }
        to.write_all_at(piece, at)?;
    }
    Ok(())
}
