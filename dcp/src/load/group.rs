//! [`GroupReader`]: boxes read without the blocks around them, and proven by all who read together.
//!
//! A rank that takes a column of every row needs a part of nearly every block: to prove these by SHA-256 it would read all of them.
//! Here it reads its own bytes alone, and says what they add to the tensor's fingerprint. The sums of ranks whose boxes tile the tensor
//! (replicas left out) add up to the fingerprint that the checkpoint records, or some byte is wrong: found for the group as a whole,
//! named by tensor. [`super::BoxReader`] then tells the block.

use fqn::{Entry, TensorId};
use reshard::Region;

use super::loader::BoxReader;
use crate::{Error, Result, fingerprint::FingerprintSum};

/// Reads boxes of a checkpoint as they are. Threads share it by reference.
#[derive(Debug)]
pub struct GroupReader<'a> {
    boxes: BoxReader<'a>,
}

impl<'a> GroupReader<'a> {
    pub(super) const fn new(boxes: BoxReader<'a>) -> Self {
        Self { boxes }
    }

    /// Fills `bytes` with a box: row-major, packed, little-endian; and says what it adds to its tensor's fingerprint. Nothing is
    /// proven before [`Self::prove`] has seen the sum of all boxes.
    ///
    /// # Errors
    /// As [`BoxReader::read`], but for damage, which it does not see. Blocks of a compressed file are read whole.
    pub fn read(&self, tensor: &TensorId, region: &Region, bytes: &mut [u8]) -> Result<FingerprintSum> {
        self.boxes.read(tensor, region, bytes)?;
        let (entry, mut sum) = (self.entry(tensor)?, FingerprintSum::default());
        sum.add_region(entry.dtype, &entry.shape, region, bytes)
            .map_err(|error| Error::incompatible(format!("{tensor}{region}: {error}")).caused_by(error))?;
        Ok(sum)
    }

    /// Compares the sum over boxes that tile the tensor, each taken once, with what the checkpoint records.
    ///
    /// # Errors
    /// `Corrupt` where it is another; `Unsupported` for a tensor whose fingerprint is not recorded; `NotFound` for one that is not there.
    pub fn prove(&self, tensor: &TensorId, sum: FingerprintSum) -> Result<()> {
        let at = self.boxes.position(tensor)?;
        let recorded = self.boxes.catalog().tensors.get(at).and_then(|chunks| chunks.fingerprint);
        let recorded = recorded.ok_or_else(|| {
            Error::unsupported(format!("{tensor}: the checkpoint records no fingerprint to prove it by"))
                .hint("read it by blocks")
        })?;
        let entry = self.entry(tensor)?;
        let found = sum.finish(entry.dtype, &entry.shape);
        if found == recorded {
            return Ok(());
        }
        let text = format!(
            "{tensor}: what the group read has fingerprint {found}, the checkpoint records {recorded}"
        );
        Err(Error::corrupt(text).hint(
            "a byte is damaged, or a box was left out or added twice; `ckpt verify` names damaged blocks",
        ))
    }

    /// Bytes and calls that it took so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.boxes.counts()
    }

    fn entry(&self, tensor: &TensorId) -> Result<&'a Entry> {
        let at = self.boxes.position(tensor)?;
        let found = self.boxes.catalog().registry.entries().get(at);
        found.ok_or_else(|| Error::internal(format!("{tensor} is at no position")))
    }
}

#[cfg(test)]
mod tests {
    use fqn::Dtype;

    use super::*;
    use crate::{
        ErrorKind,
        engine::testing::{Whole, grid},
        load::{Loader, tests::file},
        save::tests::{placed, plan, run, save},
        store::{Root, Stores},
    };

    /// Two tensors, laid out by rows over two ranks.
    fn stored() -> (tempfile::TempDir, Root, Vec<Whole>) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
        let wholes = vec![
            placed(Whole::new("w", Dtype::F32, &[1024, 2048]), "dp:0"),
            placed(Whole::new("v", Dtype::BF16, &[515, 768]), "dp:0"),
        ];
        save(&root, &wholes, &plan(&wholes, "dp=2", 1));
        (folder, root, wholes)
    }

    /// Columns of a tensor, one box for each of `ranks`.
    fn columns(whole: &Whole, ranks: u64) -> Vec<Region> {
        grid(&whole.entry.shape, &[1, ranks])
    }

    fn bytes_of(whole: &Whole, region: &Region) -> Vec<u8> {
        vec![0; usize::try_from(whole.entry.dtype.bytes_for(region.elements()).unwrap()).unwrap()]
    }

    #[test]
    fn a_rank_that_takes_columns_reads_little_more_than_its_own_bytes_and_the_group_proves_them() {
        let (_folder, root, wholes) = stored();
        let loader = Loader::newest(&root, &run()).unwrap();
        let by_blocks = loader.reader();
        let mut own = 0_u64;
        let mut sums = vec![FingerprintSum::default(); wholes.len()];
        let readers: Vec<_> = (0..4).map(|_| loader.group_reader()).collect();
        for (rank, reader) in readers.iter().enumerate() {
            let mut mine = 0;
            for (whole, sum) in wholes.iter().zip(&mut sums) {
                let region = &columns(whole, 4)[rank];
                let mut bytes = bytes_of(whole, region);
                *sum += reader.read(&whole.entry.id(), region, &mut bytes).unwrap();
                assert_eq!(bytes, whole.region(region));
                mine += bytes.len() as u64;
            }
            assert!(reader.counts().0 * 100 <= mine * 105, "{:?} for {mine}", reader.counts());
            own += mine;
        }
        for (whole, sum) in wholes.iter().zip(sums) {
            readers[0].prove(&whole.entry.id(), sum).unwrap();
        }
        let region = &columns(&wholes[0], 4)[1];
        by_blocks.read(&wholes[0].entry.id(), region, &mut bytes_of(&wholes[0], region)).unwrap();
        assert!(by_blocks.counts().0 * 2 > own, "blocks are read whole: {:?}", by_blocks.counts());
    }

    #[test]
    fn a_damaged_byte_is_seen_by_the_group_and_a_box_that_lacks_too() {
        let (folder, root, wholes) = stored();
        let file = file(folder.path(), &root, 1, "data/r00001");
        let mut bytes = std::fs::read(&file).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let loader = Loader::newest(&root, &run()).unwrap();
        let reader = loader.group_reader();
        let sum_of = |whole: &Whole, regions: &[Region]| {
            regions.iter().fold(FingerprintSum::default(), |mut sum, region| {
                sum += reader.read(&whole.entry.id(), region, &mut bytes_of(whole, region)).unwrap();
                sum
            })
        };
        let outcomes: Vec<_> = wholes
            .iter()
            .map(|whole| {
                reader.prove(&whole.entry.id(), sum_of(whole, &columns(whole, 3))).map_err(|it| it.kind())
            })
            .collect();
        assert_eq!(outcomes.iter().filter(|it| **it == Err(ErrorKind::Corrupt)).count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 1, "{outcomes:?}");
        let (sound, _) = wholes.iter().zip(&outcomes).find(|(_, it)| it.is_ok()).unwrap();
        let error = reader.prove(&sound.entry.id(), sum_of(sound, &columns(sound, 3)[1..])).unwrap_err();
        assert!(error.to_string().contains(&sound.entry.id().to_string()), "{error}");
    }
}
