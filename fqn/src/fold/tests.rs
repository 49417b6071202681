//! Folding: every line matches its members and nothing else.

use proptest::prelude::*;

use super::*;
use crate::pattern::Pattern;

fn patterns(names: &[&str]) -> Vec<String> {
    fold(names).into_iter().map(|line| line.pattern).collect()
}

#[test]
fn layers_fold_into_ranges_with_gaps() {
    let names: Vec<String> =
        [0, 1, 2, 3, 7].iter().map(|l| format!("layers.{l}.attention.wq.weight")).collect();
    let folded = fold(&names);
    assert_eq!(folded.len(), 1);
    assert_eq!(folded[0].pattern, "layers.{0..3,7}.attention.wq.weight");
    assert_eq!(folded[0].members, [0, 1, 2, 3, 4]);
}

#[test]
fn experts_fold_as_a_product_and_an_odd_layer_gets_its_own_line() {
    let mut names: Vec<String> =
        (0..3).flat_map(|l| (0..4).map(move |e| format!("layers.{l}.experts.{e}.w1"))).collect();
    names.push("layers.3.experts.0.w1".into());
    let refs: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(patterns(&refs), ["layers.{0..2}.experts.{0..3}.w1", "layers.3.experts.0.w1"]);
}

#[test]
fn lines_keep_the_order_of_first_appearance_and_single_names_stay_as_they_are() {
    let names = ["tok_embeddings.weight", "layers.0.w", "layers.1.w", "norm.weight"];
    assert_eq!(patterns(&names), ["tok_embeddings.weight", "layers.{0,1}.w", "norm.weight"]);
}

#[test]
fn names_that_differ_in_the_key_do_not_share_a_line() {
    let folded = fold_by(&["h.0.w", "h.1.w", "h.2.w"], |at| at == 1);
    assert_eq!(folded.iter().map(|f| f.pattern.as_str()).collect::<Vec<_>>(), ["h.{0,2}.w", "h.1.w"]);
}

#[test]
fn layers_and_experts_are_read_from_names() {
    assert_eq!(layer_of("model.layers.12.self_attn.q_proj.weight"), Some(12));
    assert_eq!(layer_of("transformer.h.3.attn.c_attn.weight"), Some(3));
    assert_eq!(layer_of("features.3.weight"), None);
    assert_eq!(layer_of("layers.012.w"), None);
    assert_eq!(expert_of("model.layers.1.block_sparse_moe.experts.7.w1.weight"), Some(7));
    assert_eq!(with_layer("layers.0.experts.0.w1", 9).as_deref(), Some("layers.9.experts.0.w1"));
}

proptest! {
    #[test]
    fn every_line_matches_its_members_and_no_other_name(
        tuples in prop::collection::btree_set((0u32..6, 0u32..4, "[ab]"), 1..40),
    ) {
        let names: Vec<String> =
            tuples.iter().map(|(l, e, leaf)| format!("layers.{l}.experts.{e}.{leaf}")).collect();
        let folded = fold(&names);
        let mut seen = vec![0; names.len()];
        for line in &folded {
            let pattern = Pattern::new(&line.pattern).unwrap();
            for (at, name) in names.iter().enumerate() {
                prop_assert_eq!(pattern.matches(name), line.members.contains(&at));
            }
            line.members.iter().for_each(|&m| seen[m] += 1);
        }
        prop_assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn an_index_set_reads_back(indices in prop::collection::vec(any::<u32>(), 1..20)) {
        let set: IndexSet = indices.iter().copied().collect();
        prop_assert_eq!(IndexSet::parse(&set.to_string()), Some(set.clone()));
        prop_assert!(indices.iter().all(|&i| set.contains(i)));
    }
}
