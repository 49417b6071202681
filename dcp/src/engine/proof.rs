//! What proves a copy before it becomes visible: the fingerprints that the source recorded, and the records that were copied from.

use std::collections::BTreeMap;

use super::{
    origin,
    plan::{Job, Piecework},
    reader::Touched,
    tensors::Tensors,
};
use crate::{
    Error, FileDone, Result, Source,
    fingerprint::{Fingerprint, FingerprintSum},
};

/// The bytes of the source that these chunks of the target are made from.
pub(super) fn touched<'w>(
    jobs: &[Job<'_>],
    tensors: &Tensors<'_>,
    chunks: impl Iterator<Item = &'w Piecework>,
) -> Result<Touched> {
    let mut touched = Touched::new();
    for chunk in chunks.filter(|chunk| chunk.bytes > 0) {
        let job = jobs.get(chunk.job).ok_or_else(|| Error::internal("a chunk of no tensor"))?;
        let tensor = tensors.get(job.source)?;
        for from in job.map.of(&chunk.region)? {
            for (part, shared) in tensor.sharing(&from) {
                touched.entry(part.file).or_default().push(part.span(&shared, tensor.grid.width));
            }
        }
    }
    Ok(touched)
}

/// Adds up the fingerprints, and compares them with those that the source recorded; how many were proven so.
pub(super) fn prove(
    source: &dyn Source,
    jobs: &[Job<'_>],
    files: &[FileDone],
) -> Result<(Vec<Fingerprint>, usize)> {
    let mut sums = vec![(FingerprintSum::default(), FingerprintSum::default()); jobs.len()];
    let mut origins: BTreeMap<usize, FingerprintSum> = BTreeMap::new();
    for done in files {
        for (at, sum) in &done.sums {
            if let Some(sums) = sums.get_mut(*at) {
                sums.0 += *sum;
            }
        }
        for (at, sum) in &done.source_sums {
            match (sums.get_mut(*at), at.checked_sub(jobs.len())) {
                (Some(sums), _) => sums.1 += *sum,
                (None, Some(recorded)) => *origins.entry(recorded).or_default() += *sum,
                (None, None) => {}
            }
        }
    }
    let mut proven = origin::prove(source.catalog(), jobs, &origins)?;
    let mut found = Vec::with_capacity(jobs.len());
    for (job, (sum, in_source)) in jobs.iter().zip(sums) {
        let fingerprint = sum.finish(job.entry.dtype, &job.entry.shape);
        found.push(fingerprint);
        if job.cast.is_some() {
            continue;
        }
        let Some((shape, recorded)) = recorded(source, job) else { continue };
        let computed =
            if job.map.is_identity() { fingerprint } else { in_source.finish(job.entry.dtype, &shape) };
        if computed != recorded {
            return Err(Error::corrupt(format!(
                "{}: fingerprint {computed} was computed from the copied bytes, the source recorded {recorded}",
                job.entry.id()
            ))
            .hint("the source's data changed after it was written; `ckpt verify` names the damaged files"));
        }
        proven += 1;
    }
    Ok((found, proven))
}

/// The shape and fingerprint that the source recorded, where the target holds all of the tensor.
fn recorded(source: &dyn Source, job: &Job<'_>) -> Option<(fqn::Shape, Fingerprint)> {
    let catalog = source.catalog();
    let shape = catalog.registry.entries().get(job.source)?.shape.clone();
    let fingerprint = catalog.tensors.get(job.source)?.fingerprint.filter(|_| job.whole)?;
    Some((shape, fingerprint))
}
