//! Assemblies on real bytes, against the elements counted one by one, and together with resharding.

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use proptest::prelude::*;

use super::{Assembly, AssemblyError, AssemblyPart, Strand};
use crate::{Layout, Moves, Region, StageSplit, Strided, copy_region, coverage, strategies};

fn len(shape: &[u64]) -> usize {
    usize::try_from(shape.iter().product::<u64>()).unwrap()
}

/// Tensors of bytes, no two elements alike while there are few.
fn tensors(shapes: &[Shape]) -> Vec<Vec<u8>> {
    let mut next = 0_u8;
    let mut fill = |shape: &Shape| {
        (0..len(shape))
            .map(|_| {
                next = next.wrapping_mul(5).wrapping_add(17);
                next
            })
            .collect()
    };
    shapes.iter().map(&mut fill).collect()
}

/// A box of a tensor, packed.
fn cut(bytes: &[u8], shape: &Shape, region: &Region) -> Vec<u8> {
    let mut out = vec![0; len(region.extents())];
    let whole = Region::whole(shape).unwrap();
    copy_region(region, &Strided::row_major(bytes, &whole), &mut out, region, 1).unwrap();
    out
}

/// Puts a packed box into a packed target.
fn put(bytes: &[u8], region: &Region, target: &mut [u8], of: &Region) {
    copy_region(region, &Strided::row_major(bytes, region), target, of, 1).unwrap();
}

fn assembled(assembly: &Assembly, sources: &[(Shape, Vec<u8>)], target: &Region) -> Vec<u8> {
    let mut out = vec![0; len(target.extents())];
    for AssemblyPart { source, from, to } in assembly.of(target) {
        let (shape, bytes) = &sources[source];
        put(&cut(bytes, shape, &from), &to, &mut out, target);
    }
    out
}

fn whole(shape: &Shape) -> Region {
    Region::whole(shape).unwrap()
}

/// Sources that differ along one dimension only, that dimension, and a number of groups that divides them.
fn sources() -> impl Strategy<Value = (Vec<Shape>, usize, u64)> {
    let shape = prop::collection::vec(prop_oneof![1 => Just(0_u64), 2 => Just(1_u64), 5 => 2_u64..6], 1..=4);
    (shape, any::<usize>(), 1_u64..4, prop::collection::vec(0_u64..4, 1..5)).prop_map(
        |(shape, axis, groups, steps)| {
            let axis = axis % shape.len();
            let of = |step: u64| {
                shape.iter().enumerate().map(|(d, n)| if d == axis { step * groups } else { *n }).collect()
            };
            (steps.into_iter().map(of).collect(), axis, groups)
        },
    )
}

proptest! {
    #![proptest_config(strategies::config())]

    #[test]
    fn interleaved_groups_are_each_sources_rows_in_turn_and_lead_back((shapes, axis, groups) in sources()) {
        let assembly = Assembly::interleave(&shapes, axis, groups).unwrap();
        let bytes: Vec<(Shape, Vec<u8>)> = shapes.iter().cloned().zip(tensors(&shapes)).collect();
        let fused = assembled(&assembly, &bytes, &whole(assembly.shape()));
        // Row by row: group, then source, then the rows of that source in the group.
        let rows = (0..groups).flat_map(|group| {
            shapes.iter().enumerate().flat_map(move |(source, shape)| {
                let step = shape[axis] / groups;
                (group * step..(group + 1) * step).map(move |row| (source, row))
            })
        });
        for (at, (source, row)) in rows.enumerate() {
            let slab = |shape: &Shape, row: u64| {
                let mut offsets = vec![0; shape.rank()];
                let mut extents = shape.to_vec();
                (offsets[axis], extents[axis]) = (row, 1);
                Region::new(&offsets, &extents).unwrap()
            };
            let (shape, of) = &bytes[source];
            prop_assert_eq!(
                cut(&fused, assembly.shape(), &slab(assembly.shape(), at as u64)),
                cut(of, shape, &slab(shape, row))
            );
        }
        let back = assembly.inverse(&shapes).unwrap();
        let fused = [(assembly.shape().clone(), fused)];
        for (back, (shape, of)) in back.iter().zip(&bytes) {
            prop_assert_eq!(&assembled(back, &fused, &whole(shape)), of);
        }
    }

    #[test]
    fn stacked_tensors_are_their_slices_and_lead_back(shape in strategies::shape(), count in 1_usize..5, axis in any::<usize>()) {
        let (shapes, axis) = (vec![shape.clone(); count], axis % (shape.rank() + 1));
        let assembly = Assembly::stack(&shapes, axis).unwrap();
        let bytes: Vec<(Shape, Vec<u8>)> = shapes.iter().cloned().zip(tensors(&shapes)).collect();
        let stacked = assembled(&assembly, &bytes, &whole(assembly.shape()));
        let inner: usize = len(&shape[axis..]);
        let outer: usize = len(&shape[..axis]);
        let mut expected = Vec::new();
        for block in 0..outer {
            for (_, of) in &bytes {
                expected.extend_from_slice(&of[block * inner..(block + 1) * inner]);
            }
        }
        prop_assert_eq!(&stacked, &expected);
        let stacked = [(assembly.shape().clone(), stacked)];
        for (back, (shape, of)) in assembly.inverse(&shapes).unwrap().iter().zip(&bytes) {
            prop_assert_eq!(&assembled(back, &stacked, &whole(shape)), of);
        }
    }

    #[test]
    fn a_stack_of_stacks_is_made_of_the_members_of_both_and_a_slice_of_it_too(
        shape in prop::collection::vec(1_u64..4, 0..3), (experts, layers) in (1_usize..4, 1_usize..4),
        (inner, outer, out) in (any::<usize>(), any::<usize>(), any::<usize>()),
    ) {
        let shape = Shape::new(&shape);
        let members = vec![shape.clone(); experts * layers];
        let bytes: Vec<(Shape, Vec<u8>)> = members.iter().cloned().zip(tensors(&members)).collect();
        let of_experts = Assembly::stack(&members[..experts], inner % (shape.rank() + 1)).unwrap();
        let stacks = vec![of_experts.shape().clone(); layers];
        // Members of layer n are those from n × experts on.
        let moved = |layer: usize| of_experts.through(|at| Strand::Whole(layer * experts + at)).unwrap();
        let each: Vec<Assembly> = (0..layers).map(moved).collect();
        let both = Assembly::stack(&stacks, outer % (shape.rank() + 2)).unwrap();
        let direct = both.through(|at| Strand::Made(&each[at])).unwrap();
        let middle: Vec<(Shape, Vec<u8>)> =
            each.iter().map(|one| (one.shape().clone(), assembled(one, &bytes, &whole(one.shape())))).collect();
        let expected = assembled(&both, &middle, &whole(both.shape()));
        prop_assert_eq!(&assembled(&direct, &bytes, &whole(direct.shape())), &expected);
        let axis = out % (shape.rank() + 2);
        let at = both.shape()[axis] - 1;
        let slice = Assembly::slice(both.shape(), axis, at).unwrap();
        let threaded = slice.through(|_| Strand::Made(&direct)).unwrap();
        let stacked = [(both.shape().clone(), expected)];
        prop_assert_eq!(
            assembled(&threaded, &bytes, &whole(slice.shape())),
            assembled(&slice, &stacked, &whole(slice.shape()))
        );
    }

    #[test]
    fn a_box_of_an_assembled_tensor_is_boxes_of_its_sources(
        (shapes, axis, groups) in sources(), seed in prop::collection::vec((0_u64..100, 0_u64..100), 4)
    ) {
        let assembly = Assembly::interleave(&shapes, axis, groups).unwrap();
        let shape = assembly.shape().clone();
        let offsets: Vec<u64> = shape.iter().zip(&seed).map(|(n, s)| s.0 % (n + 1)).collect();
        let extents: Vec<u64> = shape.iter().zip(&offsets).zip(&seed).map(|((n, o), s)| s.1 % (n - o + 1)).collect();
        let target = Region::new(&offsets, &extents).unwrap();
        let parts = assembly.of(&target);
        let inside: Vec<Region> = parts.iter().map(|part| part.to.relative_to(&target).unwrap()).collect();
        prop_assert_eq!(coverage::check(&Shape::new(&extents), &inside), Ok(()));
        for part in &parts {
            prop_assert!(part.from.fits(&shapes[part.source]));
            prop_assert_eq!(part.forward(&part.from), Some(part.to.clone()));
        }
        let bytes: Vec<(Shape, Vec<u8>)> = shapes.iter().cloned().zip(tensors(&shapes)).collect();
        let all = assembled(&assembly, &bytes, &whole(&shape));
        prop_assert_eq!(assembled(&assembly, &bytes, &target), cut(&all, &shape, &target));
    }
}

fn layout(shape: &Shape, rule: &str, mesh: &str) -> Vec<Region> {
    let mut entry = Entry::new(Fqn::new("w").unwrap(), Role::Param, Dtype::U8, shape.clone());
    entry.placement = Some(rule.parse().unwrap());
    let mut registry = Registry::new();
    registry.push(entry).unwrap();
    let layout = Layout::new(&registry, &mesh.parse().unwrap(), &StageSplit::Auto).unwrap();
    layout.shards(0).map(|(shard, _)| shard.region).collect()
}

#[test]
fn experts_apart_on_one_mesh_become_a_stacked_tensor_on_another() {
    // Five experts of 6 × 4, each cut over tp=2 in rows and dp=2 in columns; stacked, cut over ep=2, then rows over tp=3.
    let shapes = vec![Shape::new(&[6, 4]); 5];
    let (sources, chunks) = (tensors(&shapes), layout(&shapes[0], "tp:0,dp:1", "dp=2,tp=2"));
    let assembly = Assembly::stack(&shapes, 0).unwrap();
    let moves = Moves::new(&chunks);
    let everything: Vec<(Shape, Vec<u8>)> = shapes.iter().cloned().zip(sources.clone()).collect();
    let expected = assembled(&assembly, &everything, &whole(assembly.shape()));
    for target in layout(assembly.shape(), "ep:0,tp:1", "ep=2,tp=3") {
        let mut out = vec![0; len(target.extents())];
        for part in assembly.of(&target) {
            for step in moves.of(&part.from).unwrap() {
                // Only what a chunk holds is read.
                let chunk = cut(&sources[part.source], &shapes[0], &chunks[step.source]);
                let mut packed = vec![0; len(step.region.extents())];
                let from = Strided::row_major(&chunk, &chunks[step.source]);
                copy_region(&step.region, &from, &mut packed, &step.region, 1).unwrap();
                put(&packed, &part.forward(&step.region).unwrap(), &mut out, &target);
            }
        }
        assert_eq!(out, cut(&expected, assembly.shape(), &target), "{target}");
    }
}

#[test]
fn what_does_not_make_a_tensor_is_refused() {
    let shape = |dims: &[u64]| Shape::new(dims);
    let text = |result: Result<Assembly, AssemblyError>| result.unwrap_err().to_string();
    assert_eq!(
        text(Assembly::concat(&[shape(&[4, 2]), shape(&[4, 3])], 0)),
        "tensors of shapes 4x2 and 4x3 can't be joined along dimension 0"
    );
    assert_eq!(
        text(Assembly::interleave(&[shape(&[6]), shape(&[4])], 0, 3)),
        "3 groups do not divide the 4 rows of shape 4"
    );
    assert!(text(Assembly::concat(&[], 0)).contains("no dimension 0"));
    assert!(text(Assembly::stack(&[shape(&[2])], 2)).contains("no dimension 2"));
    assert!(text(Assembly::stack(&[shape(&[2]), shape(&[3])], 0)).contains("can't be joined"));
    assert!(text(Assembly::slice(&shape(&[2, 3]), 1, 3)).contains("no dimension 1"));
    assert!(text(Assembly::slice(&shape(&[]), 0, 0)).contains("no dimension 0"));
    let region = |o: &[u64], e: &[u64]| Region::new(o, e).unwrap();
    let part = AssemblyPart { source: 0, from: region(&[0], &[3]), to: region(&[0, 0], &[1, 4]) };
    assert!(text(Assembly::new(shape(&[1, 4]), vec![part])).contains("not the same elements"));
    let short = AssemblyPart { source: 0, from: region(&[0], &[3]), to: region(&[0, 0], &[1, 3]) };
    assert!(text(Assembly::new(shape(&[1, 4]), vec![short])).contains("do not tile it"));
}
