//! The boxes of a checkpoint that each rank takes, and what proves them: the group as a whole, or the blocks around each box.
//!
//! ```text
//!  by group    a rank reads its own bytes alone ─► what each box adds to its tensor's fingerprint ─► all hear all
//!              boxes that several hold agree, the different ones add up to what the checkpoint records: or it is an error
//!  by blocks   a rank reads whole blocks around its boxes and compares their SHA-256: more bytes where boxes are columns
//!              all hear whether all were whole
//! ```
//!
//! Invariants: all ranks read by the same proof and come to the same verdict, damage only where nothing else failed, so that all can go back
//! to another checkpoint together; a rank that fails tells the others before it stops; a checkpoint that lacks the fingerprint of any
//! tensor is read by blocks, and so is one behind a network, where each row of a column would be a request of its own. Of compressed
//! files whole blocks are read by either way.

use std::collections::BTreeMap;

use dcp::{
    fingerprint::FingerprintSum,
    load::{GroupReader, Loader},
};
use fqn::TensorId;
use reshard::Region;
use serde::{Deserialize, Serialize};

use super::resume::Failure;
use crate::{
    Error, ErrorKind, Result,
    config::LoadProof,
    transport::{Group, Purpose},
};

/// What a rank read of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes of its boxes.
    pub own: u64,
    /// Bytes read for them.
    pub read: u64,
    /// What proved them.
    pub proof: LoadProof,
}

/// What became of a checkpoint that all ranks read.
#[derive(Debug)]
pub enum Read {
    /// It is what was saved.
    Whole(Loaded),
    /// It is not, as all ranks came to know together.
    Damaged(Error),
}

/// A box that a rank read.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Share {
    /// Position in the checkpoint's registry.
    tensor: usize,
    offsets: Vec<u64>,
    extents: Vec<u64>,
    /// What it adds to the tensor's fingerprint.
    sum: FingerprintSum,
}

/// A box: its tensor, its offsets and its extents.
type BoxOf = (usize, Vec<u64>, Vec<u64>);

/// What a rank tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// What its boxes add to fingerprints; nothing where blocks proved them.
    Read(Vec<Share>),
    Failed(Failure),
}

/// Reads these boxes of the checkpoint that `loader` has open and hands each to `give`; every rank of `world` calls it with its own. They are
/// proven when this returns, not before.
///
/// # Errors
/// Any rank's failure but damage, on all of them: the store's, what `give` refuses; the transport's.
pub(super) fn load<'a>(
    loader: &Loader,
    world: &dyn Group,
    proof: LoadProof,
    boxes: impl IntoIterator<Item = (&'a TensorId, &'a Region)>,
    give: impl FnMut(&TensorId, &Region, &[u8]) -> Result<()>,
) -> Result<Read> {
    let recorded = loader.catalog().tensors.iter().all(|chunks| chunks.fingerprint.is_some());
    let verdict = if proof == LoadProof::Group && recorded && !loader.source().waits() {
        by_group(loader, world, boxes, give)?
    } else {
        by_blocks(loader, world, boxes, give)?
    };
    match verdict {
        Ok(loaded) => Ok(Read::Whole(loaded)),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Read::Damaged(error)),
        Err(error) => Err(error),
    }
}

/// What all ranks came to: a failure in it is known to all of them, one beside it to this rank alone.
type Verdict<T> = Result<T>;

fn by_blocks<'a>(
    loader: &Loader,
    world: &dyn Group,
    boxes: impl IntoIterator<Item = (&'a TensorId, &'a Region)>,
    mut give: impl FnMut(&TensorId, &Region, &[u8]) -> Result<()>,
) -> Result<Verdict<Loaded>> {
    let reader = loader.reader();
    let own = each(loader, boxes, |id, region, bytes| {
        reader.read(id, region, bytes)?;
        give(id, region, bytes)
    });
    let verdict = agreed(world, own, Vec::new())?;
    Ok(verdict.map(|(own, _)| Loaded { own, read: reader.counts().0, proof: LoadProof::Blocks }))
}

fn by_group<'a>(
    loader: &Loader,
    world: &dyn Group,
    boxes: impl IntoIterator<Item = (&'a TensorId, &'a Region)>,
    mut give: impl FnMut(&TensorId, &Region, &[u8]) -> Result<()>,
) -> Result<Verdict<Loaded>> {
    let (reader, mut shares) = (loader.group_reader(), Vec::new());
    let own = each(loader, boxes, |id, region, bytes| {
        let sum = reader.read(id, region, bytes)?;
        shares.push(Share {
            tensor: position(loader, id)?,
            offsets: region.offsets().to_vec(),
            extents: region.extents().to_vec(),
            sum,
        });
        give(id, region, bytes)
    });
    // From the same numbers, all ranks come to the same.
    let verdict = agreed(world, own, shares)?.and_then(|(own, all)| {
        prove(loader, &reader, all)?;
        Ok(Loaded { own, read: reader.counts().0, proof: LoadProof::Group })
    });
    Ok(verdict)
}

/// Tells all ranks what became of this one's boxes: what each of them read, in the order of ranks; or one failure, the same on all.
fn agreed(
    world: &dyn Group,
    own: Result<u64>,
    shares: Vec<Share>,
) -> Result<Verdict<(u64, Vec<Vec<Share>>)>> {
    let told = match &own {
        Ok(_) => Told::Read(shares),
        Err(error) => Told::Failed(Failure::of(error)),
    };
    let told = serde_json::to_vec(&told).map_err(|error| Error::internal(error.to_string()))?;
    let all = world.all_gather_bytes(&Purpose("what each rank loaded".to_owned()), &told)?;
    let (mut read, mut failures) = (Vec::new(), Vec::new());
    for (rank, told) in all.iter().enumerate() {
        let told = serde_json::from_slice(told);
        match told.map_err(|error| Error::internal(format!("what rank {rank} loaded: {error}")))? {
            Told::Read(shares) => read.push(shares),
            Told::Failed(failure) => failures.push((rank, failure)),
        }
    }
    // Who can't read says nothing about the checkpoint, and this is not the time to give it up.
    let worst = failures.iter().position(|(_, failure)| failure.kind() != ErrorKind::Corrupt).unwrap_or(0);
    Ok(match failures.into_iter().nth(worst) {
        None => own.map(|own| (own, read)),
        Some((rank, failure)) => match own {
            Err(error) if rank == world.index() => Err(error),
            _ => Err(failure.of_rank(rank)),
        },
    })
}

/// Goes through boxes, one after another, with room for each; how many bytes they have.
fn each<'a>(
    loader: &Loader,
    boxes: impl IntoIterator<Item = (&'a TensorId, &'a Region)>,
    mut read: impl FnMut(&TensorId, &Region, &mut [u8]) -> Result<()>,
) -> Result<u64> {
    let entries = loader.catalog().registry.entries();
    let (mut bytes, mut own) = (Vec::new(), 0_u64);
    for (id, region) in boxes {
        let entry = entries.get(position(loader, id)?);
        let len = entry.and_then(|entry| entry.dtype.bytes_for(region.elements()));
        let len = len.and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(|| Error::internal(format!("{id}{region} is larger than memory")))?;
        bytes.resize(len, 0);
        read(id, region, &mut bytes)?;
        own = own.saturating_add(len as u64);
    }
    Ok(own)
}

fn position(loader: &Loader, id: &TensorId) -> Result<usize> {
    let missing = || Error::new(ErrorKind::NotFound, format!("{id} is not in the checkpoint"));
    loader.catalog().registry.position(id).ok_or_else(missing)
}

/// Adds up what all ranks told, each box once, and compares it with what the checkpoint records.
fn prove(loader: &Loader, reader: &GroupReader<'_>, all: Vec<Vec<Share>>) -> Result<()> {
    let mut boxes: BTreeMap<BoxOf, (usize, FingerprintSum)> = BTreeMap::new();
    let entries = loader.catalog().registry.entries();
    for (rank, shares) in all.into_iter().enumerate() {
        for Share { tensor, offsets, extents, sum } in shares {
            let region = Region::new(&offsets, &extents).map_or_else(|_| String::new(), |it| it.to_string());
            let (first, known) = *boxes.entry((tensor, offsets, extents)).or_insert((rank, sum));
            if known != sum {
                let id = entries.get(tensor).map(|entry| entry.id().to_string()).unwrap_or_default();
                let text = format!("{id}{region}: ranks {first} and {rank} read other bytes");
                return Err(Error::new(ErrorKind::Corrupt, text).hint("`ckpt verify` names damaged blocks"));
            }
        }
    }
    let mut sums: BTreeMap<usize, FingerprintSum> = BTreeMap::new();
    for ((tensor, ..), (_, sum)) in boxes {
        *sums.entry(tensor).or_default() += sum;
    }
    for (tensor, sum) in sums {
        let lost =
            || Error::new(ErrorKind::Corrupt, format!("a rank read tensor {tensor}, which is not there"));
        reader.prove(&entries.get(tensor).ok_or_else(lost)?.id(), sum)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{path::Path, thread};

    use dcp::{
        commit::Label,
        save::{SaveOptions, SavePlan, SaveSpec, Session},
        store::{Root, Stores},
    };
    use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};

    use super::*;
    use crate::transport::{Limits, Transport, local::World};

    const ROWS: u64 = 512;
    const COLUMNS: u64 = 256;

    fn label() -> Label {
        "main".parse().unwrap()
    }

    /// A checkpoint of two matrices, in one blob.
    fn checkpoint(folder: &Path) -> (Root, Vec<TensorId>) {
        let mut registry = Registry::new();
        for name in ["v", "w"] {
            let mut entry =
                Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(&[ROWS, COLUMNS]));
            entry.placement = Some("dp:0".parse().unwrap());
            registry.push(entry).unwrap();
        }
        let ids = registry.entries().iter().map(Entry::id).collect();
        let root = Root::create(folder.to_str().unwrap(), &Stores::new()).unwrap();
        let spec = SaveSpec::new(label(), registry, "1x1x1".parse().unwrap(), 1);
        let session = Session::open(&root, &SavePlan::new(spec).unwrap(), SaveOptions::default()).unwrap();
        let writer = session.writer(0).unwrap();
        for (tensor, region) in session.plan().boxes_of(0) {
            let bytes: Vec<u8> = (0..region.elements() * 4).map(|at| (at % 251) as u8).collect();
            writer.put(tensor, region, &bytes).unwrap();
        }
        writer.finish().unwrap();
        session.commit().unwrap();
        (root, ids)
    }

    /// Damages what is nearly the last byte of the only blob.
    fn flip_last_byte(folder: &Path) {
        let step = std::fs::read_dir(folder).unwrap().flatten().map(|it| it.path());
        let step = step.into_iter().find(|it| it.join("data").exists()).unwrap();
        let blob = std::fs::read_dir(step.join("data")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&blob).unwrap();
        let last = bytes.len() - 7;
        bytes[last] ^= 4;
        std::fs::write(&blob, bytes).unwrap();
    }

    /// Damage as the failure that it is.
    fn whole(read: Read) -> Result<Loaded> {
        match read {
            Read::Whole(loaded) => Ok(loaded),
            Read::Damaged(error) => Err(error),
        }
    }

    /// What two ranks come to of which each takes one of two tensors and gives it to `take`.
    fn one_each(
        loader: &Loader,
        ids: &[TensorId],
        proof: LoadProof,
        take: impl Fn(usize) -> Result<()> + Sync,
    ) -> Vec<Result<Loaded>> {
        let take = &take;
        thread::scope(|scope| {
            let ranks = World::new(2, Limits::default()).into_iter().zip(ids).map(|(rank, id)| {
                scope.spawn(move || {
                    let world = rank.group("world", &[0, 1])?;
                    let region = Region::new(&[0, 0], &[ROWS, COLUMNS]).unwrap();
                    load(loader, &*world, proof, [(id, &region)], |_, _, _| take(rank.rank())).and_then(whole)
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// What two ranks come to that each take half of the columns of all tensors; the second one takes what `skip` doesn't say.
    fn columns(loader: &Loader, ids: &[TensorId], proof: LoadProof, skip: usize) -> Vec<Result<Loaded>> {
        let half = COLUMNS / 2;
        thread::scope(|scope| {
            let ranks = World::new(2, Limits::default()).into_iter().zip([0, half]).map(|(rank, first)| {
                scope.spawn(move || {
                    let world = rank.group("world", &[0, 1])?;
                    let region = Region::new(&[0, first], &[ROWS, half]).unwrap();
                    let skip = if first == 0 { 0 } else { skip };
                    let boxes = ids.iter().skip(skip).map(|id| (id, &region));
                    load(loader, &*world, proof, boxes, |_, _, _| Ok(())).and_then(whole)
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn columns_are_read_alone_and_proven_by_the_group_or_with_the_blocks_around_them() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = checkpoint(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        let own = 2 * ROWS * COLUMNS / 2 * 4;
        for (proof, read) in [(LoadProof::Group, own), (LoadProof::Blocks, 2 * own)] {
            for loaded in columns(&loader, &ids, proof, 0) {
                assert_eq!(loaded.unwrap(), Loaded { own, read, proof });
            }
        }
    }

    #[test]
    fn a_box_that_nobody_read_or_a_damaged_byte_is_found_by_all_ranks_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = checkpoint(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        for lost in columns(&loader, &ids, LoadProof::Group, 1) {
            let error = lost.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().starts_with("v:"), "{error}");
        }
        flip_last_byte(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        for proof in [LoadProof::Group, LoadProof::Blocks] {
            let outcomes = columns(&loader, &ids, proof, 0);
            // By blocks, those see it that read the block: both, since it is a block of whole rows.
            for error in outcomes.into_iter().map(|it| it.unwrap_err()) {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains('w'), "{error}");
            }
        }
    }

    #[test]
    fn damage_that_one_rank_alone_reads_is_told_to_all_by_either_proof() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = checkpoint(folder.path());
        flip_last_byte(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        for proof in [LoadProof::Group, LoadProof::Blocks] {
            for (rank, outcome) in one_each(&loader, &ids, proof, |_| Ok(())).into_iter().enumerate() {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{proof:?}, rank {rank}: {error}");
                assert!(error.to_string().contains('w') && error.hint_text().is_some(), "{error}");
            }
        }
    }

    #[test]
    fn a_rank_that_can_not_read_is_told_rather_than_damage_that_another_saw() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = checkpoint(folder.path());
        flip_last_byte(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        let refuse = |rank| match rank {
            0 => Err(Error::new(ErrorKind::Io, "no more memory").hint("get some")),
            _ => Ok(()),
        };
        for error in one_each(&loader, &ids, LoadProof::Blocks, refuse) {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.hint_text()), (ErrorKind::Io, Some("get some")), "{error}");
        }
    }

    #[test]
    fn a_rank_that_fails_ends_all() {
        let folder = tempfile::tempdir().unwrap();
        let (root, ids) = checkpoint(folder.path());
        let loader = Loader::newest(&root, &label()).unwrap();
        let outcomes: Vec<Result<Loaded>> = thread::scope(|scope| {
            let (loader, ids) = (&loader, &ids);
            let ranks = World::new(2, Limits::default()).into_iter().map(|rank| {
                scope.spawn(move || {
                    let world = rank.group("world", &[0, 1])?;
                    let region = Region::new(&[0, 0], &[ROWS, COLUMNS]).unwrap();
                    let refuses = rank.rank() == 1;
                    load(loader, &*world, LoadProof::Group, ids.iter().map(|id| (id, &region)), |id, _, _| {
                        if refuses {
                            Err(Error::new(ErrorKind::Incompatible, format!("{id} is not wanted")))
                        } else {
                            Ok(())
                        }
                    })
                    .and_then(whole)
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for error in outcomes.into_iter().map(|it| it.unwrap_err()) {
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.to_string().contains("v is not wanted"), "{error}");
        }
    }
}
