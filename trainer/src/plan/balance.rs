//! [`Balance`]: how many layers each stage gets: by number with weights for both ends, or so that the dearest stage is as
//! cheap as can be.

use serde::Serialize;

use super::ModelFacts;
use crate::{Error, Result};

/// What the parts of a model cost, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// The embedding.
    pub embedding: f64,
    /// A layer.
    pub layer: f64,
    /// Final norm and head.
    pub head: f64,
}

impl Costs {
    /// Parameters: what memory and traffic follow.
    #[must_use]
    pub const fn parameters(model: &ModelFacts) -> Self {
        Self { embedding: model.embedding as f64, layer: model.layer as f64, head: model.head as f64 }
    }

    /// Operations for one token, forward: what time follows. The embedding is a look-up and costs none.
    #[must_use]
    pub fn operations(model: &ModelFacts, seq: u64) -> Self {
        let sizes = &model.sizes;
        let scores = 4.0 * seq as f64 * (sizes.heads * sizes.head_dim) as f64;
        Self {
            embedding: 0.0,
            layer: 2.0 * model.layer as f64 + scores,
            head: 2.0 * (sizes.vocab * sizes.dim) as f64,
        }
    }

    /// From the times of whole stages and their layers: layers from the stages in the middle, the ends from what the
    /// first and the last take more.
    ///
    /// # Errors
    /// `Config` where they can't be told apart: fewer than three stages, or no layer in the middle.
    pub fn measured(stages: &[(u64, f64)]) -> Result<Self> {
        let refused = |said: &str| {
            Error::config(format!("{said}: the ends' times can't be told from the layers'"))
                .hint("measure a run of at least 3 stages, with layers on those in the middle")
        };
        let [first, middle @ .., last] = stages else {
            return Err(refused(&format!("{} stages were measured", stages.len())));
        };
        if middle.is_empty() {
            return Err(refused(&format!("{} stages were measured", stages.len())));
        }
        let (layers, time) = middle.iter().fold((0, 0.0), |(n, t), (layers, time)| (n + layers, t + time));
        if layers == 0 {
            return Err(refused("no stage in the middle has layers"));
        }
        let layer = time / layers as f64;
        let over = |(layers, time): &(u64, f64)| (time - layer * *layers as f64).max(0.0);
        Ok(Self { embedding: over(first), layer, head: over(last) })
    }
}

/// A split and how even it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// Layers of each stage.
    pub layers: Vec<u64>,
    /// Cost of each stage.
    pub costs: Vec<f64>,
    /// The dearest over the mean: a step takes this many times as long as it would if all were alike.
    pub ratio: f64,
}

impl Balance {
    /// Of a given split.
    #[must_use]
    pub fn of(layers: Vec<u64>, costs: &Costs) -> Self {
        let end = layers.len().saturating_sub(1);
        let cost = |(stage, count): (usize, &u64)| {
            let first = if stage == 0 { costs.embedding } else { 0.0 };
            let last = if stage == end { costs.head } else { 0.0 };
            costs.layer * *count as f64 + first + last
        };
        let each: Vec<f64> = layers.iter().enumerate().map(cost).collect();
        let mean = each.iter().sum::<f64>() / each.len().max(1) as f64;
        let most = each.iter().copied().fold(0.0, f64::max);
        Self { layers, costs: each, ratio: if mean > 0.0 { most / mean } else { 1.0 } }
    }
}

/// The trainer's rule, where no split is given: evenly as long as every stage gets a layer; else embedding and head count as a layer each.
///
/// # Errors
/// As [`split_evenly`].
pub fn split_as_trained(layers: u64, stages: u64) -> Result<Vec<u64>> {
    let ends = if layers >= stages { (0, 0) } else { (1, 1) };
    split_evenly(layers, stages, ends)
}

/// The split that is given, if it is one of these layers over so many stages; else the trainer's.
///
/// # Errors
/// As [`split_as_trained`].
pub(super) fn split_or_given(layers: u64, stages: u64, given: Option<&[u64]>) -> Result<Vec<u64>> {
    let fits = |split: &&[u64]| split.len() as u64 == stages && split.iter().sum::<u64>() == layers;
    given.filter(fits).map_or_else(|| split_as_trained(layers, stages), |split| Ok(split.to_vec()))
}

/// TorchTitan's rule: the ends count as so many layers, and the first stages get one more where it does not come out even.
///
/// # Errors
/// `Config` for more stages than layers and ends together, and for an end that weighs more than a stage has.
pub fn split_evenly(layers: u64, stages: u64, ends: (u64, u64)) -> Result<Vec<u64>> {
    let effective = layers.saturating_add(ends.0).saturating_add(ends.1);
    if stages == 0 || stages > effective {
        return Err(Error::config(format!(
            "{stages} stages for {layers} layers, with {} and {} more for embedding and head: some would be empty",
            ends.0, ends.1
        ))
        .hint(format!("take 1 to {effective} stages")));
    }
    let (base, more) = (effective / stages, effective % stages);
    let own = |stage: u64| base + u64::from(stage < more);
    let minus = |stage: u64| {
        let first = if stage == 0 { ends.0 } else { 0 };
        first + if stage + 1 == stages { ends.1 } else { 0 }
    };
    let fits = ends.0 <= base && ends.1 <= base;
    let counted: Option<Vec<u64>> = (0..stages).map(|stage| own(stage).checked_sub(minus(stage))).collect();
    counted.filter(|_| fits).ok_or_else(|| {
        Error::config(format!(
            "embedding or head weigh {} and {} layers, more than the {base} that a stage of {stages} has",
            ends.0, ends.1
        ))
        .hint("let the ends weigh less, or take fewer stages")
    })
}

/// The split whose dearest stage is the cheapest. Embedding and head are parts like layers: a stage may have nothing else.
///
/// # Errors
/// `Config` for more stages than parts.
pub fn split_by_costs(layers: u64, stages: u64, costs: &Costs) -> Result<Vec<u64>> {
    let parts: Vec<f64> = std::iter::once(costs.embedding)
        .chain((0..layers).map(|_| costs.layer))
        .chain([costs.head])
        .collect();
    let count = usize::try_from(stages).unwrap_or(usize::MAX);
    if count == 0 || count > parts.len() {
        return Err(Error::config(format!("{stages} stages for {layers} layers, embedding and head"))
            .hint(format!("take 1 to {} stages", parts.len())));
    }
    let cap = least_cap(&parts, count);
    Ok(fill(&parts, count, cap))
}

/// The least that the dearest of `stages` runs of `parts` can cost: found between the mean and the whole.
fn least_cap(parts: &[f64], stages: usize) -> f64 {
    let total: f64 = parts.iter().sum();
    let mut below = parts.iter().copied().fold(total / stages as f64, f64::max);
    if runs(parts, below) <= stages {
        return below;
    }
    let mut enough = total;
    // Sixty halvings are past the resolution of an f64.
    for _ in 0..60 {
        let middle = f64::midpoint(below, enough);
        if runs(parts, middle) <= stages { enough = middle } else { below = middle }
    }
    enough
}

/// Runs that parts fall into, none dearer than `cap`.
fn runs(parts: &[f64], cap: f64) -> usize {
    let (mut count, mut sum) = (1, 0.0);
    for part in parts {
        if sum > 0.0 && sum + part > cap * (1.0 + 1e-12) {
            (count, sum) = (count + 1, 0.0);
        }
        sum += part;
    }
    count
}

/// Layers of each stage: as many as `cap` lets in, but leaving a part for each stage behind, and no more than its share of
/// what is left, so that the last stages are not the only cheap ones.
fn fill(parts: &[f64], stages: usize, cap: f64) -> Vec<u64> {
    let (mut layers, mut next) = (Vec::with_capacity(stages), 0);
    for stage in 0..stages {
        let behind = stages - stage - 1;
        let mut left: f64 = parts.iter().skip(next).sum();
        let fair = left / (behind + 1) as f64;
        let (begin, mut sum) = (next, 0.0);
        while let Some(part) = parts.get(next) {
            let first = next == begin;
            let leaves = parts.len() - next > behind;
            let over = sum + part > cap * (1.0 + 1e-12);
            // Rounds to the fair share, unless what stays behind would then not fit.
            let enough = sum + part / 2.0 > fair * (1.0 + 1e-12);
            let rest_fits = runs(parts.get(next..).unwrap_or_default(), cap) <= behind;
            if !leaves || (!first && behind > 0 && (over || (enough && rest_fits))) {
                break;
            }
            sum += part;
            left -= part;
            next += 1;
        }
        let ends = usize::from(begin == 0 && next > 0) + usize::from(next == parts.len() && next > begin);
        layers.push((next - begin).saturating_sub(ends) as u64);
    }
    layers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn torchtitans_rule_gives_its_published_splits() {
        let split = |layers, stages| split_evenly(layers, stages, (1, 1)).unwrap();
        assert_eq!(split(32, 4), [8, 9, 8, 7]);
        assert_eq!(split(32, 8), [4, 5, 4, 4, 4, 4, 4, 3]);
        assert_eq!(split(48, 4), [12, 13, 12, 11]);
        assert_eq!(split(6, 8), [0, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(split_evenly(48, 4, (0, 0)).unwrap(), [12; 4]);
        assert!(split_evenly(6, 9, (1, 1)).unwrap_err().hint_text().unwrap().contains("1 to 8"));
        assert!(split_evenly(6, 4, (3, 1)).unwrap_err().to_string().contains("weigh 3 and 1"));
    }

    #[test]
    fn a_dear_head_takes_layers_from_the_last_stage() {
        let costs = Costs { embedding: 0.0, layer: 1.0, head: 4.0 };
        let split = split_by_costs(12, 4, &costs).unwrap();
        assert_eq!(split, [4, 4, 4, 0]);
        assert!((Balance::of(split, &costs).ratio - 1.0).abs() < 1e-9);
        let even = Balance::of(vec![3; 4], &costs);
        assert!((even.ratio - 7.0 / 4.0).abs() < 1e-9);
    }

    #[test]
    fn measured_stages_tell_layers_and_ends_apart_and_two_stages_do_not() {
        let costs = Costs::measured(&[(8, 9.0), (9, 9.0), (8, 8.0), (7, 12.0)]).unwrap();
        assert!((costs.layer - 1.0).abs() < 1e-9 && (costs.embedding - 1.0).abs() < 1e-9);
        assert!((costs.head - 5.0).abs() < 1e-9);
        let error = Costs::measured(&[(4, 1.0), (4, 1.0)]).unwrap_err();
        assert!(error.to_string().contains("2 stages were measured"), "{error}");
        assert!(Costs::measured(&[(4, 1.0), (0, 0.0), (4, 1.0)]).is_err());
    }

    proptest! {
        #[test]
        fn every_layer_is_on_a_stage_and_no_other_split_has_a_cheaper_dearest_one(
            layers in 1_u64..14,
            stages in 1_u64..5,
            embedding in 0.0_f64..5.0,
            head in 0.0_f64..9.0,
        ) {
            let stages = stages.min(layers + 2);
            let costs = Costs { embedding, layer: 1.0, head };
            let split = split_by_costs(layers, stages, &costs).unwrap();
            prop_assert_eq!(split.iter().sum::<u64>(), layers);
            prop_assert_eq!(split.len() as u64, stages);
            let dearest = |split: Vec<u64>| Balance::of(split, &costs).costs.into_iter().fold(0.0, f64::max);
            let ours = dearest(split.clone());
            // All splits into contiguous runs, every stage with a layer or an end.
            let mut all = vec![vec![]];
            for _ in 1..stages {
                all = all.into_iter().flat_map(|head: Vec<u64>| {
                    let left = layers - head.iter().sum::<u64>();
                    (0..=left).map(move |n| head.iter().copied().chain([n]).collect())
                }).collect();
            }
            for mut other in all {
                other.push(layers - other.iter().sum::<u64>());
                prop_assert!(ours <= dearest(other.clone()) + 1e-9, "{split:?} against {other:?}");
            }
        }
    }
}
