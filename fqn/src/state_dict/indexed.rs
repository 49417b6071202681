//! Optimizer state by index: which parameter each index is.
//!
//! torch numbers parameters over `param_groups` in the order in which the optimizer was given them. Names prove it
//! (`param_names`, torch ≥ 2.6 with named parameters); otherwise an order is believed only if it agrees in count and
//! in the shape of every slot, and no other usual order does.

use std::collections::HashMap;

use super::ParamGroup;
use crate::Shape;

/// A parameter of the model, in saved order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter<'a> {
    pub name: &'a str,
    pub shape: &'a Shape,
}

/// Names by index and how they were found, or why they could not be.
pub(super) type Resolved<'a> = Result<(HashMap<u64, &'a str>, String), String>;

/// `slots` are (index, shape) of every slot that is a tensor of at least one dimension.
pub(super) fn resolve<'a>(
    parameters: &[Parameter<'a>],
    slots: &[(u64, &Shape)],
    groups: &'a [ParamGroup],
) -> Resolved<'a> {
    if let Some(named) = by_names(groups) {
        return Ok((named, "`param_names` of its groups say which".to_owned()));
    }
    let ids = ids(slots, groups);
    if ids.len() != parameters.len() {
        return Err(format!(
            "the optimizer has {} parameters and the model {}: frozen or shared parameters shift the order",
            ids.len(),
            parameters.len()
        ));
    }
    let orders = orders(parameters);
    let agreeing: Vec<_> =
        orders.into_iter().filter_map(|(how, order)| agree(&ids, &order, slots).map(|m| (m, how))).collect();
    choose(agreeing, parameters, groups)
}

fn by_names(groups: &[ParamGroup]) -> Option<HashMap<u64, &str>> {
    let complete = groups.iter().all(|g| g.names.len() == g.params.len());
    let pairs = groups.iter().flat_map(|g| g.params.iter().copied().zip(g.names.iter().map(String::as_str)));
    (complete && !groups.is_empty()).then(|| pairs.collect::<HashMap<_, _>>()).filter(|m| !m.is_empty())
}

/// Indices in the order of the groups; without groups, all up to the greatest one seen.
fn ids(slots: &[(u64, &Shape)], groups: &[ParamGroup]) -> Vec<u64> {
    if !groups.is_empty() {
        return groups.iter().flat_map(|g| g.params.iter().copied()).collect();
    }
    // Distinct indices only: the count comes from what is there, never from a number a file claims.
    let mut seen: Vec<u64> = slots.iter().map(|&(index, _)| index).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

type Order<'a> = Vec<Parameter<'a>>;

fn orders<'a>(parameters: &[Parameter<'a>]) -> Vec<(&'static str, Order<'a>)> {
    let saved = parameters.to_vec();
    let (mut matrices, rest): (Order<'a>, Order<'a>) = saved.iter().partition(|p| p.shape.rank() >= 2);
    matrices.extend(rest);
    vec![("in the order of the model's parameters", saved), ("matrices first, then the rest", matrices)]
}

/// The mapping, if every slot has its parameter's shape.
fn agree<'a>(ids: &[u64], order: &[Parameter<'a>], slots: &[(u64, &Shape)]) -> Option<HashMap<u64, &'a str>> {
    let by_id: HashMap<u64, Parameter<'a>> = ids.iter().copied().zip(order.iter().copied()).collect();
    let fits = slots.iter().all(|(index, shape)| by_id.get(index).is_some_and(|p| p.shape == *shape));
    (fits && !slots.is_empty()).then(|| by_id.into_iter().map(|(id, p)| (id, p.name)).collect())
}

fn choose<'a>(
    mut agreeing: Vec<(HashMap<u64, &'a str>, &str)>,
    parameters: &[Parameter<'_>],
    groups: &[ParamGroup],
) -> Resolved<'a> {
    let told =
        |(map, how): (HashMap<u64, &'a str>, &str)| Ok((map, format!("{how}; count and shapes agree")));
    agreeing.dedup_by(|a, b| a.0 == b.0);
    let matrices = parameters.iter().filter(|p| p.shape.rank() >= 2).count();
    let decayed = groups.len() == 2 && groups.first().is_some_and(|g| g.params.len() == matrices);
    match (agreeing.len(), groups.len()) {
        (0, _) => Err("shapes of its slots agree with no usual order of the model's parameters".to_owned()),
        (1, _) => told(agreeing.swap_remove(0)),
        (_, 1) => told(agreeing.swap_remove(0)),
        (_, 2) if decayed => told(agreeing.swap_remove(1)),
        _ => Err("more than one order of the model's parameters agrees with its shapes".to_owned()),
    }
}
