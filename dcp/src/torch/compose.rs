//! Tensors into the tree of a `data.pkl`: the calls that torch's `load`, restricted or not, makes of them again.

use fqn::{Dtype, Shape};

use super::storage::{self, Names, typed_class};
use crate::pickle::{Arena, NodeId};

/// Makes the values of one `data.pkl`.
///
/// Each tensor gets a storage of its own, packed in row-major order; storages are numbered in the order in which
/// tensors are added, which is also their order in the archive.
#[derive(Debug, Default)]
pub struct Composer {
    arena: Arena,
    names: Names,
    storages: Vec<u64>,
}

impl Composer {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where other values are made.
    pub fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// The arena, and the lengths of the storages in bytes.
    #[must_use]
    pub fn into_parts(self) -> (Arena, Vec<u64>) {
        (self.arena, self.storages)
    }

    /// A tensor; `None` where its size passes 63 bits, its elements are no whole bytes, or torch lacks the dtype.
    pub fn tensor(&mut self, dtype: Dtype, shape: &Shape, requires_grad: bool) -> Option<NodeId> {
        let bytes = dtype.element_bytes().and_then(|size| shape.elements()?.checked_mul(size));
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok())?;
        let strides = shape.row_major_strides()?;
        let torch_name = dtype.torch_name()?;
        let storage = storage::write(&mut self.arena, &mut self.names, self.storages.len(), dtype, bytes);
        self.storages.push(bytes);
        let arena = &mut self.arena;
        let offset = arena.int(0);
        let size = int_tuple(arena, shape)?;
        let stride = int_tuple(arena, &strides)?;
        let grad = arena.bool(requires_grad);
        let hooks = ordered_dict(arena);
        let mut args = vec![storage, offset, size, stride, grad, hooks];
        let function = if typed_class(dtype).is_some() { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" };
        if typed_class(dtype).is_none() {
            args.push(arena.global("torch", torch_name));
        }
        let function = arena.global("torch._utils", function);
        let args = arena.tuple(&args);
        Some(arena.reduce(function, args))
    }

    /// An `nn.Parameter` of a tensor made before.
    pub fn parameter(&mut self, tensor: NodeId, requires_grad: bool) -> NodeId {
        let arena = &mut self.arena;
        let function = arena.global("torch._utils", "_rebuild_parameter");
        let grad = arena.bool(requires_grad);
        let hooks = ordered_dict(arena);
        let args = arena.tuple(&[tensor, grad, hooks]);
        arena.reduce(function, args)
    }
}

fn int_tuple(arena: &mut Arena, values: &[u64]) -> Option<NodeId> {
    let ids: Option<Vec<NodeId>> =
        values.iter().map(|v| i64::try_from(*v).ok().map(|v| arena.int(v))).collect();
    ids.map(|ids| arena.tuple(&ids))
}

/// An empty `OrderedDict`: the backward hooks that every tensor has.
fn ordered_dict(arena: &mut Arena) -> NodeId {
    let class = arena.global("collections", "OrderedDict");
    let none = arena.tuple(&[]);
    arena.reduce(class, none)
}
