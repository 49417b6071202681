//! What layers weigh, and stages that weigh alike.

use std::collections::BTreeMap;

use fqn::{Entry, Registry, StageRule};

use super::{MAX_LAYERS, StageError};

/// As many layers on each stage as can be; the first ones take one more.
pub(super) fn even(layers: usize, count: u64) -> Vec<u64> {
    let layers = layers as u64;
    (0..count).map(|stage| layers / count + u64::from(stage < layers % count)).collect()
}

/// Bytes of each layer and of what the ends hold besides.
pub(super) struct Weights {
    pub(super) layers: BTreeMap<u32, u64>,
    first: u64,
    last: u64,
}

impl Weights {
    pub(super) fn of(registry: &Registry) -> Result<Self, StageError> {
        let mut weights = Self { layers: BTreeMap::new(), first: 0, last: 0 };
        let mut stacks = BTreeMap::new();
        for entry in registry.entries() {
            weights.count(entry, entry.bytes().unwrap_or(u64::MAX), &mut stacks)?;
        }
        // Each layer's own is what all deeper stacks weigh together, so that no stack is gone through by itself.
        let (mut sum, mut deeper) = (0_u64, stacks.iter().rev().peekable());
        for layer in (0..stacks.keys().next_back().copied().unwrap_or(0)).rev() {
            while let Some((_, bytes)) = deeper.next_if(|(layers, _)| **layers > layer) {
                sum = sum.saturating_add(*bytes);
            }
            let own = weights.layers.entry(layer).or_default();
            *own = own.saturating_add(sum);
        }
        Ok(weights)
    }

    /// `stacks` takes what a layer of stacked tensors weighs, by their number of layers.
    fn count(
        &mut self,
        entry: &Entry,
        bytes: u64,
        stacks: &mut BTreeMap<u32, u64>,
    ) -> Result<(), StageError> {
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        let stage = entry.placement.as_ref().map(|rule| rule.stage);
        if let Some(StageRule::Layers(dim)) = stage {
            let layers = entry.shape.get(dim).copied().unwrap_or(0);
            let few = u32::try_from(layers).ok().filter(|_| layers <= MAX_LAYERS);
            let few = few.ok_or_else(|| StageError::TooManyLayers { tensor: entry.id(), layers })?;
            add(stacks.entry(few).or_default(), bytes.checked_div(layers).unwrap_or(0));
            return Ok(());
        }
        if let Some(layer) = entry.layer {
            add(self.layers.entry(layer).or_default(), bytes);
            return Ok(());
        }
        if matches!(stage, Some(StageRule::First | StageRule::FirstAndLast)) {
            add(&mut self.first, bytes);
        }
        if matches!(stage, Some(StageRule::Last | StageRule::FirstAndLast)) {
            add(&mut self.last, bytes);
        }
        Ok(())
    }

    /// Layers per stage whose heaviest stage is as light as can be: bisection on what a stage may weigh.
    pub(super) fn balanced(&self, count: u64) -> Vec<u64> {
        let total = self.layers.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let mut high = total.saturating_add(self.first).saturating_add(self.last);
        let mut low = 0;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.packed(count, middle).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.packed(count, high).unwrap_or_else(|| even(self.layers.len(), count))
    }

    /// Fills stages from the left with at most `limit` bytes each, leaving a layer for every later one.
    fn packed(&self, count: u64, limit: u64) -> Option<Vec<u64>> {
        let mut layers = self.layers.values().copied().peekable();
        let mut left = self.layers.len() as u64;
        let mut sizes = Vec::new();
        for stage in 0..count {
            let later = count - 1 - stage;
            let base = if stage == 0 { self.first } else { 0 };
            let mut weight = base.saturating_add(if later == 0 { self.last } else { 0 });
            let mut size = 0;
            while let Some(next) =
                layers.next_if(|bytes| left > later && weight.saturating_add(*bytes) <= limit)
            {
                (weight, size, left) = (weight.saturating_add(next), size + 1, left - 1);
            }
            if size == 0 {
                return None;
            }
            sizes.push(size);
        }
        (left == 0).then_some(sizes)
    }
}
