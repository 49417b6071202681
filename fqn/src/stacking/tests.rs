//! Stacks by name: both ways, placement that goes along, members that make none.

use super::*;
use crate::{Dtype, FusionPart, Role, fold};

fn entry(name: &str, shape: &[u64], rule: &str) -> Entry {
    let mut entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::BF16, Shape::new(shape));
    entry.placement = Some(rule.parse().unwrap());
    (entry.layer, entry.expert) = (fold::layer_of(name), fold::expert_of(name));
    entry
}

fn registry(entries: impl IntoIterator<Item = Entry>) -> Registry {
    let mut registry = Registry::new();
    for entry in entries {
        registry.push(entry).unwrap();
    }
    registry
}

fn experts() -> Stacking {
    Stacking::new("layers.{layer}.experts.{expert}.{part}.weight", "layers.{layer}.moe.{part}", 0).unwrap()
}

fn model() -> Registry {
    let mut all = vec![entry("emb", &[8, 4], "tp:0,pp:first")];
    for layer in 0..2 {
        for expert in 0..3 {
            for (part, shape, rule) in [
                ("w1", [6, 4], "tp:0,dp:0,ep:expert,pp:layer"),
                ("w2", [4, 6], "tp:1,dp:0,ep:expert,pp:layer"),
            ] {
                let name = format!("layers.{layer}.experts.{expert}.{part}.weight");
                let mut one = entry(&name, &shape, rule);
                one.fusion = vec![FusionPart { name: "all".into(), axis: 0, extent: shape[0] }];
                all.push(Entry { role: Role::ExpAvg, ..one.clone() });
                all.push(one);
            }
        }
    }
    registry(all)
}

#[test]
fn experts_of_their_own_become_stacked_tensors_and_come_back() {
    let apart = model();
    let (stacked, origins) = experts().stack(&apart).unwrap();
    assert_eq!(stacked.len(), 1 + 2 * 2 * 2);
    let w2 = stacked.position(&TensorId::param("layers.1.moe.w2").unwrap()).unwrap();
    let entry = &stacked.entries()[w2];
    assert_eq!((entry.shape.to_string().as_str(), entry.layer, entry.expert), ("3x4x6", Some(1), None));
    assert_eq!(entry.placement.as_ref().unwrap().to_string(), "ep:0,tp:2,dp:1,pp:layer");
    assert_eq!(entry.fusion[0].axis, 1);
    let members: Vec<String> =
        origins[w2].sources.iter().map(|at| apart.entries()[*at].id().to_string()).collect();
    assert_eq!(members[2], "layers.1.experts.2.w2.weight");
    let (back, slices) = experts().unstack(&stacked).unwrap();
    assert_eq!(back.len(), apart.len());
    for entry in apart.entries() {
        assert_eq!(back.get(&entry.id()), Some(entry));
        let at = back.position(&entry.id()).unwrap();
        assert_eq!(slices[at].slice, entry.expert.map(u64::from));
    }
}

#[test]
fn layers_of_their_own_become_stacked_tensors_and_come_back() {
    let apart =
        registry((0..4).map(|n| entry(&format!("decoder.layers.{n}.wq"), &[6, 4], "tp:0,dp:1,pp:layer")));
    let layers = Stacking::new("decoder.layers.{layer}.{part}", "decoder.layers.{part}", 0).unwrap();
    let (stacked, origins) = layers.stack(&apart).unwrap();
    let entry = &stacked.entries()[0];
    assert_eq!((entry.fqn.as_str(), entry.shape.to_string().as_str()), ("decoder.layers.wq", "4x6x4"));
    assert_eq!(entry.placement.as_ref().unwrap().to_string(), "tp:1,dp:2,pp:layers@0");
    assert_eq!(origins[0].sources, [0, 1, 2, 3]);
    assert_eq!(layers.unstack(&stacked).unwrap().0, apart);
}

#[test]
fn what_makes_no_stack_is_named() {
    let captures = Stacking::new("a.{expert}.{part}", "b.{other}", 0).unwrap_err().to_string();
    assert!(captures.contains("exactly one capture"), "{captures}");
    let rule = "replicate";
    let name = |n: u32| format!("layers.0.experts.{n}.w1.weight");
    let refuse = |entries: Vec<Entry>| experts().stack(&registry(entries)).unwrap_err().to_string();
    assert_eq!(
        refuse(vec![entry(&name(0), &[2], rule), entry(&name(2), &[2], rule)]),
        "layers.0.moe.w1 needs members 0 to 2, but 1 is missing or comes twice"
    );
    assert!(
        refuse(vec![entry(&name(0), &[2], rule), entry(&name(1), &[3], rule)])
            .contains("can't be members of one stack")
    );
    assert!(
        refuse(vec![entry(&name(0), &[2], rule), entry("layers.0.moe.w1", &[1, 2], rule)])
            .contains("appears twice")
    );
    let huge = registry([entry("layers.0.moe.w1", &[u64::MAX, 0], rule)]);
    assert!(experts().unstack(&huge).unwrap_err().to_string().contains("no dimension 0 of members"));
}
