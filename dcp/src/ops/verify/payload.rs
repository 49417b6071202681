//! [`Payload`]: reads the pieces of all files, on any number of threads, and compares them with what proves them.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use super::targets::{Target, is_data};
use crate::{
    Cancel, Catalog, ErrorKind, Finding, FindingCode, Progress, Result, Severity, Source, crew,
    engine::{
        blame,
        checks::{Bad, Differs, FileChecks},
    },
};

/// The pieces of all files, handed out one by one.
pub(super) struct Payload<'a> {
    source: &'a dyn Source,
    targets: Vec<Target>,
    next: AtomicUsize,
    bytes: AtomicU64,
    told: Mutex<Vec<Finding>>,
}

impl<'a> Payload<'a> {
    pub(super) fn new(source: &'a dyn Source, targets: Vec<Target>) -> Self {
        let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { source, targets, next, bytes, told: Mutex::default() }
    }

    /// What was found, and how many bytes were read.
    pub(super) fn finish(self) -> (Vec<Finding>, u64) {
        (self.told.into_inner().unwrap_or_else(PoisonError::into_inner), self.bytes.into_inner())
    }
}

impl Payload<'_> {
    pub(super) fn all(&self, threads: usize, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        crew::work(threads, || self.serve(progress, cancel))
    }

    fn serve(&self, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        let mut buffers = [Vec::new(), Vec::new()];
        loop {
            cancel.check()?;
            // Two at a time: blocks are hashed in pairs.
            let first = self.next.fetch_add(2, Ordering::Relaxed);
            let Some(one) = self.nth(first) else { return Ok(()) };
            if let Err(error) = self.two(one, self.nth(first + 1), &mut buffers, progress) {
                // Other threads need not go on: this is not about the data.
                self.next.store(usize::MAX / 2, Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    /// A piece by its number among those of all files.
    fn nth(&self, number: usize) -> Option<(&Target, usize)> {
        let at = self.targets.partition_point(|target| target.first <= number);
        let target = self.targets.get(at.checked_sub(1)?)?;
        let piece = target.pieces.get(number - target.first)?;
        Some((target, usize::try_from(*piece).ok()?))
    }

    fn two(
        &self,
        one: (&Target, usize),
        other: Option<(&Target, usize)>,
        [buffer, other_buffer]: &mut [Vec<u8>; 2],
        progress: &dyn Progress,
    ) -> Result<()> {
        let read = self.read(one, buffer, progress)?;
        let other = match other {
            Some(other) if self.read(other, other_buffer, progress)? => Some(other),
            _ => None,
        };
        let one = Some(one).filter(|_| read);
        match (one, other) {
            (Some((target, one)), Some((of, other))) => {
                let two = [(&target.checks, one, &**buffer), (&of.checks, other, &**other_buffer)];
                let [checked, of_other] = FileChecks::check_two(two);
                self.judge(target, checked);
                self.judge(of, of_other);
            }
            alone => {
                for ((target, piece), bytes) in [alone.0, alone.1]
                    .into_iter()
                    .zip([buffer, other_buffer])
                    .filter_map(|(it, bytes)| Some((it?, bytes)))
                {
                    self.judge(target, target.checks.check(piece, bytes));
                }
            }
        }
        Ok(())
    }

    /// Reads the stored bytes of a piece; false where there is nothing to prove, or the file can't be read, which is told once.
    fn read(
        &self,
        (target, piece): (&Target, usize),
        buffer: &mut Vec<u8>,
        progress: &dyn Progress,
    ) -> Result<bool> {
        let Some(range) = target.checks.stored(piece).filter(|_| target.checks.covers(piece)) else {
            return Ok(false);
        };
        let len = range.end - range.start;
        progress.advance(len);
        if target.lost.load(Ordering::Relaxed) {
            return Ok(false);
        }
        buffer.resize(usize::try_from(len).unwrap_or_default(), 0);
        match self.source.read_stored_at(target.file, range.start, buffer) {
            Ok(()) => {
                self.bytes.fetch_add(len, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) if is_data(&error) => {
                if !target.lost.swap(true, Ordering::Relaxed) {
                    let code = if error.kind() == ErrorKind::NotFound {
                        FindingCode::MissingFile
                    } else {
                        FindingCode::SizeMismatch
                    };
                    self.tell(target, code, &error.to_string(), &(0..u64::MAX));
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn judge(&self, target: &Target, checked: std::result::Result<u64, Bad>) {
        if let Err(Bad { range, stored, what, message }) = checked {
            let code = match what {
                Differs::Block => FindingCode::BlockMismatch,
                Differs::Record => FindingCode::CrcMismatch,
            };
            let text = format!("bytes {}..{}: {message}", stored.start, stored.end);
            self.tell(target, code, &text, &range);
        }
    }

    /// A finding for each tensor that the bytes hold.
    fn tell(&self, target: &Target, code: FindingCode, text: &str, range: &Range<u64>) {
        let hint = "take the file from another copy of the checkpoint";
        let finding = || Finding::new(Severity::Error, code, text).file(target.path.clone()).hint(hint);
        let catalog: &Catalog = self.source.catalog();
        let affected = blame::affected(catalog, target.file, range);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if affected.is_empty() {
            told.push(finding());
        }
        told.extend(affected.into_iter().map(|it| finding().range(&it.range()).tensor(it.id)));
    }
}
