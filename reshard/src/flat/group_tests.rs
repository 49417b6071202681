//! Flat buffers of several tensors: against torch's own, and back to the tensors.

use fqn::{Dtype, Shape};
use proptest::prelude::*;

use super::{FlatBox, FlatError, FlatGroup, FlatPadding, boxes, ranges};
use crate::{Region, Strided, copy_region, coverage, strategies};

/// The value of an element: no two of a group are alike while they are few.
fn value(tensor: usize, at: u64) -> u32 {
    u32::try_from(tensor as u64 * 1_000_003 + at + 1).unwrap()
}

/// Every rank's buffer, made element by element from the plain definition: tensors in a row, cut into shares.
fn buffers(group: &FlatGroup, whole: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let share = usize::try_from(group.share()).unwrap();
    let fill = |rank| {
        let mut buffer = vec![0; share];
        for piece in group.pieces(rank) {
            for (nth, at) in piece.elements.clone().enumerate() {
                let place = &mut buffer[usize::try_from(piece.at).unwrap() + nth];
                assert_eq!(std::mem::replace(place, whole[piece.tensor][usize::try_from(at).unwrap()]), 0);
            }
        }
        buffer
    };
    (0..group.ranks()).map(fill).collect()
}

fn wholes(group: &FlatGroup) -> Vec<Vec<u32>> {
    let tensors = group.shapes().iter().enumerate();
    tensors
        .map(|(tensor, shape)| (0..shape.elements().unwrap()).map(|at| value(tensor, at)).collect())
        .collect()
}

fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

proptest! {
    #![proptest_config(strategies::config())]

    #[test]
    fn flat_buffers_lead_back_to_the_tensors_box_by_box(group in strategies::flat_group()) {
        let whole = wholes(&group);
        let buffers = buffers(&group, &whole);
        let mut back: Vec<Vec<u8>> = whole.iter().map(|whole| vec![0; whole.len() * 4]).collect();
        let mut regions: Vec<Vec<Region>> = vec![Vec::new(); whole.len()];
        for (rank, buffer) in buffers.iter().enumerate() {
            for FlatBox { tensor, region, at } in group.boxes(rank as u64).unwrap() {
                let (from, len) = (usize::try_from(at).unwrap(), usize::try_from(region.elements()).unwrap());
                let packed = bytes(&buffer[from..from + len]);
                let of = Region::whole(&group.shapes()[tensor]).unwrap();
                copy_region(&region, &Strided::row_major(&packed, &region), &mut back[tensor], &of, 4).unwrap();
                regions[tensor].push(region);
            }
        }
        for ((shape, regions), (back, whole)) in group.shapes().iter().zip(&regions).zip(back.iter().zip(&whole)) {
            prop_assert_eq!(coverage::check(shape, regions), Ok(()));
            prop_assert_eq!(back, &bytes(whole));
        }
    }

    #[test]
    fn pieces_and_padding_tile_every_buffer_and_boxes_are_their_pieces(group in strategies::flat_group()) {
        for rank in 0..group.ranks() {
            let mut covered: Vec<_> = group.padding(rank);
            for piece in group.pieces(rank) {
                covered.push(piece.at..piece.at + (piece.elements.end - piece.elements.start));
                let shape = &group.shapes()[piece.tensor];
                let cut = boxes(shape, piece.elements.clone()).unwrap();
                prop_assert_eq!(ranges(shape, &cut).unwrap(), vec![piece.elements.clone()]);
            }
            covered.sort_by_key(|range| range.start);
            let end = covered.iter().try_fold(0, |at, range| (range.start == at).then_some(range.end));
            prop_assert_eq!(end, Some(group.share()));
        }
        prop_assert_eq!(group.pieces(group.ranks()).count(), 0);
    }

    #[test]
    fn elements_are_found_where_pieces_have_them(
        group in strategies::flat_group(), (which, a, b) in (any::<usize>(), any::<u64>(), any::<u64>())
    ) {
        if group.shapes().is_empty() {
            return Ok(());
        }
        let tensor = which % group.shapes().len();
        let count = group.shapes()[tensor].elements().unwrap();
        let (a, b) = (a % (count + 1), b % (count + 1));
        let asked = a.min(b)..a.max(b);
        let found: Vec<(u64, u64, u64)> = group
            .holders(tensor, asked.clone())
            .flat_map(|(rank, piece)| piece.elements.zip(piece.at..).map(move |(at, place)| (rank, at, place)))
            .collect();
        let scan = (0..group.ranks()).flat_map(|rank| {
            let pieces = group.pieces(rank).filter(|piece| piece.tensor == tensor).collect::<Vec<_>>();
            pieces.into_iter().flat_map(move |p| p.elements.zip(p.at..).map(move |(at, place)| (rank, at, place)))
        });
        prop_assert_eq!(found, scan.filter(|(_, at, _)| asked.contains(at)).collect::<Vec<_>>());
    }
}

fn shapes(list: &[&[u64]]) -> Vec<Shape> {
    list.iter().map(|shape| Shape::new(shape)).collect()
}

/// Tensor, first and last element, and place in the buffer of every piece.
fn told(group: &FlatGroup, rank: u64) -> Vec<(usize, u64, u64, u64)> {
    group.pieces(rank).map(|p| (p.tensor, p.elements.start, p.elements.end - 1, p.at)).collect()
}

#[test]
fn a_flat_parameter_is_cut_and_padded_as_torch_cuts_it() {
    // What torch 2.13 says of Linear(3, 5), Linear(5, 1, bias=False), Linear(1, 7), of `_shard_param_infos`.
    let model = || shapes(&[&[5, 3], &[5], &[1, 5], &[7, 1], &[7]]);
    let aligned = FlatGroup::fsdp1(model(), 3, Some(Dtype::F32)).unwrap();
    assert_eq!(aligned.share(), 16);
    assert_eq!(told(&aligned, 0), [(0, 0, 14, 0)]);
    assert_eq!(told(&aligned, 1), [(1, 0, 4, 0), (2, 0, 4, 8)]);
    assert_eq!(told(&aligned, 2), [(3, 0, 6, 0), (4, 0, 6, 8)]);
    assert_eq!(aligned.padding(1), [5..8, 13..16]);
    let plain = FlatGroup::fsdp1(model(), 3, None).unwrap();
    assert_eq!(plain.share(), 13);
    assert_eq!(told(&plain, 1), [(0, 13, 14, 0), (1, 0, 4, 2), (2, 0, 4, 7), (3, 0, 0, 12)]);
    assert_eq!(told(&plain, 2), [(3, 1, 6, 0), (4, 0, 6, 6)]);
    let four = FlatGroup::fsdp1(model(), 4, Some(Dtype::F32)).unwrap();
    assert_eq!(told(&four, 1), [(0, 12, 14, 0), (1, 0, 4, 4)]);
    assert_eq!(told(&four, 3), [(3, 4, 6, 0), (4, 0, 6, 4)]);
}

/// One stretch of padding.
fn one(range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    std::iter::once(range).collect()
}

#[test]
fn zero_pads_the_tail_of_a_group_and_stage_three_every_tensor() {
    // 26 elements on 4 ranks are padded to 32, a multiple of 2 × 4: the last rank has 2 of them and 6 of padding.
    let group = FlatGroup::zero(shapes(&[&[4, 5], &[6]]), 4).unwrap();
    assert_eq!((group.share(), told(&group, 3)), (8, vec![(1, 4, 5, 0)]));
    assert_eq!(group.padding(3), one(2..8));
    // Padding may span several of the last ranks.
    let tiny = FlatGroup::zero(shapes(&[&[3]]), 8).unwrap();
    assert_eq!((tiny.share(), tiny.pieces(1).count(), tiny.padding(2)), (2, 1, one(0..2)));
    let each = FlatGroup::each(shapes(&[&[2, 5], &[], &[3]]), 4).unwrap();
    assert_eq!(each.share(), 5);
    assert_eq!(told(&each, 0), [(0, 0, 2, 0), (1, 0, 0, 3), (2, 0, 0, 4)]);
    assert_eq!(told(&each, 3), [(0, 9, 9, 0)]);
    assert_eq!(each.padding(3), one(1..5));
    let text: Vec<String> = each.boxes(1).unwrap().iter().map(|b| format!("{}@{}", b.region, b.at)).collect();
    assert_eq!(text, ["[0..1, 3..5]@0", "[1..2, 0..1]@2", "[1..2]@4"]);
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let padding = |start, len| FlatGroup::joined(shapes(&[&[4]]), 2, FlatPadding { start, len });
    assert_eq!(padding(0, 1), Err(FlatError::Alignment));
    assert_eq!(padding(1, 0), Err(FlatError::Alignment));
    assert_eq!(FlatGroup::zero(shapes(&[&[4]]), 0), Err(FlatError::Alignment));
    assert_eq!(FlatGroup::each(shapes(&[&[4]]), 0), Err(FlatError::NoRanks));
    assert_eq!(FlatGroup::fsdp1(shapes(&[&[4]]), 2, Some(Dtype::F4E2M1)), Err(FlatError::Alignment));
    let large = shapes(&[&[u64::MAX], &[1]]);
    assert_eq!(FlatGroup::zero(large.clone(), 2), Err(FlatError::GroupTooLarge));
    assert_eq!(FlatGroup::each(large, 2), Err(FlatError::GroupTooLarge));
    assert!(matches!(FlatGroup::each(shapes(&[&[u64::MAX, 2]]), 2), Err(FlatError::TooLarge(_))));
}
