//! The floor of a reshard: every byte is read once, hashed as the source's and as the target's, and written once.

use std::{
    fs, io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    Any, timed,
    turns::{PIECE, cores, hash, list, share_out_with},
};

/// Bytes that a thread takes at a time.
const ITEM: usize = 2 * PIECE;

/// Copies the blobs below `from` into `to`, two MiB at a time, on all cores also where there are fewer files.
pub(crate) fn relay(from: &str, to: &str) -> Result<Value, Any> {
    let mut sources = Vec::new();
    list(Path::new(from), &mut sources)?;
    let create = |at: usize| fs::File::create(Path::new(to).join(format!("floor-{at}")));
    let targets = (0..sources.len()).map(create).collect::<io::Result<Vec<_>>>()?;
    let lengths = sources.iter().map(|(_, len)| *len);
    let items = lengths.clone().map(|len| len.div_ceil(ITEM as u64)).sum::<u64>();
    let rest = lengths.clone().map(|len| Rest { from: 0, len, threads: 0 }).collect();
    let queue = Queue(Mutex::new(rest));
    let (seconds, ()) = timed(|| {
        // Of each thread: its buffer, and the file that it is in.
        share_out_with(cores()?, usize::try_from(items)?, (vec![0; ITEM], None), |(buffer, file), _| {
            let (at, offset, len) = queue.next(file).ok_or("fewer items than were counted")?;
            let ((source, _), target) = sources.get(at).zip(targets.get(at)).ok_or("no file")?;
            let piece = buffer.get_mut(..len).ok_or("no buffer")?;
            source.read_exact_at(piece, offset)?;
            for _of in ["source", "target"] {
                hash(piece.chunks(PIECE));
            }
            Ok(target.write_all_at(piece, offset)?)
        })
    })?;
    Ok(json!({"seconds": seconds, "bytes": lengths.sum::<u64>()}))
}

/// What is left of each file. Two threads that write one file wait for each other in the kernel: a thread stays in its file as long
/// as there is something left of it, and goes on to the one with the fewest threads.
struct Queue(Mutex<Vec<Rest>>);

struct Rest {
    from: u64,
    len: u64,
    threads: usize,
}

impl Queue {
    /// The next item of a thread that is in `file`: of which file, where, how long.
    fn next(&self, file: &mut Option<usize>) -> Option<(usize, u64, usize)> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = file.take().inspect(|at| files.get_mut(*at).into_iter().for_each(|it| it.threads -= 1));
        let left = |it: &Rest| it.from < it.len;
        let stay = mine.filter(|at| files.get(*at).is_some_and(left));
        let fewest = || files.iter().enumerate().filter(|(_, it)| left(it)).min_by_key(|(_, it)| it.threads);
        let at = stay.or_else(|| fewest().map(|(at, _)| at))?;
        let rest = files.get_mut(at)?;
        let (offset, len) = (rest.from, (rest.len - rest.from).min(ITEM as u64));
        (rest.from, rest.threads, *file) = (offset + len, rest.threads + 1, Some(at));
        Some((at, offset, usize::try_from(len).ok()?))
    }
}
