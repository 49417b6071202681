//! [`Cursor`]: short runs of one thread, by way of pieces, of which it keeps the last at hand.
//!
//! Invariants: a thread has one piece at hand and lets go of it before it asks for another; of pieces that are shared it tells how many bytes
//! it took, so that a piece nobody will come for again makes room.

use std::{ops::Range, sync::Arc};

use super::{LONG, Reader, WINDOW, piece_range, take};
use crate::{
    FileId, Result,
    engine::{
        cache::{Block, Piece},
        checks::FileChecks,
    },
};

/// Reads short runs of one thread: keeps the piece at hand that it read last.
#[derive(Debug)]
pub(crate) struct Cursor<'r, 'a> {
    reader: &'r Reader<'a>,
    here: Option<Here>,
    checks: Option<(FileId, Arc<FileChecks>)>,
}

#[derive(Debug)]
struct Here {
    file: FileId,
    range: Range<u64>,
    block: Block,
    /// Its number where it is the cache's, and how many of its bytes were taken.
    piece: Option<usize>,
    taken: usize,
}

impl<'r, 'a> Cursor<'r, 'a> {
    pub(crate) const fn new(reader: &'r Reader<'a>) -> Self {
        Self { reader, here: None, checks: None }
    }

    /// Fills `dst`, by way of pieces where it is short.
    pub(crate) fn fill(&mut self, file: FileId, offset: u64, dst: &mut [u8]) -> Result<()> {
        if dst.len() >= LONG {
            self.reader.read(self, file, offset, dst)
        } else {
            self.copy(file, offset, dst)
        }
    }

    /// Fills `dst` from pieces, whatever its length.
    pub(super) fn copy(&mut self, file: FileId, offset: u64, dst: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, dst);
        while !rest.is_empty() {
            let had = self.at_hand(file, at).map(|bytes| {
                let len = bytes.len().min(rest.len());
                if let (Some(to), Some(from)) = (rest.get_mut(..len), bytes.get(..len)) {
                    to.copy_from_slice(from);
                }
                len
            });
            match had {
                Some(len) => {
                    self.took(len);
                    at = at.saturating_add(len as u64);
                    rest = rest.get_mut(len..).unwrap_or_default();
                }
                None => self.fetch(file, at)?,
            }
        }
        Ok(())
    }

    /// The bytes from `at` to the end of the piece at hand; `None` if it is another.
    fn at_hand(&self, file: FileId, at: u64) -> Option<&[u8]> {
        let here = self.here.as_ref().filter(|here| here.file == file && here.range.contains(&at))?;
        here.block.get(usize::try_from(at - here.range.start).ok()?..)
    }

    fn took(&mut self, bytes: usize) {
        if let Some(here) = &mut self.here {
            here.taken = here.taken.saturating_add(bytes);
        }
    }

    /// Puts the piece at hand back. One reader of regions may want its bytes again; a copy does not.
    fn leave(&mut self) {
        if let Some(Here { file, block, piece: Some(piece), taken, .. }) = self.here.take()
            && self.reader.shared
        {
            self.reader.cache.put_back((file.0, piece), block, taken);
        }
    }

    fn fetch(&mut self, file: FileId, at: u64) -> Result<()> {
        let checks = self.checks_of(file)?;
        self.checks = Some((file, Arc::clone(&checks)));
        let piece = checks.cuts.at(at);
        let range = piece_range(&checks, piece)?;
        // Let go first: with one piece at hand and another on the way, a thread would hold two.
        self.leave();
        let block = self.reader.piece(file, &checks, piece)?;
        self.here = Some(Here { file, range, block, piece: Some(piece), taken: 0 });
        Ok(())
    }

    /// Fills every cell of `cells`, `dst_step` bytes apart, from cells `step` bytes apart in `file`.
    pub(crate) fn scatter(&mut self, file: FileId, cells: &Cells, dst: &mut [u8]) -> Result<()> {
        let (mut done, width) = (0, cells.width);
        while done < cells.count {
            let at = cells.offset.saturating_add(cells.step.saturating_mul(done));
            let to = dst.get_mut(take(cells.dst_step.saturating_mul(done), usize::MAX)..).unwrap_or_default();
            let fit = self.at_hand(file, at).map_or(0, |bytes| {
                let step = take(cells.step, usize::MAX);
                let dst_step = take(cells.dst_step, usize::MAX);
                let most = take(cells.count - done, usize::MAX);
                spread(bytes, step, to, dst_step, width, most)
            });
            self.took(fit.saturating_mul(width));
            if fit == 0 {
                // Not at hand, or across the edge of two pieces.
                self.copy(file, at, to.get_mut(..width).unwrap_or_default())?;
            }
            done = done.saturating_add(fit.max(1) as u64);
        }
        Ok(())
    }

    /// Whether pieces that a box needs are brought before it is filled: others want them too.
    pub(crate) const fn brings(&self) -> bool {
        self.reader.shared
    }

    /// What proves the bytes of `file`.
    pub(crate) fn checks_of(&self, file: FileId) -> Result<Arc<FileChecks>> {
        match &self.checks {
            Some((of, checks)) if *of == file => Ok(Arc::clone(checks)),
            _ => self.reader.checks(file),
        }
    }

    /// See [`Reader::bring`].
    pub(crate) fn bring(&mut self, pieces: &[(FileId, usize)]) -> Result<()> {
        self.leave();
        self.reader.bring(pieces)
    }

    /// Whether pieces serve short runs of `file`: others want their rest too, or a block is what proves them.
    pub(crate) fn by_piece(&self, file: FileId) -> Result<bool> {
        Ok(self.reader.shared || self.reader.checks(file)?.has_blocks())
    }

    /// Fills `dst` and reads nothing beyond `end`: what is read ahead up to there is wanted by later calls.
    pub(crate) fn ahead(&mut self, file: FileId, offset: u64, end: u64, dst: &mut [u8]) -> Result<()> {
        if dst.len() as u64 >= WINDOW {
            return self.reader.raw(file, offset, dst);
        }
        let wanted = offset.saturating_add(dst.len() as u64);
        let held = self
            .here
            .as_ref()
            .is_some_and(|here| here.file == file && here.range.start <= offset && wanted <= here.range.end);
        if !held {
            let range = offset..end.min(offset.saturating_add(WINDOW)).max(wanted);
            let mut window = vec![0; usize::try_from(range.end - range.start).unwrap_or(dst.len())];
            self.reader.raw(file, offset, &mut window)?;
            self.here = Some(Here { file, range, block: Piece::alone(window), piece: None, taken: 0 });
        }
        self.copy(file, offset, dst)
    }

    /// Fills `dst` with exactly its own bytes.
    pub(crate) fn alone(&self, file: FileId, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.reader.raw(file, offset, dst)
    }
}

/// Cells that lie apart, in a file and in the buffer that they go to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cells {
    /// Byte of the first one in the file.
    pub(crate) offset: u64,
    /// Bytes from one to the next in the file.
    pub(crate) step: u64,
    /// Bytes from one to the next in the buffer.
    pub(crate) dst_step: u64,
    pub(crate) count: u64,
    /// Bytes of a cell.
    pub(crate) width: usize,
}

/// Copies at most `most` cells as far as both sides hold them whole; returns how many.
fn spread(src: &[u8], step: usize, dst: &mut [u8], dst_step: usize, width: usize, most: usize) -> usize {
    match width {
        1 => spread_of::<1>(src, step, dst, dst_step, most),
        2 => spread_of::<2>(src, step, dst, dst_step, most),
        4 => spread_of::<4>(src, step, dst, dst_step, most),
        8 => spread_of::<8>(src, step, dst, dst_step, most),
        16 => spread_of::<16>(src, step, dst, dst_step, most),
        _ => 0,
    }
}

fn spread_of<const W: usize>(src: &[u8], step: usize, dst: &mut [u8], dst_step: usize, most: usize) -> usize {
    for cell in 0..most {
        let from = src.get(cell * step..).and_then(<[u8]>::first_chunk::<W>);
        let to = dst.get_mut(cell * dst_step..).and_then(<[u8]>::first_chunk_mut::<W>);
        let (Some(from), Some(to)) = (from, to) else { return cell };
        *to = *from;
    }
    most
}
