//! Stacks by name: both ways, placement that goes along, members that make none.

use super::*;
use crate::{Alias, Dtype, FusionPart, Role, fold, preset::Rules};

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
    let neither = Stacking::new("a.{head}.{part}", "b.{part}", 0).unwrap_err().to_string();
    assert_eq!(neither, "{head}, which only \"a.{head}.{part}\" holds, is neither {layer} nor {expert}");
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

#[test]
fn a_role_that_lacks_a_member_which_its_parameter_has_is_refused_by_name() {
    let weight = |expert: u32| entry(&format!("layers.0.experts.{expert}.w1.weight"), &[6, 4], "replicate");
    let slots = |role: Role, count: u32| (0..count).map(move |at| Entry { role: role.clone(), ..weight(at) });
    let refuse = |weights: u32, role: Role, count: u32| {
        let all = registry((0..weights).map(weight).chain(slots(role, count)));
        experts().stack(&all).unwrap_err().to_string()
    };
    let lacks = "layers.0.moe.w1@exp_avg would lack member 7, which layers.0.moe.w1 has";
    assert_eq!(refuse(8, Role::ExpAvg, 7), lacks);
    assert_eq!(
        refuse(7, Role::ExpAvg, 8),
        "layers.0.moe.w1 would lack member 7, which layers.0.moe.w1@exp_avg has"
    );
    let steps = (0..2).map(|at| step(&format!("layers.0.experts.{at}.w1.weight")));
    let all = registry((0..3).map(weight).chain(steps));
    let error = experts().stack(&all).unwrap_err().to_string();
    assert!(error.contains("slot:step would lack member 2, which layers.0.moe.w1 has"), "{error}");
    // Without the parameter, slots have to agree with each other.
    let all = registry(slots(Role::ExpAvg, 3).chain(slots(Role::ExpAvgSq, 2)));
    let error = experts().stack(&all).unwrap_err().to_string();
    assert!(error.contains("@exp_avg_sq would lack member 2"), "{error}");
    assert!(experts().stack(&registry((0..3).map(weight))).is_ok());
}

fn step(name: &str) -> Entry {
    Entry { role: Role::Slot("step".into()), ..entry(name, &[], "replicate") }
}

#[test]
fn a_stack_has_one_step_of_adam_and_every_member_taken_out_of_it_has_that() {
    let mut all = Vec::new();
    for name in (0..3).map(|expert| format!("layers.1.experts.{expert}.w1.weight")) {
        let one = entry(&name, &[6, 4], "tp:0,dp:0,ep:expert,pp:layer");
        all.extend([Entry { role: Role::ExpAvg, ..one.clone() }, one, step(&name)]);
    }
    let apart = registry(all);
    let (stacked, origins) = experts().stack(&apart).unwrap();
    let of = |entry: &Entry| (entry.role.clone(), entry.shape.to_string());
    let told: Vec<_> = stacked.entries().iter().map(of).collect();
    let slot = Role::Slot("step".into());
    assert_eq!(
        told,
        [(Role::ExpAvg, "3x6x4".into()), (Role::Param, "3x6x4".into()), (slot.clone(), "scalar".into())]
    );
    assert_eq!(origins[2], Origin { sources: vec![2], slice: None });
    let (back, slices) = experts().unstack(&stacked).unwrap();
    assert_eq!(back.len(), apart.len());
    for entry in apart.entries() {
        assert_eq!(back.get(&entry.id()), Some(entry));
        let (at, is_step) = (back.position(&entry.id()).unwrap(), entry.role == slot);
        assert_eq!(slices[at].slice, entry.expert.filter(|_| !is_step).map(u64::from));
    }
}

#[test]
fn a_slot_of_a_stack_is_cut_into_members_only_along_as_many_as_its_parameter_has() {
    let slot = |shape: &[u64]| {
        let stack = entry("layers.0.moe.w1", &[3, 6, 4], "ep:0,pp:layer");
        let row = entry("layers.0.moe.w1", shape, "replicate");
        let both = registry([stack, Entry { role: Role::Slot("row".into()), ..row }]);
        let (apart, origins) = experts().unstack(&both)?;
        Ok::<_, StackError>((apart.entries()[4].shape.to_string(), origins[4].slice))
    };
    assert_eq!(slot(&[3, 6]), Ok(("6".into(), Some(1))));
    assert_eq!(slot(&[3]), Ok(("scalar".into(), Some(1))));
    assert_eq!(slot(&[1]), Ok(("1".into(), None)));
    assert!(matches!(slot(&[6, 4]), Err(StackError::Axis { .. })));
}

#[test]
fn what_is_known_of_a_tensor_goes_along_or_is_refused_and_aliases_stay_behind() {
    let two = |change: fn(&mut Entry)| {
        let mut all = [0, 1].map(|n| entry(&format!("layers.0.experts.{n}.w1.weight"), &[2, 4], "ep:expert"));
        all.iter_mut().for_each(change);
        registry(all)
    };
    let stack = |change: fn(&mut Entry)| experts().stack(&two(change));
    let why = |change: fn(&mut Entry)| stack(change).unwrap_err().to_string();
    assert!(why(|e| e.tie = Some(Fqn::new("w").unwrap())).contains("is tied to a tensor of another name"));
    assert!(why(|e| e.padded_rows = Some(8)).contains("has padded rows"));
    let far = "is cut, or has fused parts, along a dimension that it lacks";
    assert!(why(|e| e.placement = Some(format!("tp:{}", usize::MAX).parse().unwrap())).contains(far));
    assert!(why(|e| e.placement = Some("pp:layers@2".parse().unwrap())).contains(far));
    let part = |axis| vec![FusionPart { name: "a".into(), axis, extent: 1 }];
    let mut parts = two(|_| ());
    parts.edit(|e| e.fusion = part(usize::MAX)).unwrap();
    assert!(experts().stack(&parts).unwrap_err().to_string().contains(far));
    // Members that differ in what only one of them could say for all.
    for change in [
        |e: &mut Entry| e.placement = e.expert.map(|n| format!("tp:{n},ep:expert").parse().unwrap()),
        |e: &mut Entry| e.padded_rows = e.expert.map(|n| u64::from(n) + 4),
        |e: &mut Entry| e.layer = e.expert,
    ] {
        assert!(why(change).contains("can't be members of one stack"));
    }
    let alias = |e: &mut Entry| {
        e.aliases = vec![Alias { of: "hf".into(), key: "k".into(), path: Vec::new() }];
    };
    assert_eq!(stack(alias).unwrap().0, stack(|_| ()).unwrap().0);
    // Padding of rows that stay rows goes along both ways.
    let columns = Stacking::new("layers.{layer}.experts.{expert}.w1.weight", "layers.{layer}.w1", 1).unwrap();
    let padded = two(|e| e.padded_rows = Some(8));
    let (stacked, _) = columns.stack(&padded).unwrap();
    assert_eq!(stacked.entries()[0].padded_rows, Some(8));
    assert_eq!(columns.unstack(&stacked).unwrap().0, padded);
}

#[test]
fn a_stack_whose_members_would_lose_something_is_refused() {
    let why = |rule: &str, change: fn(&mut Entry)| {
        let mut stack = entry("layers.0.moe.w1", &[2, 4], rule);
        change(&mut stack);
        experts().unstack(&registry([stack])).unwrap_err().to_string()
    };
    assert!(why("replicate", |e| e.padded_rows = Some(4)).contains("is padded along the dimension"));
    let part = |e: &mut Entry| e.fusion = vec![FusionPart { name: "a".into(), axis: 0, extent: 2 }];
    assert!(why("replicate", part).contains("has fused parts along the dimension of its members"));
    assert!(why("pp:layers@0", |_| ()).contains("stacks layers along the dimension of its experts"));
    assert!(why("replicate", |e| e.shape = Shape::new(&[0, 4])).contains("has no dimension 0 of members"));
    let many = (0..17).map(|n| entry(&format!("layers.{n}.moe.w1"), &[1 << 16, 0], "replicate"));
    let many = experts().unstack(&registry(many)).unwrap_err().to_string();
    assert_eq!(many, "layers.16.moe.w1 is not taken apart: with it there are more than 1048576 members");
}

#[test]
fn a_pair_is_read_and_written_as_text() {
    let text = "layers.{layer}.experts.{expert}.w1.weight=layers.{layer}.moe.w1@2";
    let pair: Stacking = text.parse().unwrap();
    assert_eq!((pair.to_string().as_str(), pair.axis(), pair.members()), (text, 2, "experts"));
    let arrow: Stacking = "layers.{layer}.{**part} => layers.{**part}".parse().unwrap();
    assert_eq!(
        (arrow.to_string().as_str(), arrow.members()),
        ("layers.{layer}.{**part}=layers.{**part}@0", "layers")
    );
    let why = |text: &str| text.parse::<Stacking>().unwrap_err().to_string();
    assert!(why("layers.{layer}.w").contains("MEMBERS=STACK@AXIS"));
    assert!(why("l.{layer}.w=l.w@first").contains("number of the stack's dimension"));
    assert!(why("l.{layer}.w=l.w@-1").contains("number of the stack's dimension"));
    assert!(why("l.{layer=l.w").contains("unbalanced"));
}

#[test]
fn layers_of_any_depth_are_stacked_by_one_pair_and_a_member_is_no_stack() {
    let pair: Stacking = "layers.{layer}.{**part}=layers.{**part}".parse().unwrap();
    let apart = registry((0..2).flat_map(|n| {
        ["attn.wq.weight", "norm"].map(|part| entry(&format!("layers.{n}.{part}"), &[6, 4], "tp:0,pp:layer"))
    }));
    assert!(!pair.concerns(Way::Unstack, "layers.1.attn.wq.weight"));
    assert!(
        pair.concerns(Way::Unstack, "layers.attn.wq.weight") && pair.concerns(Way::Stack, "layers.1.norm")
    );
    let (stacked, _) = pair.apply(Way::Stack, &apart).unwrap();
    let names: Vec<&str> = stacked.entries().iter().map(|entry| entry.fqn.as_str()).collect();
    assert_eq!(names, ["layers.attn.wq.weight", "layers.norm"]);
    let (back, _) = pair.apply(Way::Unstack, &stacked).unwrap();
    assert_eq!(back.len(), apart.len());
    assert!(apart.entries().iter().all(|entry| back.get(&entry.id()) == Some(entry)));
}

#[test]
fn rules_follow_to_the_other_side_one_for_all_layers_where_all_have_the_same() {
    let text = r#"
        [[rule]]
        match = "layers.1.experts.*.w2.weight"
        place = "dp:0,ep:expert,pp:layer"

        [[rule]]
        match = "layers.*.experts.*.w1.weight"
        place = "tp:0,dp:0,ep:expert,pp:layer"
        divides = "expert_ffn"

        [[rule]]
        match = "layers.*.experts.*.w2.weight"
        place = "tp:1,dp:0,ep:expert,pp:layer"
    "#;
    let rules = Rules::from_toml(text).unwrap();
    let told = |way, registry: &Registry, rules: &Rules| {
        let made = experts().rules(way, registry, rules).unwrap();
        made.iter().map(|rule| format!("{} {}", rule.pattern, rule.place)).collect::<Vec<_>>()
    };
    let stacked = told(Way::Stack, &model(), &rules);
    assert_eq!(
        stacked,
        [
            "layers.*.moe.w1 ep:0,tp:1,dp:1,pp:layer",
            "layers.0.moe.w2 ep:0,tp:2,dp:1,pp:layer",
            "layers.1.moe.w2 ep:0,dp:1,pp:layer",
        ]
    );
    let made = Rules { rules: experts().rules(Way::Stack, &model(), &rules).unwrap(), ..Rules::default() };
    assert_eq!(made.rules[0].divides, Some(crate::preset::Unit::ExpertFfn));
    let apart = told(Way::Unstack, &experts().stack(&model()).unwrap().0, &made);
    assert_eq!(
        apart,
        [
            "layers.*.experts.*.w1.weight tp:0,dp:0,ep:expert,pp:layer",
            "layers.0.experts.*.w2.weight tp:1,dp:0,ep:expert,pp:layer",
            "layers.1.experts.*.w2.weight dp:0,ep:expert,pp:layer",
        ]
    );
}

#[test]
fn all_counters_of_a_stack_are_named_so_that_they_can_be_compared() {
    let names = (0..3).map(|expert| format!("layers.1.experts.{expert}.w1.weight"));
    let steps = registry(names.map(|name| step(&name)).chain([step("norm")]));
    assert_eq!(experts().counters(&steps).unwrap(), [vec![0, 1, 2]]);
}

#[test]
fn every_preset_that_knows_stacks_places_both_sides_alike() {
    for rules in crate::preset::presets() {
        let name = rules.preset.as_ref().map(|preset| preset.name.as_str()).unwrap();
        for pair in rules.stacks.iter().filter(|pair| pair.members() == "experts") {
            let fill = |text: &str, part: &str| {
                let text = text.replace("{layer}", "3").replace("{expert}", "7").replace("{kind}", "weight");
                text.replace("{part}", part)
            };
            let parts = ["w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"];
            let known =
                parts.iter().filter(|part| rules.rule_for(&fill(pair.member_names(), part)).is_some());
            let mut count = 0;
            for part in known {
                let member = fill(pair.member_names(), part);
                let apart = registry([entry(&member, &[4, 4], "replicate")]);
                let [made] = &pair.rules(Way::Stack, &apart, rules).unwrap()[..] else { panic!("{member}") };
                let stack = rules.rule_for(&fill(pair.stack_names(), part)).unwrap();
                assert_eq!((&made.place, made.divides), (&stack.place, stack.divides), "{name} {part}");
                count += 1;
            }
            assert_eq!(count, 3, "{name}");
        }
    }
}
