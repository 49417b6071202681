//! Planes: bytes of equal significance together. `W` bytes an element; what is left over at the end stays behind the planes.

/// The planes of `bytes`, into `planes`, which is as long.
pub(super) fn split(width: usize, bytes: &[u8], planes: &mut [u8]) {
    match width {
        2 => split_of::<2>(bytes, planes),
        4 => split_of::<4>(bytes, planes),
        8 => split_of::<8>(bytes, planes),
        _ => planes.copy_from_slice(bytes),
    }
}

/// The bytes that `planes` are the planes of, into `bytes`, which is as long.
pub(super) fn join(width: usize, planes: &[u8], bytes: &mut [u8]) {
    match width {
        2 => join_of::<2>(planes, bytes),
        4 => join_of::<4>(planes, bytes),
        8 => join_of::<8>(planes, bytes),
        _ => bytes.copy_from_slice(planes),
    }
}

fn split_of<const W: usize>(bytes: &[u8], planes: &mut [u8]) {
    let (cells, left) = bytes.as_chunks::<W>();
    let mut rest = planes;
    for significance in 0..W {
        let Some((plane, later)) = rest.split_at_mut_checked(cells.len()) else { return };
        // The mask tells the compiler that no cell is left.
        plane.iter_mut().zip(cells).for_each(|(to, cell)| *to = cell[significance & (W - 1)]);
        rest = later;
    }
    rest.iter_mut().zip(left).for_each(|(to, from)| *to = *from);
}

fn join_of<const W: usize>(planes: &[u8], bytes: &mut [u8]) {
    let (cells, left) = bytes.as_chunks_mut::<W>();
    let mut rest = planes;
    for significance in 0..W {
        let Some((plane, later)) = rest.split_at_checked(cells.len()) else { return };
        plane.iter().zip(&mut *cells).for_each(|(from, cell)| cell[significance & (W - 1)] = *from);
        rest = later;
    }
    left.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_of_equal_significance_come_together_and_the_rest_behind_them() {
        let mut planes = [0; 11];
        split(4, &[1, 2, 3, 4, 11, 12, 13, 14, 7, 8, 9], &mut planes);
        assert_eq!(planes, [1, 11, 2, 12, 3, 13, 4, 14, 7, 8, 9]);
        let mut planes = [0; 5];
        split(2, &[1, 2, 3, 4, 5], &mut planes);
        assert_eq!(planes, [1, 3, 2, 4, 5]);
        split(8, &[1, 2, 3, 4, 5], &mut planes);
        assert_eq!(planes, [1, 2, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn planes_join_to_what_was_split(
            width in prop::sample::select(vec![1_usize, 2, 4, 8]), bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let (mut planes, mut joined) = (vec![0; bytes.len()], vec![0; bytes.len()]);
            split(width, &bytes, &mut planes);
            join(width, &planes, &mut joined);
            prop_assert_eq!(joined, bytes);
        }
    }
}
