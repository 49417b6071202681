//! The usual assemblies: tensors one after another, stacked along a new dimension, or interleaved group by group.

use fqn::{Dims, Shape};

use super::{Assembly, AssemblyError, AssemblyPart};
use crate::Region;

impl Assembly {
    /// Sources one after another along `axis`: gate and up, or query, key and value as blocks. Parts of a checkpoint that
    /// stores them fused are cut by TP inside each (`Entry::fusion`).
    ///
    /// # Errors
    /// No source, sources that differ in another dimension, a dimension that isn't there.
    pub fn concat(sources: &[Shape], axis: usize) -> Result<Self, AssemblyError> {
        Self::interleave(sources, axis, 1)
    }

    /// Sources cut into `groups` along `axis` and laid out group by group: with query, key and value and a group for each
    /// KV head, the rows of Megatron's fused projection; with one for each head, GPT-NeoX's.
    ///
    /// # Errors
    /// As [`Self::concat`]; groups that do not divide a source.
    pub fn interleave(sources: &[Shape], axis: usize, groups: u64) -> Result<Self, AssemblyError> {
        let (first, extents) = alike(sources, axis)?;
        let mut steps = Vec::with_capacity(sources.len());
        for (extent, shape) in extents.iter().zip(sources) {
            if groups == 0 || !extent.is_multiple_of(groups) {
                let (extent, shape) = (*extent, shape.clone());
                return Err(AssemblyError::Groups { groups, extent, shape });
            }
            steps.push(extent / groups);
        }
        // Empty sources would make no part in any group: nothing is to be walked for them.
        let walked = if steps.iter().all(|step| *step == 0) { 0 } else { groups };
        let (mut parts, mut at) = (Vec::new(), 0_u64);
        for group in 0..walked {
            for (source, step) in steps.iter().enumerate() {
                let from = slab(first, axis, group * step, *step)?;
                let to = slab(first, axis, at, *step)?;
                at = to.offsets().get(axis).copied().unwrap_or(0) + step;
                parts.push(AssemblyPart { source, from, to });
            }
        }
        let whole = extents.iter().try_fold(0_u64, |sum, extent| sum.checked_add(*extent));
        Self::new(with(first, axis, whole.ok_or(crate::RegionError::Overflow)?), parts)
    }

    /// Sources of one shape side by side along a new dimension `axis`: experts, or layers, of a stacked tensor.
    ///
    /// # Errors
    /// No source, sources of different shapes, a place for the dimension beyond the last one.
    pub fn stack(sources: &[Shape], axis: usize) -> Result<Self, AssemblyError> {
        let (first, count) = (sources.first().cloned().unwrap_or_default(), sources.len());
        if count == 0 || axis > first.rank() {
            return Err(AssemblyError::Dimension { shape: first, sources: count, axis });
        }
        if let Some(other) = sources.iter().find(|shape| **shape != first) {
            return Err(AssemblyError::Shapes { first, other: other.clone(), axis });
        }
        let mut shape = Dims::from_slice(&first);
        shape.insert(axis, count as u64);
        let shape = Shape::from(shape);
        let from = Region::whole(&first)?;
        let part = |source: usize| {
            Ok(AssemblyPart { source, from: from.clone(), to: slab(&shape, axis, source as u64, 1)? })
        };
        let parts = (0..count).map(part).collect::<Result<_, AssemblyError>>()?;
        Self::new(shape.clone(), parts)
    }

    /// One of the tensors that [`Self::stack`] put side by side, out of the stack of this shape.
    ///
    /// # Errors
    /// A stack without the dimension, or without this index.
    pub fn slice(stack: &Shape, axis: usize, at: u64) -> Result<Self, AssemblyError> {
        if stack.get(axis).is_none_or(|count| *count <= at) {
            return Err(AssemblyError::Dimension { shape: stack.clone(), sources: 1, axis });
        }
        let mut shape = Dims::from_slice(stack);
        shape.remove(axis);
        let shape = Shape::from(shape);
        let to = Region::whole(&shape)?;
        Self::new(shape, vec![AssemblyPart { source: 0, from: slab(stack, axis, at, 1)?, to }])
    }
}

/// The first shape, and the extent of every one along `axis`.
fn alike(sources: &[Shape], axis: usize) -> Result<(&Shape, Dims), AssemblyError> {
    let none = || AssemblyError::Dimension {
        shape: sources.first().cloned().unwrap_or_default(),
        sources: sources.len(),
        axis,
    };
    let first = sources.first().filter(|first| axis < first.rank()).ok_or_else(none)?;
    if let Some(other) = sources.iter().find(|other| with(other, axis, 0) != with(first, axis, 0)) {
        return Err(AssemblyError::Shapes { first: first.clone(), other: other.clone(), axis });
    }
    Ok((first, sources.iter().filter_map(|shape| shape.get(axis)).copied().collect()))
}

fn with(shape: &Shape, axis: usize, extent: u64) -> Shape {
    shape.iter().enumerate().map(|(dim, own)| if dim == axis { extent } else { *own }).collect()
}

/// `len` indices of dimension `axis` from `start`, all of the others.
fn slab(shape: &Shape, axis: usize, start: u64, len: u64) -> Result<Region, AssemblyError> {
    let offsets: Dims = (0..shape.rank()).map(|dim| if dim == axis { start } else { 0 }).collect();
    Ok(Region::new(&offsets, &with(shape, axis, len))?)
}
