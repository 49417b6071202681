//! Pieces that are brought into the cache before a box is gathered from them.
//!
//! Invariants: nothing is shown to others before it is proven; a piece that is here or on its way is left to whoever reads it.

use std::sync::{Arc, atomic::Ordering};

use super::{Reader, piece_range, take};
use crate::{
    FileId, Result,
    digest::BLOCK_LEN,
    engine::{
        cache::Claim,
        checks::{Bad, FileChecks},
    },
};

/// What part of the cache a box may have brought into it.
const BROUGHT: usize = 16;

/// A piece that was read and not proven yet.
#[derive(Debug)]
struct Unproven<'c> {
    file: FileId,
    checks: Arc<FileChecks>,
    piece: usize,
    claim: Claim<'c>,
}

impl Reader<'_> {
    /// Has pieces read that are to be taken from the cache right after, two at a time: two blocks are proven in less time than one after the
    /// other. Threads that want the same ones divide them up, since each begins at another and leaves out what is on its way: through a
    /// network, one wait instead of one for each piece. Boxes that touch more than the cache has room for are left to take one after the other.
    pub(crate) fn bring(&self, pieces: &[(FileId, usize)]) -> Result<()> {
        if pieces.len() > self.cache.capacity() / BROUGHT / BLOCK_LEN as usize {
            return Ok(());
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(pieces.len()).unwrap_or(0);
        let (later, now) = pieces.split_at(first);
        let mut unproven: Option<Unproven<'_>> = None;
        for (file, piece) in now.iter().chain(later) {
            let Some(read) = self.unproven(*file, *piece)? else { continue };
            match unproven.take() {
                None => unproven = Some(read),
                Some(before) => {
                    let of = |it: &Unproven<'_>| (Arc::clone(&it.checks), it.piece);
                    let ((one, piece), (other, other_piece)) = (of(&before), of(&read));
                    let two =
                        [(&*one, piece, before.claim.bytes()), (&*other, other_piece, read.claim.bytes())];
                    let [of_one, of_other] = FileChecks::check_two(two);
                    self.shown(before, of_one)?;
                    self.shown(read, of_other)?;
                }
            }
        }
        let Some(last) = unproven else { return Ok(()) };
        let checked = last.checks.check(last.piece, last.claim.bytes());
        self.shown(last, checked)
    }

    /// Reads a piece, if nobody has or does. A compressed one is proven and shown at once.
    fn unproven(&self, file: FileId, piece: usize) -> Result<Option<Unproven<'_>>> {
        let checks = self.checks(file)?;
        let range = piece_range(&checks, piece)?;
        let Some(mut claim) = self.cache.claim((file.0, piece), take(range.end - range.start, usize::MAX))
        else {
            return Ok(None);
        };
        if checks.coded().is_some() {
            self.whole(file, &checks, piece..piece + 1, claim.buffer())?;
            claim.ready();
            return Ok(None);
        }
        self.raw(file, range.start, claim.buffer())?;
        Ok(Some(Unproven { file, checks, piece, claim }))
    }

    /// Shows a piece that was found to be what it should.
    fn shown(&self, read: Unproven<'_>, checked: std::result::Result<u64, Bad>) -> Result<()> {
        self.proven(read.file, checked)?;
        read.claim.ready();
        Ok(())
    }
}
