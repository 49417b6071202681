//! Cuts of what is not cut as its parameter is, and cuts over several axes as one.

use super::*;

/// A parameter and a factored slot of it, placed by one rule.
fn factored(rule: &str, name: &str, shape: &[u64], slot: &[u64]) -> Result<String, RulesError> {
    let rules = Rules::from_toml(&format!("[[rule]]\nmatch = \"**\"\nplace = \"{rule}\"\n")).unwrap();
    let mut registry = llama(&[(name, shape)]);
    let row = Role::Slot("row".into());
    registry.push(Entry { role: row.clone(), ..param(name, slot) }).unwrap();
    rules.apply(&mut registry)?;
    Ok(place(&registry, name, row))
}

#[test]
fn a_slot_of_another_shape_lies_on_stages_by_a_dimension_of_layers_only_if_it_has_as_many() {
    let place = |slot| factored("tp:1,pp:layers@0", "stacked", &[6, 8], slot).unwrap();
    assert_eq!(place(&[6]), "pp:layers@0");
    assert_eq!(place(&[8]), "replicate");
    assert_eq!(place(&[8, 6]), "replicate");
}

#[test]
fn a_slot_of_another_shape_lies_where_its_expert_is() {
    let rule = "tp:0,dp:0,ep:expert,pp:layer";
    let place = factored(rule, "layers.1.experts.2.w1", &[6, 8], &[6]);
    assert_eq!(place.unwrap(), "ep:expert,pp:layer");
    let nameless = factored("ep:expert", "w1", &[6, 8], &[6]);
    assert!(matches!(nameless, Err(RulesError::NoExpert { .. })), "{nameless:?}");
}

#[test]
fn a_cut_over_several_axes_as_one_has_nothing_to_divide_or_to_fall_inside() {
    // 8 heads divide over tp=4, but not over the 16 ranks of tp=4,cp=4 that share them.
    for (more, axis) in [
        ("place = \"tp+cp:0\"\ndivides = \"heads\"", "tp"),
        ("place = \"dp:1,cp+tp:0\"\nparts = \"gate,up\"", "tp"),
        ("place = \"ep+tp:0\"\ndivides = \"experts\"", "ep"),
        ("place = \"tp:0\"\ntied = \"tp+cp:0\"\ndivides = \"vocab\"", "tp"),
    ] {
        let refused = Rules::from_toml(&format!("[[rule]]\nmatch = \"**\"\n{more}\n")).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.starts_with("line 1: ") && text.contains(&format!("over {axis} and other axes")),
            "{text}"
        );
    }
    for fine in ["tp:0,dp+cp:0", "tp:0,cp:0"] {
        let text = format!("[[rule]]\nmatch = \"**\"\nplace = \"{fine}\"\ndivides = \"heads\"\n");
        assert!(Rules::from_toml(&text).is_ok(), "{fine}");
    }
    assert!(Rules::from_toml("[[rule]]\nmatch = \"**\"\nplace = \"tp+cp:0\"\n").is_ok());
}
