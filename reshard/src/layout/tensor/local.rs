//! [`Local`]: the tensor that a rank has in memory: its stretches one after another, padding included.
//!
//! Boxes of a checkpoint are in global coordinates and hold true elements only. A file that holds a rank's own tensor (a
//! padded vocabulary, `gate` and `up` cut apart and joined again) is that tensor in its own coordinates; this says which
//! box of it is which box of the whole, and which is padding.
//!
//! Invariant: pieces and padding tile the local tensor; pieces are the rank's regions.

use fqn::{Dims, Shape};
use smallvec::SmallVec;

use super::TensorLayout;
use crate::{Mesh, Region, RegionError};

/// What a rank has in memory of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// Its shape, padding included. Extents of 0 where the rank's part is empty.
    pub shape: Shape,
    /// What it holds of the whole.
    pub pieces: Vec<LocalPiece>,
    /// Boxes of it that hold no element of the whole: zero, unless their format says otherwise.
    pub padding: Vec<Region>,
    /// Padding below true rows, and the row of the whole that it could repeat.
    below: Vec<LocalPiece>,
}

/// A box of a rank's tensor and the box of the whole that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPiece {
    /// In the rank's tensor.
    pub local: Region,
    /// In the whole.
    pub global: Region,
}

/// A stretch of a dimension of the rank's tensor, and where it lies in the whole; nowhere, for padding.
#[derive(Clone, Copy)]
struct Segment {
    start: u64,
    len: u64,
    global: Option<u64>,
}

impl TensorLayout {
    /// What the rank at `coords` of `mesh` has in memory; `None` where another stage, or another expert's rank, has the tensor.
    ///
    /// # Errors
    /// None in practice: the layout has checked its sizes, padding included.
    pub fn local(&self, mesh: &Mesh, coords: &[u64]) -> Result<Option<Local>, RegionError> {
        if !self.is_held_at(mesh, coords) {
            return Ok(None);
        }
        let held = self.padded_stretches(&self.cut_coords_of(coords));
        let (mut shape, mut dims) = (Dims::new(), Vec::new());
        for (stretches, end) in held.iter().zip(self.shape.iter()) {
            let (mut at, mut segments) = (0, Vec::new());
            for &(start, len) in stretches {
                let real = end.saturating_sub(start).min(len);
                segments.push(Segment { start: at, len: real, global: Some(start) });
                segments.push(Segment { start: at + real, len: len - real, global: None });
                at += len;
            }
            segments.retain(|segment| segment.len > 0);
            shape.push(at);
            dims.push(segments);
        }
        let mut local =
            Local { shape: Shape::from(shape), pieces: Vec::new(), padding: Vec::new(), below: Vec::new() };
        let last = self.shape.first().and_then(|rows| rows.checked_sub(1));
        local.fill(&dims, last, &mut SmallVec::new())?;
        Ok(Some(local))
    }
}

impl Local {
    /// Every choice of one segment of each dimension.
    fn fill(
        &mut self,
        dims: &[Vec<Segment>],
        last: Option<u64>,
        chosen: &mut SmallVec<[Segment; 4]>,
    ) -> Result<(), RegionError> {
        if let Some(segments) = dims.get(chosen.len()) {
            for segment in segments {
                chosen.push(*segment);
                self.fill(dims, last, chosen)?;
                chosen.pop();
            }
            return Ok(());
        }
        let numbers = |of: fn(&Segment) -> u64| chosen.iter().map(of).collect::<Dims>();
        let mut extents = numbers(|segment| segment.len);
        let local = Region::new(&numbers(|segment| segment.start), &extents)?;
        let global: Option<Dims> = chosen.iter().map(|segment| segment.global).collect();
        if let Some(offsets) = global {
            self.pieces.push(LocalPiece { local, global: Region::new(&offsets, &extents)? });
            return Ok(());
        }
        self.padding.push(local.clone());
        let columns = chosen.iter().skip(1).map(|segment| segment.global);
        let row: Option<Dims> = std::iter::once(last).chain(columns).collect();
        extents.first_mut().into_iter().for_each(|rows| *rows = 1);
        let row = row.map(|offsets| Region::new(&offsets, &extents)).transpose()?;
        self.below.extend(row.map(|global| LocalPiece { local, global }));
        Ok(())
    }

    /// Padding rows as copies of the last true row, for formats that fill them so: each piece is one row. Columns that
    /// are padding stay out, and so does everything where the whole has no row.
    pub fn last_row_pieces(&self) -> impl Iterator<Item = LocalPiece> + '_ {
        self.below.iter().flat_map(|below| {
            let rows = below.local.extents().first().copied().unwrap_or(0);
            (0..rows).filter_map(move |row| {
                let mut offsets = Dims::from_slice(below.local.offsets());
                offsets.first_mut().into_iter().for_each(|offset| *offset += row);
                let local = Region::new(&offsets, below.global.extents()).ok()?;
                Some(LocalPiece { local, global: below.global.clone() })
            })
        })
    }
}
