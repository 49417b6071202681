//! The table of a file that is already there, by as many threads as are given.

use std::{
    io,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use thiserror::Error;

use super::{BLOCK_LEN, BlockLayout, BlockTable, BlockTableError, Sha256Digest};
use crate::{cores, read_at::ReadAt};

/// Why a file has no table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// Bytes could not be read.
    #[error("cannot read bytes {}..{} to hash them", range.start, range.end)]
    Read {
        /// The bytes.
        range: Range<u64>,
        /// What the medium said.
        source: io::Error,
    },
    /// A thread ended without its digests.
    #[error("a hashing thread ended early")]
    Thread,
    /// The digests don't make a table.
    #[error(transparent)]
    Table(#[from] BlockTableError),
}

/// Hashes every block of `file` with `threads` threads (at least one). Memory: one block a thread, and the table.
///
/// # Errors
/// Bytes that cannot be read.
pub fn table_of(file: &dyn ReadAt, layout: BlockLayout, threads: usize) -> Result<BlockTable, ComputeError> {
    let work = Work { file, layout: &layout, next: AtomicUsize::new(0), stop: AtomicBool::new(false) };
    let mut found = thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map_while(|_| cores::start(scope, || work.run())).collect();
        let mut found = work.run()?;
        for helper in helpers {
            found.extend(helper.join().map_err(|_| ComputeError::Thread)??);
        }
        Ok::<_, ComputeError>(found)
    })?;
    found.sort_unstable_by_key(|&(block, _)| block);
    Ok(BlockTable::new(layout, found.into_iter().map(|(_, digest)| digest).collect())?)
}

/// Blocks are handed out one by one, so that a slow thread holds nobody up.
struct Work<'a> {
    file: &'a dyn ReadAt,
    layout: &'a BlockLayout,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Work<'_> {
    fn run(&self) -> Result<Vec<(usize, Sha256Digest)>, ComputeError> {
        let mut buffer = Vec::new();
        let mut found = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let block = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(range) = self.layout.range(block) else { break };
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or(BLOCK_LEN as usize), 0);
            if let Err(source) = self.file.read_exact_at(range.start, &mut buffer) {
                self.stop.store(true, Ordering::Relaxed);
                return Err(ComputeError::Read { range, source });
            }
            found.push((block, Sha256Digest::of(&buffer)));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_hashed_by_any_number_of_threads_has_one_table() {
        let bytes: Vec<u8> =
            (0..5_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let layout = BlockLayout::new(bytes.len() as u64, [0, 100, 3_000_000]).unwrap();
        let expected: Vec<_> = layout
            .ranges()
            .map(|it| {
                Sha256Digest::of(&bytes[usize::try_from(it.start).unwrap()..usize::try_from(it.end).unwrap()])
            })
            .collect();
        let expected = BlockTable::new(layout.clone(), expected).unwrap();
        for threads in [0, 1, 3] {
            assert_eq!(table_of(&bytes, layout.clone(), threads).unwrap(), expected);
        }
    }

    #[test]
    fn bytes_that_are_not_there_are_named() {
        let layout = BlockLayout::new(2 << 20, []).unwrap();
        let error = table_of(&vec![0_u8; 1 << 20], layout, 2).unwrap_err();
        assert_eq!(error.to_string(), "cannot read bytes 1048576..2097152 to hash them");
    }
}
