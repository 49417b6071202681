//! [`FlatGroup`]: several tensors as ranges of flat buffers that ranks share out, with their padding.
//!
//! Two arrangements exist. *Joined*: the tensors lie one after another in one buffer that is cut into equal shares, as
//! ZeRO 1 and 2 cut an optimizer group, FSDP 1 a `FlatParameter`, and Megatron's distributed optimizer a bucket; padding
//! stands before tensors (alignment) and at the end. *Each*: every tensor is cut by itself into equal shares, and a
//! rank's buffer is its shares one after another, as in ZeRO 3; padding stands at the end of a share.
//!
//! Order is layout: the tensors must come in the order that the format keeps (DeepSpeed's `param_shapes`, the reverse of
//! registration in Megatron's buffers).
//!
//! Invariants: the pieces of all ranks hold every element of every tensor exactly once; on a rank, pieces and padding
//! tile its buffer.

use std::ops::Range;

use fqn::{Dtype, Shape};

use super::{FlatError, boxes};
use crate::Region;

/// Alignment of a joined buffer, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlatPadding {
    /// Every tensor starts at a multiple of this.
    pub start: u64,
    /// The buffer is padded to a multiple of this; shares are `ceil` chunks of what there is then.
    pub len: u64,
}

/// Tensors in flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatGroup {
    shapes: Vec<Shape>,
    /// Elements of each tensor.
    elements: Vec<u64>,
    /// Where each tensor begins: in the joined buffer, or in every rank's own.
    starts: Vec<u64>,
    ranks: u64,
    /// Elements of a rank's buffer.
    share: u64,
    each: bool,
}

/// A range of one tensor in a rank's buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatPiece {
    /// Position of the tensor in the group.
    pub tensor: usize,
    /// Its elements, by row-major index.
    pub elements: Range<u64>,
    /// Where the first one lies in the rank's buffer.
    pub at: u64,
}

/// A box of one tensor in a rank's buffer, packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatBox {
    /// Position of the tensor in the group.
    pub tensor: usize,
    /// The box, in the tensor's coordinates.
    pub region: Region,
    /// Where its first element lies in the rank's buffer.
    pub at: u64,
}

impl FlatGroup {
    /// Tensors one after another in a buffer of which each of `ranks` takes an equal share.
    ///
    /// # Errors
    /// No rank, an alignment of 0, sizes beyond 64 bits.
    pub fn joined(shapes: Vec<Shape>, ranks: u64, padding: FlatPadding) -> Result<Self, FlatError> {
        let elements = counted(&shapes)?;
        let (mut starts, mut end) = (Vec::with_capacity(elements.len()), 0_u64);
        for count in &elements {
            let start = multiple(end, padding.start)?;
            starts.push(start);
            end = start.checked_add(*count).ok_or(FlatError::GroupTooLarge)?;
        }
        let share = multiple(end, padding.len)?.div_ceil(at_least_one(ranks)?);
        // No rank's end may overflow.
        share.checked_mul(ranks).ok_or(FlatError::GroupTooLarge)?;
        Ok(Self { shapes, elements, starts, ranks, share, each: false })
    }

    /// An optimizer group of ZeRO 1 or 2: the buffer is padded to a multiple of twice the ranks.
    ///
    /// # Errors
    /// As [`Self::joined`].
    pub fn zero(shapes: Vec<Shape>, ranks: u64) -> Result<Self, FlatError> {
        let len = ranks.checked_mul(2).ok_or(FlatError::GroupTooLarge)?;
        Self::joined(shapes, ranks, FlatPadding { start: 1, len })
    }

    /// A `FlatParameter` of FSDP 1. With `use_orig_params`, `dtype` is that of the unsharded parameter: tensors then begin
    /// at multiples of 16 bytes and the whole is padded to a multiple of the ranks.
    ///
    /// # Errors
    /// As [`Self::joined`]; a dtype whose elements are no whole bytes.
    pub fn fsdp1(shapes: Vec<Shape>, ranks: u64, use_orig_params: Option<Dtype>) -> Result<Self, FlatError> {
        let padding = match use_orig_params {
            None => FlatPadding { start: 1, len: 1 },
            Some(dtype) => {
                let bytes = dtype.element_bytes().ok_or(FlatError::Alignment)?;
                FlatPadding { start: 16 / bytes, len: ranks }
            }
        };
        Self::joined(shapes, ranks, padding)
    }

    /// Parameters of ZeRO 3: each tensor cut by itself into equal shares, the last ones padded.
    ///
    /// # Errors
    /// No rank, sizes beyond 64 bits.
    pub fn each(shapes: Vec<Shape>, ranks: u64) -> Result<Self, FlatError> {
        let elements = counted(&shapes)?;
        let (mut starts, mut share) = (Vec::with_capacity(elements.len()), 0_u64);
        for count in &elements {
            starts.push(share);
            let part = count.div_ceil(at_least_one(ranks)?);
            part.checked_mul(ranks).ok_or(FlatError::GroupTooLarge)?;
            share = share.checked_add(part).ok_or(FlatError::GroupTooLarge)?;
        }
        Ok(Self { shapes, elements, starts, ranks, share, each: true })
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Elements of every rank's buffer, padding included.
    #[must_use]
    pub const fn share(&self) -> u64 {
        self.share
    }

    /// Shapes of the tensors, in order.
    #[must_use]
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// What `rank` has, in the order of its buffer; nothing for a rank that isn't there.
    pub fn pieces(&self, rank: u64) -> impl Iterator<Item = FlatPiece> + '_ {
        let end = self.share.saturating_mul(rank.saturating_add(1));
        let first =
            self.starts.partition_point(|start| *start < end.saturating_sub(self.share)).saturating_sub(1);
        let tensors = if self.each { 0..self.starts.len() } else { first..self.starts.len() };
        let reached =
            move |tensor: &usize| self.each || self.starts.get(*tensor).is_some_and(|start| *start < end);
        let there = rank < self.ranks;
        tensors
            .take_while(move |tensor| there && reached(tensor))
            .filter_map(move |tensor| self.piece(rank, tensor))
    }

    fn piece(&self, rank: u64, tensor: usize) -> Option<FlatPiece> {
        let (start, count) = (*self.starts.get(tensor)?, *self.elements.get(tensor)?);
        let (elements, at) = if self.each {
            let share = count.div_ceil(self.ranks);
            let first = (share * rank).min(count);
            (first..first.saturating_add(share).min(count), start)
        } else {
            let from = self.share * rank;
            let first = from.saturating_sub(start).min(count);
            let last = (from + self.share).saturating_sub(start).min(count);
            (first..last, (start + first).saturating_sub(from))
        };
        (!elements.is_empty()).then_some(FlatPiece { tensor, elements, at })
    }

    /// What `rank` has, as boxes in the order of its buffer: each lies there packed.
    ///
    /// # Errors
    /// None in practice: sizes have been checked.
    pub fn boxes(&self, rank: u64) -> Result<Vec<FlatBox>, FlatError> {
        let mut found = Vec::new();
        for piece in self.pieces(rank) {
            let Some(shape) = self.shapes.get(piece.tensor) else { continue };
            let mut at = piece.at;
            for region in boxes(shape, piece.elements)? {
                let next = at + region.elements();
                found.push(FlatBox { tensor: piece.tensor, region, at });
                at = next;
            }
        }
        Ok(found)
    }

    /// Stretches of the buffer of `rank` that belong to no tensor.
    #[must_use]
    pub fn padding(&self, rank: u64) -> Vec<Range<u64>> {
        let (mut found, mut at) = (Vec::new(), 0);
        for piece in self.pieces(rank) {
            found.push(at..piece.at);
            at = piece.at + (piece.elements.end - piece.elements.start);
        }
        found.push(at..self.share);
        found.retain(|range| !range.is_empty());
        found
    }

    /// Where elements of a tensor lie: the ranks that have some of them, each with the piece that it has.
    pub fn holders(
        &self,
        tensor: usize,
        elements: Range<u64>,
    ) -> impl Iterator<Item = (u64, FlatPiece)> + '_ {
        let start = self.starts.get(tensor).copied().unwrap_or(0);
        let count = self.elements.get(tensor).copied().unwrap_or(0);
        let (offset, share) = if self.each { (0, count.div_ceil(self.ranks)) } else { (start, self.share) };
        let rank = |index: u64| (offset + index).checked_div(share).unwrap_or(0);
        let last = elements.end.min(count);
        let ranks = if elements.start < last { rank(elements.start)..rank(last - 1) + 1 } else { 0..0 };
        ranks.filter_map(move |rank| {
            let piece = self.piece(rank, tensor)?;
            let (own, from) = (&piece.elements, piece.elements.start.max(elements.start));
            let kept = from..own.end.min(last);
            let at = piece.at + (from - own.start);
            (!kept.is_empty()).then_some((rank, FlatPiece { tensor, elements: kept, at }))
        })
    }
}

fn counted(shapes: &[Shape]) -> Result<Vec<u64>, FlatError> {
    shapes.iter().map(|shape| shape.elements().ok_or_else(|| FlatError::TooLarge(shape.clone()))).collect()
}

fn multiple(of: u64, step: u64) -> Result<u64, FlatError> {
    if step == 0 {
        return Err(FlatError::Alignment);
    }
    of.checked_next_multiple_of(step).ok_or(FlatError::GroupTooLarge)
}

const fn at_least_one(ranks: u64) -> Result<u64, FlatError> {
    if ranks == 0 { Err(FlatError::NoRanks) } else { Ok(ranks) }
}
