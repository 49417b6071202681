//! Copies against an element-by-element model, transposed sources included, and buffers that do not hold the box.

use proptest::prelude::*;

use super::{CopyError, Strided, copy_region};
use crate::Region;

fn region(offsets: &[u64], extents: &[u64]) -> Region {
    Region::new(offsets, extents).unwrap()
}

/// Coordinates of all elements of a region, row-major.
fn points(region: &Region) -> Vec<Vec<u64>> {
    region.offsets().iter().zip(region.extents()).fold(vec![vec![]], |points, (offset, extent)| {
        let longer = |point: &Vec<u64>| {
            (*offset..offset + extent).map(|at| [point.as_slice(), &[at]].concat()).collect::<Vec<_>>()
        };
        points.iter().flat_map(longer).collect()
    })
}

fn index(point: &[u64], held: &Region, strides: &[u64]) -> usize {
    let dims = point.iter().zip(held.offsets()).zip(strides);
    usize::try_from(dims.map(|((at, base), stride)| (at - base) * stride).sum::<u64>()).unwrap()
}

/// A tensor's extents, source strides by permutation (maybe one expanded), and three regions of which one is in both.
#[derive(Debug)]
struct Case {
    what: Region,
    source: Region,
    target: Region,
    strides: Vec<u64>,
    row_major: Vec<u64>,
    element: usize,
}

/// Extent of the box, and what each buffer has before and after it.
type Dim = (u64, u64, u64, u64, u64);

fn case() -> impl Strategy<Value = Case> {
    let dim = (1_u64..6, 0_u64..3, 0_u64..3, 0_u64..3, 0_u64..3);
    let order = prop::collection::vec(any::<u32>(), 4);
    let element = prop::sample::select(vec![1_usize, 2, 3, 4, 8, 12, 16, 32]);
    (prop::collection::vec(dim, 0..5), order, any::<bool>(), element).prop_map(
        |(dims, order, expand, element)| {
            let of = |f: fn(&Dim) -> (u64, u64)| {
                let (offsets, extents): (Vec<u64>, Vec<u64>) = dims.iter().map(f).unzip();
                region(&offsets, &extents)
            };
            let source = of(|d| (5 - d.1, d.0 + d.1 + d.2));
            let target = of(|d| (5 - d.3, d.0 + d.3 + d.4));
            let what = of(|d| (5, d.0));
            let mut by: Vec<usize> = (0..dims.len()).collect();
            by.sort_by_key(|dim| order[*dim]);
            let (mut strides, mut step) = (vec![0; dims.len()], 1);
            for dim in by {
                strides[dim] = step;
                step *= source.extents()[dim];
            }
            if let Some(first) = strides.first_mut().filter(|_| expand) {
                *first = 0;
            }
            let shape: fqn::Shape = target.extents().iter().copied().collect();
            let row_major = shape.row_major_strides().unwrap().to_vec();
            Case { what, source, target, strides, row_major, element }
        },
    )
}

proptest! {
    #![proptest_config(crate::strategies::config())]

    #[test]
    fn a_copy_moves_the_elements_asked_for_and_touches_no_other(case in case()) {
        let Case { what, source, target, strides, row_major, element } = case;
        let reach = source.extents().iter().zip(&strides).map(|(e, s)| (e - 1) * s).sum::<u64>() + 1;
        let bytes: Vec<u8> = (0..usize::try_from(reach).unwrap() * element).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let blank = vec![255_u8; usize::try_from(target.elements()).unwrap() * element];
        let mut expected = blank.clone();
        for point in points(&what) {
            let from = index(&point, &source, &strides) * element;
            let to = index(&point, &target, &row_major) * element;
            expected[to..to + element].copy_from_slice(&bytes[from..from + element]);
        }
        let mut got = blank;
        let from = Strided::new(&bytes, &source, &strides).unwrap();
        copy_region(&what, &from, &mut got, &target, element).unwrap();
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_large_transpose_is_exact() {
    let (rows, columns) = (67_u64, 101_u64);
    let whole = region(&[0, 0], &[rows, columns]);
    let bytes: Vec<u8> = (0..rows * columns).flat_map(|n| u16::try_from(n).unwrap().to_le_bytes()).collect();
    let mut got = vec![0; bytes.len()];
    copy_region(&whole, &Strided::new(&bytes, &whole, &[1, rows]).unwrap(), &mut got, &whole, 2).unwrap();
    let expected: Vec<u8> = (0..rows)
        .flat_map(|r| (0..columns).flat_map(move |c| u16::try_from(c * rows + r).unwrap().to_le_bytes()))
        .collect();
    assert_eq!(got, expected);
}

#[test]
fn buffers_that_do_not_hold_the_box_are_refused_and_left_alone() {
    let (whole, part) = (region(&[0], &[4]), region(&[2], &[4]));
    let (bytes, mut target) = ([7_u8; 16], [0_u8; 16]);
    let from = Strided::row_major(&bytes, &whole);
    let refused = copy_region(&part, &from, &mut target, &whole, 4).unwrap_err();
    assert_eq!(refused.to_string(), "region [2..6] does not lie within the source's [0..4]");
    let refused = copy_region(&whole, &from, &mut target, &part, 4).unwrap_err();
    assert!(matches!(refused, CopyError::Outside { side: "target", .. }));
    let refused = copy_region(&whole, &from, &mut target[..15], &whole, 4).unwrap_err();
    assert_eq!(refused.to_string(), "the target holds 15 bytes, but region [0..4] reaches to byte 16");
    let far = Strided::new(&bytes, &whole, &[u64::MAX]).unwrap();
    assert!(matches!(
        copy_region(&whole, &far, &mut target, &whole, 4),
        Err(CopyError::Short { side: "source", .. })
    ));
    assert!(matches!(Strided::new(&bytes, &whole, &[1, 1]), Err(CopyError::Strides { .. })));
    assert_eq!(target, [0; 16]);
}
