//! What transports check before they move anything, the same for all of them: arguments of collectives, members of a
//! group, headers.

use tch::{Kind as Dtype, Tensor};

use super::{
    Header,
    failure::{Failure, Outcome},
};

/// Whether `found`, which came from rank `from`, is what rank `to` expects.
pub(crate) fn header(from: usize, to: usize, expected: &Header, found: &Header) -> Outcome<()> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (Box::new(expected.clone()), Box::new(found.clone()));
    Err(Failure::Header { from, to, expected, found })
}

/// Whether the tensors of a message are what its header says.
pub(crate) fn message(header: &Header, tensors: &[Tensor]) -> Outcome<()> {
    let fits = header.shapes.len() == tensors.len()
        && header.shapes.iter().zip(tensors).all(|(shape, tensor)| *shape == tensor.size());
    let floats = tensors.iter().all(|tensor| tensor.kind() == Dtype::Float);
    if fits && floats {
        return Ok(());
    }
    let given: Vec<_> = tensors.iter().map(describe).collect();
    Err(Failure::Misuse(format!("a message says {header}, f32, and its tensors are {given:?}")))
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
    match tensor.kind() {
        kind @ (Dtype::Float | Dtype::Int64) => Ok(kind),
        kind => Err(Failure::Misuse(format!("{what}: collectives carry f32 and i64, not {kind:?}"))),
    }
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
