//! [`causal`]: causal attention of many heads, with rotary positions: one node forward and back.
//!
//! On processors with AVX2 or AVX-512, f32 takes a way of its own: tiles of queries whose scores stay in cache, turned
//! while they are read (`tile`, `heads`). Everything else takes libtorch's operations. By `tests/speed.rs`, forward and
//! back on one thread of a processor with both, the own way is 1.6 to 2.2 times as fast as libtorch's for heads of 16 and
//! 1.5 times for heads of 128 with AVX-512; 1.4 to 1.6 times, and as fast within a tenth or better, with AVX2.
//!
//! Invariants: a head's result depends on that head alone, so that it is the same however heads are shared out; both
//! instruction sets give the same bits; nothing is kept for backward but the inputs, what came out, and a number for each
//! query.

#![expect(unsafe_code, reason = "tensors' memory as slices")]

mod heads;
mod lanes;
mod tile;

use tch::{Device, Kind, Tensor};

use self::{
    heads::{Backward, Forward, Inputs, Sizes},
    lanes::Width,
};
use super::node;
use crate::{Error, Result};

/// Every position attends to itself and those before it: queries `[sequences, length, heads, dim]`, keys and values with
/// as many heads or fewer, each of which serves as many neighbouring query heads; gives the shape of the queries. Queries
/// and keys are turned by `turns`, cosines and sines `[length, 1, dim / 2, 2]`, if there are any.
///
/// Until backward is done, none of these tensors nor what comes out may be changed in place: backward reads them again, and
/// autograd, which would refuse, does not know that.
///
/// # Errors
/// `Internal` for shapes that do not go together; what libtorch refuses.
pub fn causal(queries: &Tensor, keys: &Tensor, values: &Tensor, turns: Option<&Tensor>) -> Result<Tensor> {
    let sizes = sizes(queries, keys, values, turns)?;
    match Width::found().first().filter(|_| suits(queries) && suits(keys) && suits(values)) {
        Some(width) if sizes.elements() > 0 => own(*width, sizes, queries, keys, values, turns),
        _ => libtorch(queries, keys, values, turns),
    }
}

fn suits(tensor: &Tensor) -> bool {
    tensor.kind() == Kind::Float && tensor.device() == Device::Cpu
}

fn sizes(queries: &Tensor, keys: &Tensor, values: &Tensor, turns: Option<&Tensor>) -> Result<Sizes> {
    let (q, k, v) = (queries.size(), keys.size(), values.size());
    let misfit = || Error::internal(format!("attention of queries {q:?} over keys {k:?} and values {v:?}"));
    let extents = |shape: &[i64]| shape.iter().map(|it| usize::try_from(*it)).collect::<Result<Vec<_>, _>>();
    let (Ok(of_queries), Ok(of_keys)) = (extents(&q), extents(&k)) else { return Err(misfit()) };
    let (&[sequences, length, heads, dim], &[_, _, shared, _]) = (of_queries.as_slice(), of_keys.as_slice())
    else {
        return Err(misfit());
    };
    let expected = [sequences, length, shared, dim];
    if of_keys != expected || k != v || dim == 0 || (heads > 0 && (shared == 0 || heads % shared != 0)) {
        return Err(misfit());
    }
    if let Some(turns) = turns.filter(|turns| turns.numel() != length * dim || dim % 2 != 0) {
        return Err(Error::internal(format!("turns {:?} for queries {q:?}", turns.size())));
    }
    Ok(Sizes { sequences, length, heads, shared, dim })
}

/// By libtorch's operations and autograd.
fn libtorch(queries: &Tensor, keys: &Tensor, values: &Tensor, turns: Option<&Tensor>) -> Result<Tensor> {
    let turn = |x: &Tensor| -> Result<Tensor> {
        let Some(turns) = turns else { return Ok(x.shallow_clone()) };
        let mut pairs = x.size();
        pairs.pop();
        pairs.extend([-1, 2]);
        let turns = turns.f_to_kind(x.kind())?.f_to_device(x.device())?.f_view_as_complex()?;
        let turned = x.f_reshape(&pairs)?.f_view_as_complex()?.f_mul(&turns)?;
        Ok(turned.f_view_as_real()?.f_flatten(3, 4)?)
    };
    let grouped = queries.size() != keys.size();
    let (q, k) = (turn(queries)?.f_transpose(1, 2)?, turn(keys)?.f_transpose(1, 2)?);
    let (v, none) = (values.f_transpose(1, 2)?, None::<&Tensor>);
    let mixed = Tensor::f_scaled_dot_product_attention(&q, &k, &v, none, 0.0, true, None, grouped)?;
    Ok(mixed.f_transpose(1, 2)?)
}

fn own(
    width: Width,
    sizes: Sizes,
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    turns: Option<&Tensor>,
) -> Result<Tensor> {
    let plain = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_detach()?.f_contiguous()?) };
    let saved = Saved {
        sizes,
        queries: plain(queries)?,
        keys: plain(keys)?,
        values: plain(values)?,
        turns: turns.map(|turns| plain(&turns.f_to_kind(Kind::Float)?)).transpose()?,
    };
    let mut mixed = fresh(&saved.queries)?;
    let mut sums = vec![0.0; sizes.sequences * sizes.heads * sizes.length];
    width.run(Forward {
        sizes,
        inputs: saved.inputs()?,
        mixed: write(&mut mixed, sizes.elements())?,
        sums: &mut sums,
    })?;
    let out = mixed.f_detach()?;
    let backward = move |grads: Vec<Option<Tensor>>| {
        let Some(grad) = grads.into_iter().next().flatten() else { return Ok(vec![None, None, None]) };
        let grads = saved.backward(width, &out, &sums, &grad.f_contiguous()?)?;
        Ok(grads.into_iter().map(Some).collect())
    };
    node::attach(&[&mixed], &[queries, keys, values], Box::new(backward))?;
    Ok(mixed)
}

/// What backward needs of the inputs: contiguous, f32, on the processor. Where they were so before, the memory is theirs: see
/// [`causal`] about changes.
struct Saved {
    sizes: Sizes,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    turns: Option<Tensor>,
}

impl Saved {
    fn inputs(&self) -> Result<Inputs<'_>> {
        let Sizes { length, dim, .. } = self.sizes;
        Ok(Inputs {
            queries: read(&self.queries, self.sizes.elements())?,
            keys: read(&self.keys, self.sizes.shared_elements())?,
            values: read(&self.values, self.sizes.shared_elements())?,
            turns: self.turns.as_ref().map(|turns| read(turns, length * dim)).transpose()?,
        })
    }

    fn backward(&self, width: Width, mixed: &Tensor, sums: &[f32], grad: &Tensor) -> Result<[Tensor; 3]> {
        let (mut queries, mut keys, mut values) =
            (fresh(&self.queries)?, fresh(&self.keys)?, fresh(&self.values)?);
        let (all, shared) = (self.sizes.elements(), self.sizes.shared_elements());
        width.run(Backward {
            sizes: self.sizes,
            inputs: self.inputs()?,
            mixed: read(mixed, all)?,
            sums,
            grad: read(grad, all)?,
            queries: write(&mut queries, all)?,
            keys: write(&mut keys, shared)?,
            values: write(&mut values, shared)?,
        })?;
        Ok([queries, keys, values])
    }
}

/// Memory of this shape that nobody has written to: the caller's work writes every element, before any is read.
fn fresh(like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_empty(like.size(), (Kind::Float, Device::Cpu))?)
}

fn checked(tensor: &Tensor, elements: usize) -> Result<*mut f32> {
    if !suits(tensor) || !tensor.is_contiguous() || tensor.numel() != elements {
        return Err(Error::internal(format!("{:?} for {elements} elements in memory", tensor.size())));
    }
    Ok(tensor.data_ptr().cast())
}

/// The tensor's elements.
fn read(tensor: &Tensor, elements: usize) -> Result<&[f32]> {
    // SAFETY: the tensor has so many elements of this type, side by side, and lives as long as the slice; each was written by
    // whoever made the tensor. Nobody writes to them meanwhile: what is read here are inputs, the result and its gradient,
    // which belong to this thread's graph, and `Forward` and `Backward` write to tensors of `fresh` alone.
    checked(tensor, elements).map(|at| unsafe { std::slice::from_raw_parts(at, elements) })
}

/// The elements of a tensor that nobody else has.
fn write(tensor: &mut Tensor, elements: usize) -> Result<&mut [f32]> {
    // SAFETY: as above, but that nothing was written yet: `fresh` made it, and it was not given on, so that nobody else reads or
    // writes. `Forward` and `Backward` write each element (every sequence, position and head, the whole width) and read none
    // of them; where they are not run, the tensor is dropped with the error. Any bits are an f32.
    checked(tensor, elements).map(|at| unsafe { std::slice::from_raw_parts_mut(at, elements) })
}

#[cfg(test)]
mod tests;
