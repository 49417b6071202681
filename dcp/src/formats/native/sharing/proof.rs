//! Proof of what an earlier writer of the same plan noted: before its note is trusted, all bytes that it names are read again.
//!
//! What has rotted since, or never reached the disk, must not become part of a checkpoint in place of good bytes that are at hand.

use std::collections::{BTreeMap, BTreeSet};

use reshard::Region;

use super::{
    base::Piece,
    note::{Note, SharedFile, shared_path},
};
use crate::{
    Chunk, Error, FileId, Place, Result,
    formats::native::{layout::Group, planned::Planned},
    store::Root,
};

/// Parts of boxes that lie in one blob, each with its tensor's position.
type Pieces<'n> = Vec<(usize, &'n Piece)>;

impl Note {
    /// Reads what was written of a group, and the blocks that are referred to.
    ///
    /// # Errors
    /// `Corrupt` or `NotFound` where anything is damaged or gone; the store's.
    pub(super) fn prove(&self, root: &Root, planned: &Planned, group: &Group) -> Result<()> {
        for (_, part) in self.written(root, planned, group)? {
            planned.parts(root).prove(&part)?;
        }
        let mut by_file: BTreeMap<u32, Pieces<'_>> = BTreeMap::new();
        for ((tensor, _), noted) in group.boxes.iter().zip(&self.boxes) {
            for (file, piece) in &noted.pieces {
                by_file.entry(*file).or_default().push((*tensor, piece));
            }
        }
        for (file, pieces) in by_file {
            let file = usize::try_from(file).ok().and_then(|at| self.files.get(at));
            let file = file.ok_or_else(|| Error::internal("a piece in no file"))?;
            file.prove(root, planned, &pieces)
                .place(format!("referred to by {}", group.names.part()))
                .map_err(|error| error.hint(format!("remove the folder {} and run again", planned.dir)))?;
        }
        Ok(())
    }
}

impl SharedFile {
    /// Compares all blocks that these pieces lie in with their digests.
    fn prove(&self, root: &Root, planned: &Planned, pieces: &[(usize, &Piece)]) -> Result<()> {
        let (table, path) = (self.check(root)?, shared_path(&self.path)?);
        let mut blocks = BTreeSet::new();
        for (tensor, piece) in pieces {
            let dtype = planned.entry(*tensor)?.dtype;
            let end = piece.chunk().span(dtype).and_then(|len| piece.offset.checked_add(len));
            let end = end.filter(|end| *end <= table.logical_len()).ok_or_else(|| {
                Error::corrupt(format!("{}: a box ends behind its end", root.full_name(&path)))
            })?;
            blocks.extend(table.covering(&(piece.offset..end)));
        }
        let mut bytes = Vec::new();
        for number in blocks {
            let block = table.block(number).ok_or_else(|| Error::internal("a block is gone"))?;
            let len = usize::try_from(block.stored.end - block.stored.start);
            bytes.resize(len.map_err(|_| Error::internal("a block that does not fit into memory"))?, 0);
            root.read_exact_at(&path, block.stored.start, &mut bytes)?;
            table.check(number, &bytes).map_err(|error| {
                let name = root.full_name(&path);
                Error::corrupt(format!("{name}: damaged since an earlier writer found it: {error}"))
            })?;
        }
        Ok(())
    }
}

impl Piece {
    fn chunk(&self) -> Chunk {
        let (region, strides): (Region, _) =
            (self.region.clone(), self.strides.as_deref().map(fqn::Dims::from_slice));
        Chunk { region, file: FileId(0), offset: self.offset, strides, record: None }
    }
}
