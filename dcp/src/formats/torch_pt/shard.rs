//! Where one rank's part of a DTensor lies in the whole: mesh, placements and coordinate to a box.
//!
//! Order of cutting: axes cut from the outermost in, but for a `_StridedShard`, which cuts after axes to its right, as
//! many as make up its split factor (FSDP over TP: TP first). Each cut is `torch.chunk`'s.

use fqn::{AxisName, PlacementRule, StageRule};
use reshard::{Mesh, Region, layout::chunk};

use crate::{
    Error, Result,
    torch::{DTensorSpec, ShardRef, TorchPlacement},
};

/// The box that the rank at `coordinate` holds.
///
/// # Errors
/// `Unsupported`: a sum that is spread over ranks, a strided placement that no right-hand axes explain. `Corrupt`: a
/// part of another shape than its place has.
pub(super) fn region(shard: &ShardRef, coordinate: &[u64]) -> Result<Region> {
    let spec = &shard.spec;
    let (mut offsets, mut extents) = (vec![0_u64; spec.shape.rank()], spec.shape.to_vec());
    for (axis, dim) in order(spec)? {
        let parts = spec.mesh_shape.get(axis).copied().unwrap_or(1);
        let index = coordinate.get(axis).copied().unwrap_or(0);
        if let (Some(offset), Some(extent)) = (offsets.get_mut(dim), extents.get_mut(dim)) {
            let (skip, len) = chunk(*extent, parts, index);
            *offset = offset.saturating_add(skip);
            *extent = len;
        }
    }
    // Of a part without elements torch keeps another shape: `fully_shard` forgets what it did not cut.
    let empty = [&*extents, &*shard.local.shape].iter().all(|shape| shape.contains(&0));
    if extents != *shard.local.shape && !empty {
        let text = format!(
            "the part has shape {}, but at {coordinate:?} of mesh {:?} the whole of {} has {:?}",
            shard.local.shape, &*spec.mesh_shape, spec.shape, &*extents
        );
        return Err(Error::corrupt(text));
    }
    Region::new(&offsets, &extents).map_err(|error| Error::corrupt(error.to_string()))
}

/// Axes that cut, with the dimension that each cuts, in the order of cutting.
fn order(spec: &DTensorSpec) -> Result<Vec<(usize, usize)>> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (axis, placement) in spec.placements.iter().enumerate().rev() {
        let at_dim = |dim: u64| usize::try_from(dim).map_err(|_| Error::corrupt("a dimension beyond memory"));
        match placement {
            TorchPlacement::Replicate => {}
            TorchPlacement::Shard { dim } => order.insert(0, (axis, at_dim(*dim)?)),
            TorchPlacement::StridedShard { dim, split } => {
                let dim = at_dim(*dim)?;
                let place = after(spec, &order, dim, *split)?;
                order.insert(place, (axis, dim));
            }
            TorchPlacement::Partial { reduce } => {
                return Err(Error::unsupported(format!(
                    "each rank holds a summand of it ({reduce}), not a part of it"
                ))
                .hint("reduce it before saving: `tensor.redistribute(placements=[Replicate(), …])`"));
            }
        }
    }
    Ok(order)
}

/// The place behind the axes to the right that together cut `dim` into `split` parts.
fn after(spec: &DTensorSpec, order: &[(usize, usize)], dim: usize, split: u64) -> Result<usize> {
    let mut product = 1_u64;
    if split == 1 {
        return Ok(0);
    }
    for (place, (axis, cut)) in order.iter().enumerate() {
        if *cut == dim {
            product = product.saturating_mul(spec.mesh_shape.get(*axis).copied().unwrap_or(1));
        }
        if product == split {
            return Ok(place.saturating_add(1));
        }
    }
    Err(Error::unsupported(format!(
        "a strided placement of split factor {split} along dimension {dim}, which the axes to its right do not explain"
    )))
}

/// Whether all ranks hold the same.
pub(super) fn is_whole(spec: &DTensorSpec) -> bool {
    spec.placements.iter().all(|placement| *placement == TorchPlacement::Replicate)
}

/// The mesh by names, where its axes have names of the usual form.
pub(super) fn mesh(spec: &DTensorSpec) -> Option<Mesh> {
    let axes = names(spec)?.into_iter().zip(spec.mesh_shape.iter().copied()).collect();
    Mesh::new(axes).ok()
}

/// The placement as a rule for any mesh.
pub(super) fn rule(spec: &DTensorSpec) -> Option<PlacementRule> {
    let names = names(spec)?;
    let cuts = order(spec).ok()?;
    let cuts = cuts.into_iter().map(|(axis, dim)| Some((names.get(axis)?.clone(), dim)));
    PlacementRule::new(cuts.collect::<Option<Vec<_>>>()?, StageRule::All).ok()
}

fn names(spec: &DTensorSpec) -> Option<Vec<AxisName>> {
    let names = spec.mesh_names.as_ref().filter(|names| names.len() == spec.mesh_shape.len())?;
    names.iter().map(|name| AxisName::new(name).ok()).collect()
}

#[cfg(test)]
mod tests {
    use fqn::{Dims, Dtype, Shape};
    use proptest::prelude::*;

    use super::*;
    use crate::torch::{MeshRanks, StorageRef, TensorRef};

    fn shard(shape: &[u64], mesh: &[u64], placements: &[TorchPlacement], local: &[u64]) -> ShardRef {
        let local = TensorRef {
            dtype: Dtype::F32,
            storage: StorageRef { key: "0".to_owned(), bytes: u64::MAX },
            offset: 0,
            shape: Shape::new(local),
            strides: Shape::new(local).row_major_strides().unwrap(),
            requires_grad: false,
            is_parameter: false,
        };
        let spec = DTensorSpec {
            shape: Shape::new(shape),
            dtype: Dtype::F32,
            mesh_shape: Dims::from_slice(mesh),
            mesh_names: None,
            placements: placements.to_vec(),
            coordinate: None,
            rank: None,
            ranks: MeshRanks::Listed(Vec::new()),
        };
        ShardRef { local, spec }
    }

    #[test]
    fn fsdp_over_tp_cuts_tp_first() {
        let placements =
            [TorchPlacement::StridedShard { dim: 0, split: 2 }, TorchPlacement::Shard { dim: 0 }];
        let at = |dp, tp| region(&shard(&[8, 3], &[2, 2], &placements, &[2, 3]), &[dp, tp]).unwrap();
        assert_eq!([at(0, 0), at(1, 0), at(0, 1)].map(|r| r.offsets()[0]), [0, 2, 4]);
        let plain = [TorchPlacement::Shard { dim: 0 }, TorchPlacement::Shard { dim: 0 }];
        let at = |dp, tp| region(&shard(&[8, 3], &[2, 2], &plain, &[2, 3]), &[dp, tp]).unwrap();
        assert_eq!([at(0, 0), at(0, 1), at(1, 0)].map(|r| r.offsets()[0]), [0, 2, 4]);
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let odd = [TorchPlacement::StridedShard { dim: 0, split: 3 }, TorchPlacement::Shard { dim: 0 }];
        let error = region(&shard(&[8], &[2, 2], &odd, &[2]), &[0, 0]).unwrap_err();
        assert!(error.to_string().contains("split factor 3"), "{error}");
        let partial = [TorchPlacement::Partial { reduce: "sum".to_owned() }];
        let error = region(&shard(&[8], &[2], &partial, &[8]), &[0]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        let error = region(&shard(&[8], &[2], &[TorchPlacement::Shard { dim: 0 }], &[3]), &[0]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
    }

    fn placement(text: &str) -> TorchPlacement {
        let numbers = text.split(['(', ',', ')']).skip(1).filter_map(|number| number.parse().ok());
        match (text.split('(').next(), &numbers.collect::<Vec<_>>()[..]) {
            (Some("S"), [dim]) => TorchPlacement::Shard { dim: *dim },
            (Some("_S"), [dim, split]) => TorchPlacement::StridedShard { dim: *dim, split: *split },
            _ => TorchPlacement::Replicate,
        }
    }

    /// `distribute_tensor` and `fully_shard` cut an uneven dimension differently under one placement, which does not tell who did.
    #[test]
    fn a_part_is_placed_where_real_torch_took_it_from_or_refused() {
        let (mut placed, mut refused) = (0, 0);
        for case in fixtures::shardings() {
            let mesh: Vec<u64> = case.mesh.iter().map(|(_, extent)| *extent).collect();
            let placements: Vec<_> = case.placements.iter().map(|text| placement(text)).collect();
            for (rank, set) in (0_u64..).zip(&case.ranks) {
                let Some([part]) = set.map(|set| &case.shards[set][..]) else { continue };
                let (offsets, local): (Vec<_>, Vec<_>) =
                    part.iter().map(|(from, to)| (*from, to - from)).unzip();
                let mut left = rank;
                let mut at: Vec<u64> = mesh.iter().rev().map(|n| (left % n, left /= n).0).collect();
                at.reverse();
                match region(&shard(&case.shape, &mesh, &placements, &local), &at) {
                    Ok(found) => {
                        assert_eq!(found, Region::new(&offsets, &local).unwrap(), "rank {rank} of {case:?}");
                        placed += 1;
                    }
                    Err(error) => {
                        assert_eq!(case.how, "distribute_tensor", "{error}: rank {rank} of {case:?}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(placed > 1500 && refused < 20, "{placed} placed, {refused} refused");
    }

    #[test]
    fn an_empty_part_may_have_any_shape_without_elements() {
        let placements = [TorchPlacement::Shard { dim: 0 }, TorchPlacement::Shard { dim: 1 }];
        let at = |local: &[u64]| region(&shard(&[8, 3], &[2, 4], &placements, local), &[1, 3]);
        // As `fully_shard` leaves it, and as `distribute_tensor` does.
        for local in [[0, 0], [4, 0]] {
            assert_eq!(at(&local).unwrap(), Region::new(&[4, 3], &[4, 0]).unwrap());
        }
        assert_eq!(at(&[4, 1]).unwrap_err().kind(), crate::ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn the_parts_of_all_ranks_hold_every_row_once(rows in 0_u64..40, dp in 1_u64..5, tp in 1_u64..5, strided: bool) {
            let outer = if strided { TorchPlacement::StridedShard { dim: 0, split: tp } } else { TorchPlacement::Shard { dim: 0 } };
            let placements = [outer, TorchPlacement::Shard { dim: 0 }];
            let mut held = vec![0; usize::try_from(rows).unwrap()];
            for rank in 0..dp * tp {
                let coordinate = [rank / tp, rank % tp];
                let (first, second) = if strided { (1, 0) } else { (0, 1) };
                let sizes = [dp, tp];
                let (_, outer) = chunk(rows, sizes[first], coordinate[first]);
                let (_, len) = chunk(outer, sizes[second], coordinate[second]);
                let part = region(&shard(&[rows], &sizes, &placements, &[len]), &coordinate).unwrap();
                for row in part.offsets()[0]..part.offsets()[0] + part.extents()[0] {
                    held[usize::try_from(row).unwrap()] += 1;
                }
            }
            prop_assert!(held.iter().all(|count| *count == 1));
        }
    }
}
