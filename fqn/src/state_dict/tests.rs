//! Classification of real and made-up state dicts: roles, wrappers, index-keyed optimizers.

use proptest::prelude::*;

use super::*;
use crate::Role;

fn tensor(key: &str, shape: &[u64]) -> Leaf {
    Leaf::tensor(key, Dtype::F32, Shape::new(shape))
}

/// A tensor at a nested path; its key is the path joined.
fn nested(path: &[&str], shape: &[u64]) -> Leaf {
    let parts = path.iter().map(|p| p.parse().map_or_else(|_| PathPart::key(p), PathPart::Index)).collect();
    tensor(&path.join("."), shape).at(parts)
}

fn ids(leaves: &[Leaf], groups: &[ParamGroup]) -> Vec<String> {
    let text = |item: &Item| match &item.kind {
        Kind::Tensor(id) => format!("{} {}", id.fqn, id.role),
        Kind::Object => format!("object {:?}", item.part),
    };
    classify(leaves, groups).unwrap().items.iter().map(text).collect()
}

#[test]
fn nested_dcp_has_containers_and_a_hugging_face_name_keeps_its_model() {
    let leaves = [
        nested(&["model", "model.embed_tokens.weight"], &[4, 2]),
        nested(&["model", "model.rotary_emb.inv_freq"], &[2]),
        nested(&["optim", "state", "model.embed_tokens.weight", "exp_avg"], &[4, 2]),
        nested(&["optim", "state", "model.embed_tokens.weight", "step"], &[]),
        Leaf::object("optim.param_groups.0.lr"),
        Leaf::object("epoch"),
    ];
    assert_eq!(
        ids(&leaves, &[]),
        [
            "model.embed_tokens.weight param",
            "model.rotary_emb.inv_freq buffer",
            "model.embed_tokens.weight exp_avg",
            "model.embed_tokens.weight slot:step",
            "object Optimizer",
            "object Other",
        ]
    );
    let classified = classify(&leaves, &[]).unwrap();
    assert_eq!(classified.layout, Layout::nested());
    assert_eq!(classified.items[2].wrapper, "optim.state");
    let registry = classified.registry(&leaves, "torch-dcp").unwrap();
    assert_eq!(registry.entries()[0].aliases[0].path, ["model", "model.embed_tokens.weight"]);
}

#[test]
fn torchtitan_has_its_model_at_the_root_and_a_flattened_optimizer() {
    let leaves = [
        nested(&["layers.0.attention.wq.weight"], &[4, 4]),
        nested(&["optimizer", "state.layers.0.attention.wq.weight.exp_avg"], &[4, 4]),
        nested(&["lr_scheduler", "last_epoch"], &[]),
        nested(&["train_state", "step"], &[]),
    ];
    assert_eq!(
        ids(&leaves, &[]),
        [
            "layers.0.attention.wq.weight param",
            "layers.0.attention.wq.weight exp_avg",
            "lr_scheduler.last_epoch other",
            "train_state.step other",
        ]
    );
    assert_eq!(classify(&leaves, &[]).unwrap().layout, Layout::torchtitan());
}

#[test]
fn without_a_path_optimizer_state_decides_whether_model_is_a_container() {
    let flat = |state: &str| {
        let leaves =
            [tensor("model.a.weight", &[2]), tensor(&format!("optimizer.state.{state}.exp_avg"), &[2])];
        ids(&leaves, &[])
    };
    assert_eq!(flat("a.weight"), ["a.weight param", "a.weight exp_avg"]);
    assert_eq!(flat("model.a.weight"), ["model.a.weight param", "model.a.weight exp_avg"]);
}

#[test]
fn without_optimizer_state_known_names_decide_and_unknown_ones_stay_whole() {
    assert_eq!(
        ids(&[tensor("model.layers.0.attention.wq.weight", &[2, 2])], &[]),
        ["layers.0.attention.wq.weight param"]
    );
    assert_eq!(
        ids(
            &[tensor("model.layers.0.self_attn.q_proj.weight", &[2, 2]), tensor("lm_head.weight", &[2])],
            &[]
        ),
        ["model.layers.0.self_attn.q_proj.weight param", "lm_head.weight param"]
    );
    assert_eq!(ids(&[tensor("model.model.norm.weight", &[2])], &[]), ["model.norm.weight param"]);
    let unknown = [tensor("model.w", &[2])];
    assert_eq!(ids(&unknown, &[]), ["model.w param"]);
    let notes = classify(&unknown, &[]).unwrap().notes;
    assert!(
        notes[0].to_string().contains("`model.` is part of the names: there is neither a path"),
        "{}",
        notes[0]
    );
    assert_eq!(ids(&[tensor("model_state_dict.w", &[2])], &[]), ["w param"]);
}

fn indexed() -> Vec<Leaf> {
    vec![
        nested(&["model", "w"], &[4, 2]),
        nested(&["model", "b"], &[4]),
        nested(&["model", "u"], &[3, 4]),
        nested(&["model", "bn.running_mean"], &[4]),
    ]
}

fn state(index: &str, shape: &[u64]) -> Leaf {
    nested(&["optimizer", "state", index, "exp_avg"], shape)
}

#[test]
fn state_by_index_is_given_to_parameters_where_count_and_shapes_agree() {
    let mut leaves = indexed();
    leaves.extend([state("0", &[4, 2]), state("1", &[4]), state("2", &[3, 4])]);
    let groups = [ParamGroup { params: vec![0, 1, 2], names: vec![] }];
    assert_eq!(ids(&leaves, &groups)[3..], ["bn.running_mean buffer", "w exp_avg", "b exp_avg", "u exp_avg"]);
    assert_eq!(ids(&leaves, &[]), ids(&leaves, &groups));
    let layout = classify(&leaves, &groups).unwrap().layout;
    let id = TensorId { fqn: Fqn::new("u").unwrap(), role: Role::ExpAvg };
    assert_eq!(layout.key(&id).as_deref(), Some("optimizer.state.2.exp_avg"));
}

#[test]
fn decayed_matrices_first_is_recognised_and_param_names_prove_any_order() {
    let mut leaves = indexed();
    leaves.extend([state("0", &[4, 2]), state("1", &[3, 4]), state("2", &[4])]);
    let groups =
        [ParamGroup { params: vec![0, 1], names: vec![] }, ParamGroup { params: vec![2], names: vec![] }];
    assert_eq!(ids(&leaves, &groups)[4..], ["w exp_avg", "u exp_avg", "b exp_avg"]);
    let mut leaves = indexed();
    leaves.extend([state("0", &[3, 4]), state("1", &[4]), state("2", &[4, 2])]);
    let names = ["u", "b", "w"].map(str::to_owned).to_vec();
    assert_eq!(
        ids(&leaves, &[ParamGroup { params: vec![0, 1, 2], names }])[4..],
        ["u exp_avg", "b exp_avg", "w exp_avg"]
    );
}

#[test]
fn state_by_index_that_fits_no_order_keeps_an_explicit_name_and_says_so() {
    let mut leaves = indexed();
    leaves.extend([state("0", &[9]), state("1", &[4]), state("2", &[3, 4])]);
    let groups = [ParamGroup { params: vec![0, 1, 2], names: vec![] }];
    assert_eq!(ids(&leaves, &groups)[4], "optimizer.state.0 slot:exp_avg");
    let notes = classify(&leaves, &groups).unwrap().notes;
    assert!(notes.iter().any(|n| matches!(n, Note::IndexUnresolved(_))));
    leaves.truncate(5);
    let fewer = [ParamGroup { params: vec![0, 1], names: vec![] }];
    assert!(
        classify(&leaves, &fewer).unwrap().notes[0]
            .to_string()
            .contains("the optimizer has 2 parameters and the model 3")
    );
}

#[test]
fn wrapper_prefixes_orphans_and_collisions_are_reported_and_nothing_is_lost() {
    let leaves = [
        nested(&["model", "_orig_mod.w"], &[2]),
        nested(&["optim", "state", "gone", "exp_avg"], &[2]),
        nested(&["module", "v"], &[2]),
        nested(&["optim", "state", "gone", "exp_avg"], &[2]),
    ];
    let classified = classify(&leaves, &[]).unwrap();
    assert_eq!(classified.items.len(), 4);
    assert_eq!(ids(&leaves, &[])[2..], ["module.v other", "optim.state.gone.exp_avg other"]);
    let has = |f: fn(&Note) -> bool| classified.notes.iter().any(f);
    assert!(has(|n| matches!(n, Note::WrapperPrefix { clean, .. } if clean == "w")));
    assert!(has(|n| matches!(n, Note::Orphan(_))) && has(|n| matches!(n, Note::Collision { .. })));
    assert!(has(|n| matches!(n, Note::SecondModel(word) if word == "module")));
}

#[test]
fn an_optimizer_alone_and_a_plain_model_are_understood() {
    let mut alone = vec![nested(&["state", "0", "exp_avg"], &[2]), Leaf::object("param_groups.0.lr")];
    assert_eq!(ids(&alone, &[]), ["state.0 slot:exp_avg", "object Optimizer"]);
    alone[0] = nested(&["state", "w", "exp_avg"], &[2]);
    assert_eq!(ids(&alone, &[]), ["w exp_avg", "object Optimizer"]);
    assert_eq!(
        ids(&[tensor("0.weight", &[2]), tensor("opt.weight", &[2])], &[]),
        ["0.weight param", "opt.weight param"]
    );
    let digits = [tensor("0.weight", &[2]), tensor("optimizer.state.0.weight.exp_avg", &[2])];
    assert_eq!(ids(&digits, &[]), ["0.weight param", "0.weight exp_avg"]);
}

#[test]
fn a_key_with_control_characters_is_refused_escaped() {
    let refused = classify(&[tensor("a\u{1b}[0m", &[1])], &[]).unwrap_err().to_string();
    assert!(refused.contains("\\u{1b}") && !refused.contains('\u{1b}'), "{refused}");
}

proptest! {
    #[test]
    fn paths_are_rebuilt_from_identities(
        names in prop::collection::btree_set("[a-d]{1,2}(\\.[a-d0-9]{1,2}){0,2}\\.weight", 1..8), flattened: bool,
    ) {
        let layout = if flattened { Layout::torchtitan() } else { Layout::nested() };
        let mut leaves = Vec::new();
        for name in &names {
            for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq, Role::Slot("step".into())] {
                let id = TensorId { fqn: Fqn::new(name).unwrap(), role };
                leaves.push(tensor(&layout.key(&id).unwrap(), &[2]).at(layout.path(&id).unwrap()));
            }
        }
        let classified = classify(&leaves, &[]).unwrap();
        for (item, leaf) in classified.items.iter().zip(&leaves) {
            let Kind::Tensor(id) = &item.kind else { panic!("a tensor became an object") };
            prop_assert!(id.role != Role::Other);
            prop_assert_eq!(classified.layout.path(id), leaf.path.clone());
        }
    }

    #[test]
    fn every_leaf_yields_one_item_and_ids_are_unique(
        keys in prop::collection::vec("(model|optimizer|state|module|optim)?\\.?(state|0|a)?\\.?[a-c0]{1,2}(\\.exp_avg)?", 1..12),
        paths: bool,
    ) {
        let leaves: Vec<Leaf> = keys.iter().filter(|k| !k.is_empty()).map(|k| {
            if paths { nested(&k.split('.').collect::<Vec<_>>(), &[2]) } else { tensor(k, &[2]) }
        }).collect();
        let classified = classify(&leaves, &[]).unwrap();
        prop_assert_eq!(classified.items.len(), leaves.len());
        prop_assert!(classified.items.iter().enumerate().all(|(at, item)| item.leaf == at));
        prop_assert!(classified.registry(&leaves, "x").is_ok());
    }
}
