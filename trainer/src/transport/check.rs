//! What transports check before they move anything, the same for all of them: arguments of collectives, members of a
//! group, headers.

use tch::{Device, Kind as Dtype, Tensor};

use super::{
    DTYPES, Header,
    failure::{Failure, Order, Outcome},
};

/// Whether `found`, which came from rank `from`, is what rank `to` expects, and the one that was due.
pub(crate) fn header(from: usize, to: usize, expected: &Header, found: &Header, order: Order) -> Outcome<()> {
    if expected == found && order.due == order.found {
        return Ok(());
    }
    let (expected, found) = (Box::new(expected.clone()), Box::new(found.clone()));
    Err(Failure::Header { from, to, expected, found, order })
}

/// Whether the tensors that came are what their header says.
pub(crate) fn whole(from: usize, to: usize, header: &Header, tensors: &[Tensor]) -> Outcome<()> {
    if fits(header, tensors) {
        return Ok(());
    }
    let found: Vec<_> = tensors.iter().map(describe).collect();
    Err(Failure::Cut { from, to, header: Box::new(header.clone()), found: found.join(", ") })
}

fn fits(header: &Header, tensors: &[Tensor]) -> bool {
    header.shapes.len() == tensors.len()
        && header
            .shapes
            .iter()
            .zip(tensors)
            .all(|(shape, tensor)| *shape == tensor.size() && tensor.kind() == header.dtype)
}

/// Whether the tensors of a message are what its header says, and lie on `device`.
pub(crate) fn message(header: &Header, tensors: &[Tensor], device: Device) -> Outcome<()> {
    if fits(header, tensors) && DTYPES.contains(&header.dtype) {
        return tensors.iter().try_for_each(|tensor| placed("a message", tensor, device));
    }
    let given: Vec<_> = tensors.iter().map(describe).collect();
    Err(Failure::Misuse(format!("a message says {header}, and its tensors are {given:?}")))
}

/// Whether a tensor lies where the transport can read it.
pub(crate) fn placed(what: &str, tensor: &Tensor, device: Device) -> Outcome<()> {
    let found = tensor.device();
    if found == device {
        return Ok(());
    }
    Err(Failure::Misuse(format!(
        "{what}: a tensor is on {found:?}, and this transport carries tensors of {device:?}: move it, or choose another \
         transport (gloo carries those of processors, nccl those of GPUs)"
    )))
}

/// A peer that a message can go to.
pub(crate) fn peer(rank: usize, size: usize, peer: usize) -> Outcome<()> {
    if peer < size && peer != rank {
        return Ok(());
    }
    Err(Failure::Misuse(format!("rank {rank} has no peer {peer} among {size} ranks")))
}

/// Whether `members` are ascending, inside the world, and `rank` is among them; its position.
pub(crate) fn members(name: &str, rank: usize, size: usize, members: &[usize]) -> Outcome<usize> {
    let ascending = members.windows(2).all(|pair| pair.first() < pair.last());
    let inside = members.last().is_some_and(|last| *last < size);
    let found = members.iter().position(|member| *member == rank);
    found.filter(|_| ascending && inside).ok_or_else(|| {
        Failure::Misuse(format!(
            "group {name} of rank {rank}: members {members:?} are not ascending ranks below {size} with it among them"
        ))
    })
}

/// The dtypes of collectives.
pub(crate) fn dtype(what: &str, tensor: &Tensor) -> Outcome<Dtype> {
    let dtype = tensor.kind();
    if !DTYPES.contains(&dtype) {
        return Err(Failure::Misuse(format!("{what}: collectives carry {DTYPES:?}, not {dtype:?}")));
    }
    Ok(dtype)
}

/// One shape per member.
pub(crate) fn shapes(what: &str, size: usize, shapes: &[Vec<i64>]) -> Outcome<()> {
    let sane = shapes.iter().flatten().all(|extent| *extent >= 0);
    if shapes.len() == size && sane {
        return Ok(());
    }
    Err(Failure::Misuse(format!("{what}: {} shapes {shapes:?} for {size} members", shapes.len())))
}

/// Whether this rank's own part has the shape that all members are told.
pub(crate) fn own(what: &str, mine: &Tensor, told: Option<&Vec<i64>>) -> Outcome<()> {
    if told == Some(&mine.size()) {
        return Ok(());
    }
    Err(Failure::Misuse(format!(
        "{what}: this rank's part is {}, and it is told as {told:?}",
        describe(mine)
    )))
}

/// A tensor in a few words.
pub(crate) fn describe(tensor: &Tensor) -> String {
    format!("{:?} {:?}", tensor.kind(), tensor.size())
}

/// Number of elements of a shape.
pub(crate) fn elements(shape: &[i64]) -> Outcome<i64> {
    shape
        .iter()
        .try_fold(1_i64, |count, extent| count.checked_mul(*extent))
        .ok_or_else(|| Failure::Misuse(format!("shape {shape:?} has more elements than can be counted")))
}
