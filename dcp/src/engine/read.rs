//! [`read_region`]: any box of a tensor, by itself.
//!
//! Reads what is asked for and nothing else; where blocks prove it, the blocks around it. Part of a record with a CRC-32 can't
//! be proven without the rest: it is read as it is.

use reshard::Region;

use super::{
    gather::gather,
    options::{LEAST_MEMORY, Verify},
    reader::{Cursor, ReadCounts, Reader},
    tensors::{Tensor, Tensors},
};
use crate::{Error, Result, Source};

/// Reads regions of a source's tensors one after another; blocks that were read for one serve the next.
#[derive(Debug)]
pub struct RegionReader<'a> {
    reader: Reader<'a>,
    tensors: Tensors<'a>,
}

impl<'a> RegionReader<'a> {
    /// A reader that holds 16 MiB of blocks at most.
    #[must_use]
    pub fn new(source: &'a dyn Source, verify: Verify) -> Self {
        let reader = Reader::exact(source, verify, LEAST_MEMORY);
        Self { reader, tensors: Tensors::new(source.catalog()) }
    }

    /// Bytes that a region takes.
    ///
    /// # Errors
    /// `Incompatible` for a region outside the tensor or, of elements narrower than a byte, between bytes.
    pub fn bytes(&self, tensor: usize, region: &Region) -> Result<u64> {
        let ready = self.tensors.get(tensor)?;
        let cells = self.cells(tensor, &ready, region)?;
        Ok(ready.grid.bytes_of(&cells))
    }

    /// Fills `dst`, which is as long as the region takes, row-major.
    ///
    /// # Errors
    /// `Incompatible` for a region that does not fit, `Corrupt` where bytes are damaged or missing.
    pub fn read_into(&self, tensor: usize, region: &Region, dst: &mut [u8]) -> Result<()> {
        let ready = self.tensors.get(tensor)?;
        let cells = self.cells(tensor, &ready, region)?;
        ready.covers(&cells).map_err(|error| self.named(tensor, error))?;
        gather(&mut Cursor::new(&self.reader), &ready, &cells, dst).map_err(|error| self.named(tensor, error))
    }

    /// Bytes and calls that it took so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let ReadCounts { bytes, reads, .. } = self.reader.counts();
        (bytes, reads)
    }

    fn cells(&self, tensor: usize, ready: &Tensor, region: &Region) -> Result<Region> {
        let cells = ready.grid.region(region).map_err(|error| self.named(tensor, error))?;
        if cells.fits(&ready.grid.shape) {
            return Ok(cells);
        }
        let outside = Error::incompatible(format!("region {region} lies outside the tensor"));
        Err(self.named(tensor, outside))
    }

    fn named(&self, tensor: usize, error: Error) -> Error {
        match self.reader.source().catalog().registry.entries().get(tensor) {
            Some(entry) => error.at(entry.id()),
            None => error,
        }
    }
}

/// A region of one tensor, row-major.
///
/// # Errors
/// As [`RegionReader::read_into`].
pub fn read_region(source: &dyn Source, tensor: usize, region: &Region, verify: Verify) -> Result<Vec<u8>> {
    let reader = RegionReader::new(source, verify);
    let bytes = usize::try_from(reader.bytes(tensor, region)?);
    let mut dst =
        vec![0; bytes.map_err(|_| Error::incompatible(format!("region {region} does not fit into memory")))?];
    reader.read_into(tensor, region, &mut dst)?;
    Ok(dst)
}
