//! [`Step`]: one split → permute → merge over row-major positions, in canonical form.

use serde::{Deserialize, Serialize};

use super::RegionError;
use crate::{Dims, Shape};

/// Canonical: no factor of 1, no two neighbours that stay neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub(super) struct Step {
    factors: Dims,
    order: Vec<usize>,
    /// For each factor of the source, its stride in the target.
    strides: Dims,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    factors: Vec<u64>,
    order: Vec<usize>,
}

impl Step {
    /// # Errors
    /// An order that is no permutation of the factors' positions, or factors beyond 64 bits.
    pub(super) fn new(factors: &[u64], order: &[usize]) -> Result<Self, RegionError> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if factors.len() != order.len() || !sorted.into_iter().eq(0..factors.len()) {
            return Err(RegionError::Order(order.to_vec()));
        }
        if Shape::new(factors).elements().is_none() {
            let shape = Shape::new(factors);
            return Err(RegionError::Elements { source_shape: shape.clone(), target: shape });
        }
        Ok(Self::canonical(factors, order))
    }

    fn canonical(factors: &[u64], order: &[usize]) -> Self {
        let extent = |at: usize| factors.get(at).copied().unwrap_or(1);
        // Runs of source factors that follow each other in the target too, in target order.
        let mut blocks: Vec<(usize, usize, u64)> = Vec::new();
        let kept = |at: &usize| extent(*at) != 1;
        let next = |after: usize| (after + 1..factors.len()).find(kept);
        for at in order.iter().copied().filter(kept) {
            match blocks.last_mut() {
                Some(block) if next(block.1) == Some(at) => {
                    block.1 = at;
                    block.2 = block.2.saturating_mul(extent(at));
                }
                _ => blocks.push((at, at, extent(at))),
            }
        }
        let mut by_source: Vec<usize> = (0..blocks.len()).collect();
        by_source.sort_by_key(|&i| blocks.get(i).map(|b| b.0));
        let factors: Dims = by_source.iter().filter_map(|&i| blocks.get(i)).map(|b| b.2).collect();
        let mut order = vec![0; by_source.len()];
        for (source, &target) in by_source.iter().enumerate() {
            if let Some(place) = order.get_mut(target) {
                *place = source;
            }
        }
        let strides = target_strides(&factors, &order);
        Self { factors, order, strides }
    }

    pub(super) fn is_identity(&self) -> bool {
        self.order.iter().enumerate().all(|(at, &source)| at == source)
    }

    pub(super) fn elements(&self) -> Option<u64> {
        Shape::from(self.factors.clone()).elements()
    }

    pub(super) fn inverse(&self) -> Self {
        let factors: Dims = self.order.iter().filter_map(|&at| self.factors.get(at)).copied().collect();
        let mut order = vec![0; self.order.len()];
        for (target, &source) in self.order.iter().enumerate() {
            if let Some(place) = order.get_mut(source) {
                *place = target;
            }
        }
        Self::canonical(&factors, &order)
    }

    /// Row-major position in the target of position `at` of the source.
    pub(super) fn map(&self, mut at: u64) -> u64 {
        let mut target = 0;
        for (&factor, &stride) in self.factors.iter().zip(&self.strides).rev() {
            target += (at % factor.max(1)) * stride;
            at /= factor.max(1);
        }
        target
    }

    /// Elements of the innermost run that stays innermost; 1 if none does.
    pub(super) fn run(&self) -> u64 {
        match (self.order.last(), self.factors.last()) {
            (Some(&last), Some(&run)) if last + 1 == self.factors.len() => run,
            (None, _) => u64::MAX,
            _ => 1,
        }
    }
}

fn target_strides(factors: &[u64], order: &[usize]) -> Dims {
    let mut strides = Dims::from_elem(1, factors.len());
    let mut step = 1_u64;
    for &source in order.iter().rev() {
        if let Some(stride) = strides.get_mut(source) {
            *stride = step;
        }
        step = step.saturating_mul(factors.get(source).copied().unwrap_or(1).max(1));
    }
    strides
}

impl From<Step> for Raw {
    fn from(step: Step) -> Self {
        Self { factors: step.factors.to_vec(), order: step.order }
    }
}

impl TryFrom<Raw> for Step {
    type Error = RegionError;
    fn try_from(raw: Raw) -> Result<Self, RegionError> {
        Self::new(&raw.factors, &raw.order)
    }
}
