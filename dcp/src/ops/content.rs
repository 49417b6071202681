//! [`fingerprints`]: what a checkpoint holds, computed from its bytes and from nothing that is recorded.

use std::{
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fqn::{Entry, TensorId};
use reshard::{Region, flat};

use crate::{
    Cancel, Error, Place, Progress, Result, Source, crew,
    engine::{
        Verify,
        gather::gather,
        reader::{Cursor, Reader, Touched},
        tensors::Tensors,
        threads_in,
    },
    fingerprint::{ElementWidth, Fingerprint, FingerprintSum},
};

/// Bytes that are read at a time by each thread.
const TILE: u64 = 1 << 20;

/// What a thread holds beside the blocks that several tiles need: a tile, a piece at hand and one on its way.
const PER_THREAD: u64 = 3 << 20;

/// Computes the fingerprint of every tensor by reading it, in the catalog's order. Memory: `max_memory`, half of it for blocks that
/// several tiles need and half for threads; fewer of these work where it asks for it.
///
/// # Errors
/// `Corrupt` (named) where bytes are damaged or incomplete, `Cancelled`, and what the store says.
pub fn fingerprints(
    source: &dyn Source,
    threads: NonZeroUsize,
    max_memory: u64,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Vec<(TensorId, Fingerprint)>> {
    let catalog = source.catalog();
    let work = Work {
        reader: Reader::shared(source, Verify::Records, (max_memory / 2).max(2 << 20)),
        tensors: Tensors::new(catalog),
        entries: catalog.registry.entries(),
        next: AtomicUsize::new(0),
        found: Mutex::new(vec![None; catalog.tensors.len()]),
    };
    let threads = threads_in(max_memory / 2, PER_THREAD, threads);
    progress.begin("prove", catalog.tensor_bytes());
    let outcome = work.all(threads, progress, cancel);
    progress.end();
    outcome?;
    work.reader.settle(&Touched::new(), threads, progress, cancel)?;
    let found = work.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let named = work.entries.iter().zip(found).map(|(entry, print)| Some((entry.id(), print?)));
    named.collect::<Option<_>>().ok_or_else(|| Error::internal("a tensor was not looked at"))
}

/// What threads share.
struct Work<'a> {
    reader: Reader<'a>,
    tensors: Tensors<'a>,
    entries: &'a [Entry],
    next: AtomicUsize,
    found: Mutex<Vec<Option<Fingerprint>>>,
}

impl Work<'_> {
    fn all(&self, threads: usize, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        crew::work(threads, || self.serve(progress, cancel))
    }

    fn serve(&self, progress: &dyn Progress, cancel: &Cancel) -> Result<()> {
        let mut buffer = Vec::new();
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = self.entries.get(at) else { return Ok(()) };
            let print = self.tensor(at, entry, &mut buffer, progress, cancel).place(entry.id());
            if print.is_err() {
                self.next.store(self.entries.len(), Ordering::Relaxed);
            }
            let print = print?;
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(slot) = found.get_mut(at) {
                *slot = Some(print);
            }
        }
    }

    fn tensor(
        &self,
        at: usize,
        entry: &Entry,
        buffer: &mut Vec<u8>,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Fingerprint> {
        let tensor = self.tensors.get(at)?;
        tensor.covered()?;
        let whole = Region::whole(&tensor.grid.shape).map_err(|error| Error::corrupt(error.to_string()))?;
        let (mut cursor, mut sum, mut first) = (Cursor::new(&self.reader), FingerprintSum::default(), 0);
        for tile in flat::tiles(&whole, TILE / tensor.grid.width) {
            cancel.check()?;
            buffer.resize(usize::try_from(tensor.grid.bytes_of(&tile)).unwrap_or_default(), 0);
            gather(&mut cursor, &tensor, &tile, buffer)?;
            sum.add_run(ElementWidth::of(entry.dtype), first, buffer)
                .map_err(|e| Error::internal(e.to_string()))?;
            first += tile.elements();
            progress.advance(buffer.len() as u64);
        }
        Ok(sum.finish(entry.dtype, &entry.shape))
    }
}

#[cfg(test)]
mod tests {
    use fqn::Dtype;

    use super::*;
    use crate::{
        Silent,
        engine::testing::{MemSource, Proof, Stored, Whole, grid},
    };

    #[test]
    fn how_a_tensor_is_cut_and_stored_does_not_change_its_fingerprint() {
        let prints = |cuts: &[u64], stored: Stored| {
            let whole = Whole::new("w", Dtype::BF16, &[96, 640]);
            let source = MemSource::new(&[(whole, grid(&[96, 640], cuts), stored)], 2, Proof::Nothing);
            let threads = NonZeroUsize::MIN;
            fingerprints(&source, threads, 16 << 20, &Silent, &Cancel::new()).unwrap()
        };
        let one = prints(&[1, 1], Stored::Packed);
        assert_eq!(one, prints(&[3, 4], Stored::Packed));
        assert_eq!(one.len(), 1);
    }
}
