//! The reduction of gradients, once a step: over the ranks of a replica to shards, then over replicas; of neighbouring parts together,
//! as long as they are small.
//!
//! ```text
//!  sums of this rank ─► exchange in the shard group, sum ─► shard ─► all-reduce in the replica group ─► gradient of the shard
//!                       (S_g · (N-1)/N, if N > 1)                    (2 · S_g/N · (R-1)/R, if R > 1)
//! ```
//!
//! In exact mode all sums are one aligned tree over the *global* microbatch index: dp rank d plays microbatches d·M..(d+1)·M, and M
//! and the size of a replica are powers of two, so that what a rank sums is a whole subtree, what a replica sums is one, and the sum
//! over replicas is the rest of the tree. There the all-reduce is an exchange of chunks, their sums, and a gather, which moves as much.
//!
//! Gradients are summed in f32; they may be exchanged in bf16, in fast mode: what a rank has summed is rounded once, as a sum of several
//! replicas is.
//!
//! Invariants: no gradient is missing when its part is reduced; sums of microbatches are freed then; every rank of a replica group ends
//! with the same bits; what one rank gives that is not finite is remembered there, since afterwards all have it.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::{
    gradients::Accumulator,
    plan::{Held, Plan, Slot, Unit, padded},
    shards::part,
    state::State,
};
use crate::{
    Error, Result,
    exact::{self, Sums},
    optim::ALIGNMENT,
    parallel::{Cut, Precision, wide},
    stage::GradReduce,
    transport::{Group, Purpose},
};

/// Elements of gradients that are reduced together, at most, unless a part has more: 25 MiB, as in torch's DDP. A collective of few
/// bytes takes about as long as one of many.
const BUCKET: i64 = (25 << 20) / 4;

/// What a rank gives of a part: for each member of the shard group, in the layout of its flat buffer.
struct Given<'a> {
    unit: &'a Unit,
    flats: Vec<Tensor>,
}

/// Which neighbours of these lengths are reduced together, of at most so many elements.
fn buckets(lengths: &[i64], most: i64) -> Vec<Range<usize>> {
    let (mut all, mut begin, mut filled) = (Vec::new(), 0, 0);
    for (at, length) in lengths.iter().enumerate() {
        if at > begin && filled + length > most {
            all.push(begin..at);
            (begin, filled) = (at, 0);
        }
        filled += length;
    }
    if begin < lengths.len() {
        all.push(begin..lengths.len());
    }
    all
}

/// By member, what all parts of a bucket give to it, one after the other.
fn together(mut bucket: Vec<Given<'_>>, members: usize) -> Result<Vec<Tensor>> {
    if bucket.len() == 1 {
        return bucket.pop().map(|given| given.flats).ok_or_else(nobody);
    }
    let of = |member: usize| {
        let flats = bucket.iter().filter_map(|given| given.flats.get(member)).collect::<Vec<_>>();
        Ok(Tensor::f_cat(&flats, 0)?)
    };
    (0..members).map(of).collect()
}

impl State {
    /// Reduces the gradients of a part to its shards. Collective over the shard group, then over the replica group.
    ///
    /// # Errors
    /// `Internal` for a gradient that is missing: names it and its microbatch; the transport's.
    pub fn reduce(&self, part: usize) -> Result<()> {
        self.reduce_parts(part..part + 1)
    }

    /// The same of several parts, ascending: neighbours go together as long as they are small.
    fn reduce_parts(&self, parts: Range<usize>) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let units = parts.map(|part| Ok(self.plan.unit(part)?.1)).collect::<Result<Vec<&Unit>>>()?;
        // Of all shards, so the same on all members: where buckets end, too.
        let lengths: Vec<i64> = units.iter().map(|unit| unit.lengths.iter().sum()).collect();
        // Alone, there is nothing to wait for, and nothing is copied.
        let most = if self.data.ranks() == 1 { 0 } else { BUCKET };
        for bucket in buckets(&lengths, most) {
            let units = units.get(bucket).unwrap_or_default();
            self.reduce_bucket(units.iter().map(|unit| self.given(unit)).collect::<Result<_>>()?)?;
        }
        Ok(())
    }

    /// What this rank has to give of a part.
    fn given<'a>(&self, unit: &'a Unit) -> Result<Given<'a>> {
        if self.reduced.borrow().contains_key(&unit.part) {
            return Err(Error::internal(format!("part {} was reduced already in this step", unit.part)));
        }
        let sums = self.sums_of(unit)?;
        let flats = (0..self.data.shard).map(|member| flat(&self.plan, unit, &sums, member));
        Ok(Given { unit, flats: flats.collect::<Result<_>>()? })
    }

    fn reduce_bucket(&self, bucket: Vec<Given<'_>>) -> Result<()> {
        let own = |given: &Given<'_>| given.unit.lengths.get(self.member).copied().ok_or_else(nobody);
        let parts =
            bucket.iter().map(|given| Ok((given.unit.part, own(given)?))).collect::<Result<Vec<_>>>()?;
        let name = match parts.as_slice() {
            [(first, _), .., (last, _)] => format!("parts {first} to {last}"),
            _ => parts.first().map_or_else(String::new, |(part, _)| format!("part {part}")),
        };
        let flats = together(bucket, self.data.shard)?;
        let length = parts.iter().map(|(_, length)| length).sum();
        let reduced = self.over_replicas(&name, self.over_shards((&name, length), flats)?)?;
        let mut begin = 0;
        for (part, length) in parts {
            self.reduced.borrow_mut().insert(part, reduced.f_narrow(0, begin, length)?);
            begin += length;
        }
        Ok(())
    }

    /// This rank's sums over its microbatches, by slot and piece.
    fn sums_of(&self, unit: &Unit) -> Result<Vec<Vec<Tensor>>> {
        let sum = |slot: &Slot| {
            let held = self.plan.of(slot)?;
            let sum = self.accumulators.borrow_mut().remove(&(unit.part, held.index));
            let sum = sum.ok_or_else(|| Error::internal("no gradient for microbatch 0"));
            let sum = sum.and_then(Accumulator::finish);
            let sum = sum.map_err(|error| error.at(&held.spec.fqn).at(format_args!("part {}", unit.part)))?;
            if !all_finite(&sum)? {
                self.suspect.set(self.suspect.get().min(held.index as u64));
            }
            Ok(sum)
        };
        unit.slots.iter().map(sum).collect()
    }

    /// The sum over the ranks of this rank's replica, of this rank's shard.
    fn over_shards(&self, (name, own): (&str, i64), mut flats: Vec<Tensor>) -> Result<Tensor> {
        if self.data.shard == 1 {
            return flats.pop().ok_or_else(nobody);
        }
        let purpose = Purpose(format!("gradients of {name}"));
        self.exchanged(&*self.groups.shard, &purpose, &flats, own)
    }

    /// The sum of a shard over all replicas.
    fn over_replicas(&self, name: &str, shard: Tensor) -> Result<Tensor> {
        let (group, replicas) = (&self.groups.replicate, self.data.replicate);
        if replicas == 1 {
            return Ok(shard);
        }
        let purpose = |what: &str| Purpose(format!("{what} of {name} over replicas"));
        if self.sums == Sums::Fast && self.reduce_in == Precision::Float32 {
            return group.all_reduce(&purpose("gradients"), shard);
        }
        let length = shard.size1()?;
        let parts = chunks(length, replicas);
        let own = parts.get(group.index()).map(|(_, length)| *length).ok_or_else(nobody)?;
        let cut = |(start, length): &(i64, i64)| Ok(shard.f_narrow(0, *start, *length)?.f_contiguous()?);
        let given = parts.iter().map(cut).collect::<Result<Vec<_>>>()?;
        let mine = self.exchanged(&**group, &purpose("gradients"), &given, own)?;
        // This rank's own chunk goes the way of the others': all replicas have what was carried.
        let mine = self.reduce_in.operand(&mine.f_contiguous()?)?;
        let shapes: Vec<_> = parts.iter().map(|(_, length)| vec![*length]).collect();
        let all = group.all_gather(&purpose("sums"), &mine, &shapes)?;
        Ok(Tensor::f_cat(&all.iter().map(wide).collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// Gives each member its part, and sums what they give in f32: `own` elements.
    fn exchanged(&self, group: &dyn Group, purpose: &Purpose, parts: &[Tensor], own: i64) -> Result<Tensor> {
        let parts = parts.iter().map(|part| self.reduce_in.operand(part)).collect::<Result<_>>()?;
        let theirs = group.exchange(purpose, parts, &vec![vec![own]; group.size()])?;
        self.sum(theirs.iter().map(wide).collect::<Result<_>>()?)
    }

    /// The sum of what the members of a group gave, in the order of the mode.
    fn sum(&self, theirs: Vec<Tensor>) -> Result<Tensor> {
        if self.sums == Sums::Exact {
            return exact::sum(theirs);
        }
        let mut theirs = theirs.into_iter();
        let first = theirs.next().ok_or_else(nobody)?;
        theirs.try_fold(first, |sum, other| Ok(sum.f_add(&other)?))
    }
}

fn nobody() -> Error {
    Error::internal("a group of nobody")
}

/// `length` elements, a multiple of the alignment, in `count` chunks that are too, as even as can be: offset and length of each.
fn chunks(length: i64, count: usize) -> Vec<(i64, i64)> {
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    let units = length / ALIGNMENT;
    let start = |at: i64| (units / count * at + (units % count).min(at)) * ALIGNMENT;
    (0..count).map(|at| (start(at), start(at + 1) - start(at))).collect()
}

/// Whether no element is NaN or infinite. A sum that is finite says so in one pass; one that is not may only be too large.
fn all_finite(pieces: &[Tensor]) -> Result<bool> {
    for piece in pieces {
        if !piece.f_sum(Kind::Float)?.f_double_value(&[])?.is_finite()
            && piece.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a member of the shard group holds of a unit's sums, in the layout of its flat buffer.
fn flat(plan: &Plan, unit: &Unit, sums: &[Vec<Tensor>], member: usize) -> Result<Tensor> {
    let mut all = Vec::new();
    for (slot, pieces) in unit.slots.iter().zip(sums) {
        let (held, region) = shard(plan, slot, member)?;
        let mut length = 0;
        if let Some(cut) = cut_out(held, region, pieces)? {
            length = i64::try_from(cut.numel()).unwrap_or(i64::MAX);
            all.push(cut.f_reshape([-1])?);
        }
        if let (Some(any), padding @ 1..) = (pieces.first(), padded(region) - length) {
            all.push(any.f_new_zeros([padding], (any.kind(), any.device()))?);
        }
    }
    match sums.iter().flatten().next() {
        Some(any) if all.is_empty() => Ok(any.f_new_zeros([0], (any.kind(), any.device()))?),
        _ => Ok(Tensor::f_cat(&all, 0)?),
    }
}

fn shard<'a>(plan: &'a Plan, slot: &Slot, member: usize) -> Result<(&'a Held, &'a reshard::Region)> {
    let held = plan.of(slot)?;
    let region = held.regions.get(member);
    Ok((held, region.ok_or_else(|| Error::internal(format!("{} has no shard {member}", held.spec.fqn)))?))
}

/// The elements of `region`, from the pieces of the virtual ranks; none for an empty one.
fn cut_out(held: &Held, region: &reshard::Region, pieces: &[Tensor]) -> Result<Option<Tensor>> {
    let mut found = Vec::new();
    for (piece, whole) in pieces.iter().zip(&held.pieces) {
        if let Some(shared) = whole.intersect(region) {
            found.push(part(piece, whole, &shared)?);
        }
    }
    let dim = match held.cut {
        Cut::Dim(dim) => i64::try_from(dim).unwrap_or(0),
        Cut::Whole => 0,
    };
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.shallow_clone())),
        _ => Ok(Some(Tensor::f_cat(&found, dim)?)),
    }
}

/// A stage's parts; ascending, as on every member of the group.
impl GradReduce for State {
    fn reduce(&self, parts: Range<usize>) -> Result<()> {
        self.reduce_parts(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_a_buffer_and_differ_by_one_unit_at_most() {
        for (units, count) in [(0, 3), (2, 3), (64, 4), (130, 4), (7, 1)] {
            let found = chunks(units * ALIGNMENT, count);
            assert_eq!(found.len(), count);
            let mut end = 0;
            for (start, size) in &found {
                assert_eq!(*start, end);
                let least = units / count as i64;
                assert!([least * ALIGNMENT, (least + 1) * ALIGNMENT].contains(size));
                end += size;
            }
            assert_eq!(end, units * ALIGNMENT);
        }
    }

    #[test]
    fn small_neighbours_are_reduced_together_and_a_large_part_alone() {
        let ends = |lengths: &[i64], most| buckets(lengths, most).iter().map(|it| it.end).collect::<Vec<_>>();
        assert!(ends(&[], 8).is_empty());
        assert_eq!(ends(&[1, 0, 5], 8), [3]);
        assert_eq!(ends(&[4, 4, 1], 8), [2, 3]);
        assert_eq!(ends(&[24, 1, 2, 8], 8), [1, 3, 4]);
        assert_eq!(ends(&[2, 3], 0), [1, 2]);
    }

    #[test]
    fn large_values_are_finite_and_a_single_nan_is_not() {
        let large = Tensor::full([4], 3e38, (Kind::Float, tch::Device::Cpu));
        assert!(all_finite(&[large.shallow_clone()]).unwrap());
        let _ = large.get(1).fill_(f64::NAN);
        assert!(!all_finite(&[Tensor::zeros([2], (Kind::Float, tch::Device::Cpu)), large]).unwrap());
    }
}
