//! [`Assembly`]: which box of which source every box of a tensor is.
//!
//! The two boxes of a part may differ in dimensions of extent 1, so that a slice of a stacked tensor is a tensor of its
//! own. Invariant: parts tile the assembled tensor, and both boxes of a part hold the same elements in the same order.

use fqn::{Dims, Shape};

use crate::{
    Region, RegionError,
    coverage::{CoverageError, Index, check},
};

/// A tensor made of boxes of others.
#[derive(Debug, Clone)]
pub struct Assembly {
    shape: Shape,
    parts: Vec<AssemblyPart>,
    index: Index,
}

/// A box of the assembled tensor, and the box of a source that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyPart {
    /// Position of the source among the sources.
    pub source: usize,
    /// In the source's coordinates.
    pub from: Region,
    /// In the assembled tensor's coordinates.
    pub to: Region,
}

/// What a source of an assembly is.
#[derive(Debug, Clone, Copy)]
pub enum Strand<'a> {
    /// Itself, at this position among the sources.
    Whole(usize),
    /// Made of others.
    Made(&'a Assembly),
}

/// Why boxes make no tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// Parts that leave a gap or overlap.
    #[error("parts of a tensor of shape {shape} do not tile it: {source}")]
    Coverage {
        /// Shape of the tensor.
        shape: Shape,
        /// How they don't.
        source: CoverageError,
    },
    /// A box that is not the box that it shall become.
    #[error("{from} of source {source_at} and {to} are not the same elements")]
    Unequal {
        /// Position of the source.
        source_at: usize,
        /// Its box.
        from: Region,
        /// The box in the assembled tensor.
        to: Region,
    },
    /// Sources that don't fit each other.
    #[error("tensors of shapes {first} and {other} can't be joined along dimension {axis}")]
    Shapes {
        /// The first of them.
        first: Shape,
        /// One that differs from it.
        other: Shape,
        /// The dimension.
        axis: usize,
    },
    /// A dimension that isn't there, or no source at all.
    #[error("{sources} tensors of shape {shape} have no dimension {axis} to be joined along")]
    Dimension {
        /// Shape of the first source.
        shape: Shape,
        /// Number of sources.
        sources: usize,
        /// The dimension.
        axis: usize,
    },
    /// Rows that groups don't divide.
    #[error("{groups} groups do not divide the {extent} rows of shape {shape}")]
    Groups {
        /// Number of groups.
        groups: u64,
        /// Extent of the dimension.
        extent: u64,
        /// Shape of the source.
        shape: Shape,
    },
    /// Numbers beyond 64 bits.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl AssemblyPart {
    /// The box of the source that `target`, a box within [`Self::to`], is.
    fn back(&self, target: &Region) -> Option<Region> {
        carried(target, &self.to, &self.from)
    }

    /// The box of the assembled tensor that `source`, a box within [`Self::from`], becomes.
    #[must_use]
    pub fn forward(&self, source: &Region) -> Option<Region> {
        carried(&source.intersect(&self.from)?, &self.from, &self.to)
    }
}

/// A box within `of` in the coordinates of `into`, which is the same box but for dimensions of extent 1.
fn carried(part: &Region, of: &Region, into: &Region) -> Option<Region> {
    let within = |(offset, extent): (&u64, &u64), (base, whole): (&u64, &u64)| {
        (*whole != 1).then(|| (offset.wrapping_sub(*base), *extent))
    };
    let parts = part.offsets().iter().zip(part.extents()).zip(of.offsets().iter().zip(of.extents()));
    let mut kept = parts.filter_map(|(part, of)| within(part, of));
    let (mut offsets, mut extents) = (Dims::new(), Dims::new());
    for (base, whole) in into.offsets().iter().zip(into.extents()) {
        let (offset, extent) = if *whole == 1 { (0, 1) } else { kept.next()? };
        offsets.push(base.checked_add(offset)?);
        extents.push(extent);
    }
    Region::new(&offsets, &extents).ok()
}

/// Extents other than 1.
fn proper(region: &Region) -> impl Iterator<Item = &u64> {
    region.extents().iter().filter(|extent| **extent != 1)
}

impl Assembly {
    /// A tensor of `shape` made of `parts`.
    ///
    /// # Errors
    /// Parts that do not tile it, or a part whose two boxes differ in more than dimensions of extent 1.
    pub fn new(shape: Shape, parts: Vec<AssemblyPart>) -> Result<Self, AssemblyError> {
        if let Some(part) = parts.iter().find(|part| !proper(&part.from).eq(proper(&part.to))) {
            let AssemblyPart { source, from, to } = part.clone();
            return Err(AssemblyError::Unequal { source_at: source, from, to });
        }
        check(&shape, parts.iter().map(|part| &part.to))
            .map_err(|source| AssemblyError::Coverage { shape: shape.clone(), source })?;
        let index = Index::new(parts.iter().map(|part| &part.to));
        Ok(Self { shape, parts, index })
    }

    /// Shape of the tensor.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What it is made of.
    #[must_use]
    pub fn parts(&self) -> &[AssemblyPart] {
        &self.parts
    }

    /// The boxes of sources that make up `target`; none for an empty one. They tile it.
    #[must_use]
    pub fn of(&self, target: &Region) -> Vec<AssemblyPart> {
        let met = self.index.meeting(target).into_iter().filter_map(|at| {
            let part = self.parts.get(at)?;
            let to = part.to.intersect(target)?;
            Some(AssemblyPart { source: part.source, from: part.back(&to)?, to })
        });
        met.collect()
    }

    /// The same tensor, made of what its sources are made of in turn.
    ///
    /// # Errors
    /// Sources that are not of the shapes that the assembly was made for.
    pub fn through<'a>(&self, of: impl Fn(usize) -> Strand<'a>) -> Result<Self, AssemblyError> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            match of(part.source) {
                Strand::Whole(source) => parts.push(AssemblyPart { source, ..part.clone() }),
                Strand::Made(inner) => parts.extend(inner.of(&part.from).into_iter().filter_map(|inner| {
                    let to = part.forward(&inner.to)?;
                    Some(AssemblyPart { to, ..inner })
                })),
            }
        }
        Self::new(self.shape.clone(), parts)
    }

    /// The way back: every source as an assembly of the one tensor, `sources` being their shapes.
    ///
    /// # Errors
    /// A source of which not every element is in the tensor exactly once.
    pub fn inverse(&self, sources: &[Shape]) -> Result<Vec<Self>, AssemblyError> {
        let mut parts: Vec<Vec<AssemblyPart>> = vec![Vec::new(); sources.len()];
        for part in &self.parts {
            if let Some(of) = parts.get_mut(part.source) {
                of.push(AssemblyPart { source: 0, from: part.to.clone(), to: part.from.clone() });
            }
        }
        sources.iter().zip(parts).map(|(shape, parts)| Self::new(shape.clone(), parts)).collect()
    }
}
