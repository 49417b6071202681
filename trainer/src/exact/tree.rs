//! Sums as aligned binary trees: leaves (0, 1), (2, 3), … are added, then the pairs of those, and so on; an odd last one
//! is carried up as it is.
//!
//! Invariants: the tree depends on the number of leaves alone, and the left operand is always the one of lower index, so
//! the bits depend neither on the order of arrival nor on who summed which subtree; with leaves in order, at most
//! log2(leaves) + 1 partial sums are kept. Gradients are never tracked.

use std::collections::BTreeMap;

use tch::Tensor;

use crate::{Error, Result};

/// The tree sum of `leaves`, in order.
///
/// # Errors
/// `Internal` for no leaves or different shapes.
pub fn sum(leaves: Vec<Tensor>) -> Result<Tensor> {
    let mut tree = TreeSum::new(leaves.len())?;
    for (index, leaf) in leaves.into_iter().enumerate() {
        tree.add(index, leaf)?;
    }
    tree.finish()
}

/// A tree sum whose leaves arrive one by one, in any order.
#[derive(Debug)]
pub struct TreeSum {
    leaves: usize,
    arrived: Vec<bool>,
    /// Finished nodes whose sibling has not come, by (level, index on the level).
    waiting: BTreeMap<(u32, usize), Node>,
}

/// A tensor, and whether it is ours to write to.
#[derive(Debug)]
struct Node {
    tensor: Tensor,
    fresh: bool,
}

impl TreeSum {
    /// The sum of `leaves` leaves.
    ///
    /// # Errors
    /// `Internal` for none.
    pub fn new(leaves: usize) -> Result<Self> {
        if leaves == 0 {
            return Err(Error::internal("a tree sum of no leaves"));
        }
        Ok(Self { leaves, arrived: vec![false; leaves], waiting: BTreeMap::new() })
    }

    /// Adds leaf `index`; its memory is not written to.
    ///
    /// # Errors
    /// `Internal` for a leaf that is outside, was added already, or has another shape than its sibling.
    pub fn add(&mut self, index: usize, leaf: Tensor) -> Result<()> {
        self.place(index, 1, Node { tensor: leaf, fresh: false })
    }

    /// Adds leaf `index`, whose memory nobody else uses: the sum may be made in it.
    ///
    /// # Errors
    /// As [`TreeSum::add`].
    pub fn add_fresh(&mut self, index: usize, leaf: Tensor) -> Result<()> {
        self.place(index, 1, Node { tensor: leaf, fresh: true })
    }

    /// Adds what another tree made of the leaves `first..first + count`.
    ///
    /// # Errors
    /// `Internal` for leaves that are no whole subtree of this tree, or as [`TreeSum::add`].
    pub fn add_block(&mut self, first: usize, count: usize, sum: Tensor) -> Result<()> {
        self.place(first, count, Node { tensor: sum, fresh: false })
    }

    /// Whether all leaves are here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.arrived.iter().all(|arrived| *arrived)
    }

    /// How many partial sums are kept now.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.waiting.len()
    }

    /// The sum.
    ///
    /// # Errors
    /// `Internal` when a leaf is missing: it is named.
    pub fn finish(mut self) -> Result<Tensor> {
        if let Some(missing) = self.arrived.iter().position(|arrived| !arrived) {
            return Err(Error::internal(format!(
                "a tree sum of {} leaves lacks leaf {missing}",
                self.leaves
            )));
        }
        let (_, root) =
            self.waiting.pop_last().ok_or_else(|| Error::internal("a tree sum without a root"))?;
        Ok(root.tensor)
    }

    fn place(&mut self, first: usize, count: usize, mut node: Node) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let (mut level, mut index) = self.claim(first, count)?;
        while (1_usize << level) < self.leaves {
            let begins = |at: usize| at << level;
            if index.is_multiple_of(2) && begins(index + 1) >= self.leaves {
                // No right sibling: carried up.
            } else if let Some(sibling) = self.waiting.remove(&(level, index ^ 1)) {
                node = if index.is_multiple_of(2) { join(node, sibling)? } else { join(sibling, node)? };
            } else {
                break;
            }
            (level, index) = (level + 1, index / 2);
        }
        self.waiting.insert((level, index), node);
        Ok(())
    }

    /// Marks leaves as arrived, and says which node of the tree they are.
    fn claim(&mut self, first: usize, count: usize) -> Result<(u32, usize)> {
        let whole = count.max(1).next_power_of_two();
        let end = first.saturating_add(count);
        let fits = count > 0 && end <= self.leaves && first.is_multiple_of(whole);
        if !fits || (count != whole && end != self.leaves) {
            return Err(Error::internal(format!(
                "leaves {first}..{end} are no subtree of a tree sum of {} leaves",
                self.leaves
            )));
        }
        let span = self.arrived.get_mut(first..end).unwrap_or_default();
        if let Some(at) = span.iter().position(|arrived| *arrived) {
            return Err(Error::internal(format!("leaf {} of a tree sum was added already", first + at)));
        }
        span.fill(true);
        Ok((whole.trailing_zeros(), first / whole))
    }
}

fn join(left: Node, right: Node) -> Result<Node> {
    let (a, b) = (left.tensor.size(), right.tensor.size());
    if a != b {
        return Err(Error::internal(format!("a tree sum of tensors {a:?} and {b:?}")));
    }
    let mut left = left;
    // Addition commutes to the bit, so either operand's memory will do.
    let tensor = match (left.fresh, right.fresh) {
        (true, _) => left.tensor.f_add_(&right.tensor)?,
        (false, true) => {
            let mut right = right;
            right.tensor.f_add_(&left.tensor)?
        }
        (false, false) => left.tensor.f_add(&right.tensor)?,
    };
    Ok(Node { tensor, fresh: true })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Values of very different size, so that another order gives other bits.
    fn leaves(count: usize) -> Vec<Tensor> {
        (0..u32::try_from(count).unwrap())
            .map(|at| {
                let values: Vec<f32> = (0..33_u32)
                    .map(|i| {
                        let h = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(at * 40_503) >> 7;
                        (h % 1999) as f32 * 10_f32.powi((h % 7) as i32 - 3) - 500.0
                    })
                    .collect();
                Tensor::from_slice(&values)
            })
            .collect()
    }

    fn shuffled(count: usize, seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        let mut state = seed | 1;
        for at in (1..count).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
        }
        order
    }

    /// The definition, in plain arithmetic.
    fn by_levels(mut row: Vec<Vec<f32>>) -> Vec<f32> {
        while row.len() > 1 {
            row = row
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => a.iter().zip(b).map(|(a, b)| a + b).collect(),
                    _ => pair[0].clone(),
                })
                .collect();
        }
        row.remove(0)
    }

    fn copies(leaves: &[Tensor]) -> Vec<Tensor> {
        leaves.iter().map(Tensor::copy).collect()
    }

    #[test]
    fn pairs_are_added_level_by_level() {
        for count in 1..=17 {
            let leaves = leaves(count);
            let plain = by_levels(leaves.iter().map(|t| Vec::<f32>::try_from(t).unwrap()).collect());
            assert_eq!(Vec::<f32>::try_from(sum(leaves).unwrap()).unwrap(), plain, "{count} leaves");
        }
    }

    #[test]
    fn any_order_of_arrival_gives_the_same_bits() {
        for count in [2, 3, 5, 8, 12, 16, 19] {
            let leaves = leaves(count);
            let whole = sum(copies(&leaves)).unwrap();
            for seed in 0..8_u8 {
                let mut tree = TreeSum::new(count).unwrap();
                for at in shuffled(count, u64::from(seed)) {
                    let leaf = leaves[at].copy();
                    if (at + usize::from(seed)).is_multiple_of(2) {
                        tree.add_fresh(at, leaf).unwrap();
                    } else {
                        tree.add(at, leaf).unwrap();
                    }
                }
                assert!(tree.is_complete());
                assert!(tree.finish().unwrap().equal(&whole), "{count} leaves, order {seed}");
            }
        }
    }

    #[test]
    fn aligned_blocks_summed_elsewhere_give_the_same_bits() {
        for count in [4, 6, 8, 16, 24] {
            let leaves = leaves(count);
            let whole = sum(copies(&leaves)).unwrap();
            for size in [1, 2, 4, 8].into_iter().filter(|size| *size <= count) {
                let blocks = count.div_ceil(size);
                for seed in 0..4 {
                    let mut tree = TreeSum::new(count).unwrap();
                    for block in shuffled(blocks, seed) {
                        let (first, end) = (block * size, (block * size + size).min(count));
                        let part = sum(copies(&leaves[first..end])).unwrap();
                        tree.add_block(first, end - first, part).unwrap();
                    }
                    assert!(tree.finish().unwrap().equal(&whole), "{count} leaves in blocks of {size}");
                }
                let tops: Vec<Tensor> =
                    leaves.chunks(size).map(|chunk| sum(copies(chunk)).unwrap()).collect();
                assert!(sum(tops).unwrap().equal(&whole), "a tree of block sums is the tree of all");
            }
        }
    }

    #[test]
    fn leaves_in_order_keep_a_logarithm_of_partial_sums() {
        let mut tree = TreeSum::new(64).unwrap();
        for (at, leaf) in leaves(64).into_iter().enumerate() {
            tree.add_fresh(at, leaf).unwrap();
            assert!(tree.kept() <= 7, "{} kept after leaf {at}", tree.kept());
        }
    }

    #[test]
    fn leaves_are_not_written_to_unless_they_are_given_away() {
        let leaves = leaves(4);
        let before = copies(&leaves);
        let _sum = sum(leaves.iter().map(Tensor::shallow_clone).collect()).unwrap();
        assert!(leaves.iter().zip(&before).all(|(a, b)| a.equal(b)));
    }

    #[test]
    fn what_is_missing_doubled_or_misaligned_is_named() {
        let ones = || Tensor::ones([2], (Kind::Float, Device::Cpu));
        let mut tree = TreeSum::new(6).unwrap();
        tree.add(1, ones()).unwrap();
        assert!(
            tree.add(1, ones()).unwrap_err().to_string().contains("leaf 1 of a tree sum was added already")
        );
        assert!(tree.add(6, ones()).unwrap_err().to_string().contains("no subtree"));
        assert!(tree.add_block(1, 2, ones()).unwrap_err().to_string().contains("leaves 1..3"));
        assert!(tree.add_block(2, 3, ones()).is_err());
        let wide = Tensor::ones([3], (Kind::Float, Device::Cpu));
        assert!(tree.add(0, wide).unwrap_err().to_string().contains("[3] and [2]"));
        assert!(TreeSum::new(0).is_err());
        assert!(TreeSum::new(2).unwrap().finish().unwrap_err().to_string().contains("lacks leaf 0"));
    }
}
