//! Baselines and checks: every kind of finding, told apart.

use proptest::prelude::*;

use super::*;
use crate::{Dims, Dtype, Entry, Fqn, Registry, Role, Shape, TensorId};

fn entry(name: &str, shape: &[u64]) -> Entry {
    let mut entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape));
    entry.layer = crate::fold::layer_of(name);
    entry
}

fn registry(names: &[&str]) -> Registry {
    let mut registry = Registry::new();
    for name in names {
        registry.push(entry(name, &[4, 2])).unwrap();
    }
    registry
}

fn compare(baseline: &Registry, observed: &Registry) -> Vec<String> {
    let report = check(baseline, Observed { registry: observed, pieces: &[] });
    report.findings.iter().map(|f| format!("{} {}", f.code.text(), f.id)).collect()
}

fn piece(name: &str, holder: &str, offset: &[u64], digest: u64) -> Piece {
    Piece {
        id: TensorId::param(name).unwrap(),
        holder: holder.to_owned(),
        offset: Dims::from_slice(offset),
        extent: Dims::from_slice(&[2, 2]),
        digest: Some([digest, 0]),
    }
}

#[test]
fn a_baseline_reads_back_equal() {
    let written = registry(&["layers.0.w", "norm.weight"]);
    assert_eq!(read(&write(&written).unwrap()).unwrap(), written);
}

#[test]
fn the_minimal_form_of_a_python_snippet_is_read() {
    let text = r#"[{"fqn": "layers.3.w", "shape": [4, 2], "dtype": "torch.bfloat16"}, {"fqn": "b", "shape": [], "dtype": "F32", "role": "buffer"}]"#;
    let read = read(text).unwrap();
    let first = &read.entries()[0];
    assert_eq!((first.dtype, first.layer, &first.role), (Dtype::BF16, Some(3), &Role::Param));
    assert_eq!((read.entries()[1].dtype, &read.entries()[1].role), (Dtype::F32, &Role::Buffer));
}

#[test]
fn what_is_no_baseline_is_refused_with_the_place() {
    for (text, expected) in [
        ("[", "not JSON"),
        ("3", "a single value"),
        ("{}", "without a schema"),
        (r#"{"schema": "fqn.baseline/2", "tensors": []}"#, "fqn.baseline/2"),
        (r#"{"schema": "fqn.baseline/1", "tensor": []}"#, "unknown key \"tensor\""),
        (
            r#"[{"fqn": "w", "shape": [1], "dtype": "f31"}]"#,
            "tensor 0 of the baseline (w): unknown dtype \"f31\"",
        ),
        (r#"[{"fqn": "w", "shap": [1], "dtype": "f32"}]"#, "unknown field `shap`"),
        (
            r#"[{"fqn": "w", "shape": [1], "dtype": "f32"}, {"fqn": "w", "shape": [1], "dtype": "f32"}]"#,
            "w appears twice",
        ),
    ] {
        let refused = read(text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused:?} lacks {expected:?}");
    }
}

#[test]
fn equal_registries_are_clean_and_optimizer_state_of_known_parameters_is_no_extra() {
    let baseline = registry(&["a.weight", "b.weight"]);
    let mut observed = baseline.clone();
    observed.push(Entry { role: Role::ExpAvg, ..entry("a.weight", &[4, 2]) }).unwrap();
    let report = check(&baseline, Observed { registry: &observed, pieces: &[] });
    assert!(report.is_clean() && report.agreeing == 2);
    observed.push(Entry { role: Role::ExpAvg, ..entry("ghost.weight", &[4, 2]) }).unwrap();
    assert_eq!(compare(&baseline, &observed), ["extra ghost.weight@exp_avg"]);
}

#[test]
fn missing_and_extra_tensors_that_are_unlike_stay_so() {
    let found = compare(&registry(&["a.weight", "tok.weight"]), &registry(&["a.weight", "qqqqqqqqqq"]));
    assert_eq!(found, ["missing tok.weight", "extra qqqqqqqqqq"]);
}

#[test]
fn shape_dtype_and_role_are_compared() {
    let baseline = registry(&["w", "v", "u"]);
    let mut observed = Registry::new();
    observed.push(entry("w", &[4, 3])).unwrap();
    observed.push(Entry { dtype: Dtype::BF16, ..entry("v", &[4, 2]) }).unwrap();
    observed.push(Entry { role: Role::Buffer, ..entry("u", &[4, 2]) }).unwrap();
    assert_eq!(compare(&baseline, &observed), ["shape w", "dtype v", "role u"]);
}

#[test]
fn renames_are_found_by_wrapper_container_dialect_and_likeness() {
    let reason = |from: &str, to: &str| {
        let (baseline, observed) = (registry(&[from]), registry(&[to]));
        let report = check(&baseline, Observed { registry: &observed, pieces: &[] });
        let finding = report.of(Code::Renamed).next().unwrap();
        assert_eq!(finding.observed.as_ref().unwrap().fqn.as_str(), to);
        assert!(finding.advice.contains(&format!("to = \"{from}\"")));
        finding.detail.clone()
    };
    assert!(reason("layers.0.w", "module._orig_mod.layers.0.w").contains("wrapper"));
    assert!(reason("layers.0.w", "model.layers.0.w").contains("container"));
    assert!(reason("output.weight", "lm_head.weight").contains("dialect"));
    assert!(reason("layers.3.attention.wq.weight", "layers.3.attn.wq.weight").contains("similar"));
}

#[test]
fn a_renamed_module_is_paired_layer_by_layer() {
    let names = |module: &str| (0..40).map(|l| format!("layers.{l}.{module}.weight")).collect::<Vec<_>>();
    let (a, b) = (names("attention.wq"), names("attention.wqq"));
    let refs = |v: &[String]| registry(&v.iter().map(String::as_str).collect::<Vec<_>>());
    let (baseline, observed) = (refs(&a), refs(&b));
    let report = check(&baseline, Observed { registry: &observed, pieces: &[] });
    assert_eq!(report.of(Code::Renamed).count(), 40);
    for f in &report.findings {
        assert_eq!(f.id.fqn.as_str().replace("wq", "wqq"), f.observed.as_ref().unwrap().fqn.as_str());
    }
}

#[test]
fn layers_counted_from_one_are_renumbered_and_the_shift_is_told() {
    let baseline = registry(&["layers.0.w", "layers.1.w", "layers.2.w"]);
    let observed = registry(&["layers.4.w", "layers.5.w", "layers.6.w"]);
    let report = check(&baseline, Observed { registry: &observed, pieces: &[] });
    assert_eq!(report.of(Code::Renumbered).count(), 3);
    assert_eq!(report.findings.len(), 3);
    assert!(report.findings[0].detail.contains("shifted by +4"), "{}", report.findings[0].detail);
}

#[test]
fn a_stage_that_restarted_at_zero_is_explained() {
    let baseline = registry(&["layers.0.w", "layers.1.w", "layers.2.w", "layers.3.w"]);
    let observed = registry(&["layers.0.w", "layers.1.w"]);
    let pieces: Vec<Piece> = [("rank 0", 1), ("rank 1", 2)]
        .iter()
        .flat_map(|&(rank, d)| {
            [piece("layers.0.w", rank, &[0, 0], d), piece("layers.1.w", rank, &[0, 0], d + 10)]
        })
        .collect();
    let report = check(&baseline, Observed { registry: &observed, pieces: &pieces });
    assert_eq!(report.of(Code::Colliding).count(), 2);
    assert_eq!(report.of(Code::Missing).count(), 0);
    let renumbered: Vec<_> = report.of(Code::Renumbered).collect();
    assert_eq!(renumbered.len(), 2);
    assert!(
        renumbered[0]
            .detail
            .contains("layers.2 is missing while rank 0, rank 1 hold different layers.0 (shifted by -2)")
    );
}

#[test]
fn equal_replicas_and_disjoint_boxes_do_not_collide_and_overlaps_do() {
    let (baseline, observed) = (registry(&["w"]), registry(&["w"]));
    let collide = |pieces: &[Piece]| {
        check(&baseline, Observed { registry: &observed, pieces }).of(Code::Colliding).count()
    };
    let first = piece("w", "rank 0", &[0, 0], 1);
    assert_eq!(
        collide(&[first.clone(), piece("w", "rank 1", &[0, 0], 1), piece("w", "rank 2", &[2, 0], 5)]),
        0
    );
    assert_eq!(collide(&[first.clone(), piece("w", "rank 1", &[1, 0], 1)]), 1);
    assert_eq!(collide(&[first, piece("w", "rank 1", &[0, 0], 2)]), 1);
}

#[test]
fn forbidden_prefixes_are_found_even_where_the_baseline_has_them() {
    let names = ["_orig_mod.w", "_fsdp_wrapped_module._flat_param"];
    assert_eq!(
        compare(&registry(&names), &registry(&names)),
        ["forbidden-prefix _orig_mod.w", "forbidden-prefix _fsdp_wrapped_module._flat_param"]
    );
}

#[test]
fn ten_thousand_unlike_names_are_checked_in_a_moment() {
    let names = |word: &str| (0..10_000).map(|i| format!("{word}{i}x.weight")).collect::<Vec<_>>();
    let refs = |v: &[String]| registry(&v.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(compare(&refs(&names("left")), &refs(&names("right"))).len(), 20_000);
}

proptest! {
    #[test]
    fn every_tensor_is_accounted_for_once(
        a in prop::collection::btree_set("(layers\\.[0-3]\\.)?[a-c]{1,3}\\.weight", 1..10),
        b in prop::collection::btree_set("(layers\\.[0-3]\\.)?[a-c]{1,3}\\.weight", 1..10),
    ) {
        let refs = |s: &std::collections::BTreeSet<String>| registry(&s.iter().map(String::as_str).collect::<Vec<_>>());
        let report = check(&refs(&a), Observed { registry: &refs(&b), pieces: &[] });
        let both = a.intersection(&b).count();
        let paired = report.of(Code::Renamed).count() + report.of(Code::Renumbered).count();
        prop_assert_eq!(both + paired + report.of(Code::Missing).count(), a.len());
        prop_assert_eq!(both + paired + report.of(Code::Extra).count(), b.len());
        prop_assert_eq!(check(&refs(&a), Observed { registry: &refs(&b), pieces: &[] }), report);
    }
}
