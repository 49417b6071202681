//! Plans: cost against the moves made, folds, JSON.

use std::borrow::Cow;

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};

use super::*;
use crate::{Layout, Mesh, Region, StageSplit};

fn registry() -> Registry {
    let mut registry = Registry::new();
    let mut push = |name: String, shape: &[u64], rule: &str, layer| {
        for role in [Role::Param, Role::ExpAvg] {
            let mut entry = Entry::new(Fqn::new(&name).unwrap(), role, Dtype::F32, Shape::new(shape));
            (entry.placement, entry.layer) = (Some(rule.parse().unwrap()), layer);
            registry.push(entry).unwrap();
        }
    };
    push("emb".into(), &[32, 8], "tp:0,pp:first", None);
    for layer in 0..4 {
        push(format!("layers.{layer}.wq"), &[16, 8], "tp:0,dp:0,pp:layer", Some(layer));
        push(format!("layers.{layer}.wo"), &[8, 16], "tp:1,dp:0,pp:layer", Some(layer));
    }
    registry
}

fn plan(from: &str, to: &str) -> (Plan, Layout) {
    let registry = registry();
    let [from, to]: [Mesh; 2] = [from, to].map(|mesh| mesh.parse().unwrap());
    let source = Layout::new(&registry, &from, &StageSplit::Auto).unwrap();
    let target = Layout::new(&registry, &to, &StageSplit::Auto).unwrap();
    let chunks = |at| Cow::Owned(source.shards(at).map(|(shard, _)| shard.region).collect::<Vec<Region>>());
    let rules = registry
        .entries()
        .iter()
        .map(|entry| TensorRule { tensor: entry.id(), rule: entry.placement.clone().unwrap() });
    let plan = Plan {
        version: PLAN_VERSION,
        source: "sha256:00".into(),
        attempt: "a1".into(),
        from: Some(from.clone()),
        to,
        stage_split: StageSplit::Auto,
        rules: rules.collect(),
        cost: Cost::count(&registry, Some(&from), &target, chunks).unwrap(),
    };
    (plan, target)
}

#[test]
fn cost_counts_every_byte_once_and_the_reads_that_moves_make() {
    let (plan, target) = plan("2x2x2", "4x1x1");
    let total = registry().entries().iter().map(|entry| entry.bytes().unwrap()).sum::<u64>();
    assert_eq!((plan.cost.bytes_read, plan.cost.bytes_written), (total, total));
    assert_eq!(plan.cost.ranks.iter().map(|rank| rank.written).sum::<u64>(), total);
    assert_eq!(plan.cost.ranks, target.ranks());
    // emb: 2 whole chunks. wq: 4 chunks become 4, one to one. wo: each of 4 row pairs takes 2 column halves, whole rows of
    // a column chunk each, so one stretch per move.
    let (emb, wq, wo) = (2 * 2, 8 * 4, 8 * 8);
    assert_eq!((plan.cost.moves, plan.cost.reads), (emb + wq + wo, emb + wq + wo));
}

#[test]
fn what_is_cast_is_read_in_its_own_width_and_written_in_the_other() {
    let (registry, mesh) = (registry(), "2x1x1".parse::<Mesh>().unwrap());
    let mut cast = Registry::new();
    for mut entry in registry.entries().iter().cloned() {
        if entry.role.is_model() {
            entry.dtype = Dtype::BF16;
        }
        cast.push(entry).unwrap();
    }
    let target = Layout::new(&cast, &mesh, &StageSplit::Auto).unwrap();
    let whole = |at: usize| Cow::Owned(vec![Region::whole(&registry.entries()[at].shape).unwrap()]);
    let cost = Cost::count(&registry, None, &target, whole).unwrap();
    let total = |registry: &Registry| registry.entries().iter().map(|it| it.bytes().unwrap()).sum::<u64>();
    assert_eq!((cost.bytes_read, cost.bytes_written), (total(&registry), total(&cast)));
    assert_eq!(cost.ranks.iter().map(|rank| rank.written).sum::<u64>(), cost.bytes_written);
    assert_eq!(cost.bytes_written * 4, cost.bytes_read * 3, "half of each parameter, all of its moment");
}

#[test]
fn layers_fold_into_one_line() {
    let (plan, _) = plan("2x2x2", "4x1x1");
    let lines: Vec<String> = plan.cost.folds.iter().map(Fold::to_string).collect();
    assert_eq!(lines[0], "emb  S(0)@tp2 → R");
    assert_eq!(lines[2], "layers.{0..3}.wq  S(0)@tp2 S(0)@dp2 → S(0)@dp4");
    assert_eq!(lines.len(), 6);
    assert_eq!(plan.cost.folds.iter().map(|fold| fold.tensors).sum::<u64>(), 18);
}

#[test]
fn a_plan_reads_back_from_json_and_its_digest_leaves_the_cost_out() {
    let (plan, target) = plan("2x2x2", "4x1x1");
    let text = serde_json::to_string(&plan).unwrap();
    let back: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(back, plan);
    assert_eq!(back.layout(&registry()).unwrap(), target);
    let cheaper = Plan { cost: Cost::default(), ..plan.clone() };
    assert_eq!(cheaper.digest_text().unwrap(), plan.digest_text().unwrap());
    let other = Plan { attempt: "a2".into(), ..plan.clone() };
    assert_ne!(other.digest_text().unwrap(), plan.digest_text().unwrap());
    assert!(serde_json::from_str::<Plan>(&text.replacen("\"version\"", "\"unknown\"", 1)).is_err());
}

#[test]
fn a_source_with_a_hole_is_refused_by_tensor_and_region() {
    let registry = registry();
    let target = Layout::new(&registry, &"2x2".parse().unwrap(), &StageSplit::Auto).unwrap();
    let chunks = |_| Cow::Owned(vec![Region::new(&[0, 0], &[1, 8]).unwrap()]);
    let refused = Cost::count(&registry, None, &target, chunks).unwrap_err().to_string();
    assert_eq!(refused, "emb: target region [0..16, 0..8] needs [1..16, 0..8], which no source chunk holds");
}
