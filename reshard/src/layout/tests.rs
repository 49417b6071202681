//! Layouts: torch's chunking, cutting order, stages, fused parts, meshes that are refused.

use std::collections::BTreeSet;

use fqn::{AxisName, Dtype, Entry, Fqn, FusionPart, Registry, Role, Shape};

use super::*;
use crate::{Mesh, Region};

fn entry(name: &str, shape: &[u64], rule: &str) -> Entry {
    let mut entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape));
    entry.placement = Some(rule.parse().unwrap());
    entry.layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
    entry
}

fn registry(entries: impl IntoIterator<Item = Entry>) -> Registry {
    let mut registry = Registry::new();
    for entry in entries {
        registry.push(entry).unwrap();
    }
    registry
}

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn one(entry: Entry, on: &str) -> Layout {
    Layout::new(&registry([entry]), &mesh(on), &StageSplit::Auto).unwrap()
}

fn of_ranks(layout: &Layout) -> Vec<String> {
    let tensor = &layout.tensors()[0];
    let ranks = 0..layout.mesh().ranks();
    ranks
        .map(|rank| {
            let coords = layout.mesh().coords(rank).unwrap();
            tensor
                .regions_of(layout.mesh(), &coords)
                .iter()
                .map(Region::to_string)
                .collect::<Vec<_>>()
                .join("+")
        })
        .collect()
}

#[test]
fn uneven_chunks_and_empty_shards_are_torchs() {
    // torch.chunk of 5 rows in 4: 2, 2, 1, and nothing, which sits at the dimension's end.
    assert_eq!(
        of_ranks(&one(entry("w", &[5, 3], "dp:0"), "4")),
        ["[0..2, 0..3]", "[2..4, 0..3]", "[4..5, 0..3]", "[5..5, 0..3]"]
    );
    // The chunk list that torch saves for a tensor of 1x3 on two ranks.
    assert_eq!(of_ranks(&one(entry("w", &[1, 3], "dp:0"), "2")), ["[0..1, 0..3]", "[1..1, 0..3]"]);
}

#[test]
fn fsdp_inside_tp_cuts_by_tp_first() {
    let layout = one(entry("w", &[16], "tp:0,dp:0"), "dp2,tp4");
    assert_eq!(
        of_ranks(&layout),
        ["[0..2]", "[4..6]", "[8..10]", "[12..14]", "[2..4]", "[6..8]", "[10..12]", "[14..16]"]
    );
    let other = one(entry("w", &[16], "dp:0,tp:0"), "dp2,tp4");
    assert_eq!(of_ranks(&other)[1], "[2..4]");
}

#[test]
fn cuts_on_different_dimensions_make_a_grid() {
    let layout = one(entry("w", &[4, 6], "tp:1,dp:0"), "dp2,tp2");
    assert_eq!(of_ranks(&layout), ["[0..2, 0..3]", "[0..2, 3..6]", "[2..4, 0..3]", "[2..4, 3..6]"]);
}

#[test]
fn a_tp_cut_falls_inside_every_fused_part_and_dp_cuts_what_is_left() {
    let mut fused = entry("gate_up", &[12], "tp:0,dp:0");
    fused.fusion = [("gate", 8), ("up", 4)]
        .map(|(name, extent)| FusionPart { name: name.into(), axis: 0, extent })
        .into();
    assert_eq!(of_ranks(&one(fused.clone(), "1x2")), ["[0..4]+[8..10]", "[4..8]+[10..12]"]);
    assert_eq!(
        of_ranks(&one(fused.clone(), "2x2")),
        ["[0..3]", "[4..7]", "[3..4]+[8..10]", "[7..8]+[10..12]"]
    );
    fused.fusion[1].extent = 5;
    let refused = Layout::new(&registry([fused]), &mesh("1x2"), &StageSplit::Auto).unwrap_err();
    assert_eq!(refused.to_string(), "fused parts of gate_up do not add up to dimension 0 of shape 12");
}

#[test]
fn padded_rows_are_cut_with_the_rest_and_dropped() {
    let mut embedding = entry("emb", &[10, 2], "tp:0");
    embedding.padded_rows = Some(16);
    assert_eq!(
        of_ranks(&one(embedding, "1x4")),
        ["[0..4, 0..2]", "[4..8, 0..2]", "[8..10, 0..2]", "[10..10, 0..2]"]
    );
}

#[test]
fn an_axis_that_the_mesh_lacks_does_not_cut_and_dp_replicate_replicates() {
    assert_eq!(of_ranks(&one(entry("w", &[4], "ep:0"), "2")), ["[0..4]", "[0..4]"]);
    let layout = one(entry("w", &[4], "dp:0"), "dp_replicate=2,dp_shard=2");
    assert_eq!(of_ranks(&layout), ["[0..2]", "[2..4]", "[0..2]", "[2..4]"]);
    let owners: Vec<Vec<u64>> = layout.shards(0).map(|(shard, _)| shard.owners.iter().collect()).collect();
    assert_eq!(owners, [[0, 2], [1, 3]]);
}

#[test]
fn scalars_and_empty_tensors_have_layouts() {
    let scalar = one(entry("step", &[], "replicate"), "3");
    assert_eq!(scalar.shards(0).count(), 1);
    let empty = one(entry("none", &[0, 3], "dp:0"), "2");
    assert_eq!(empty.shards(0).count(), 0);
    assert_eq!(of_ranks(&empty), ["[0..0, 0..3]", "[0..0, 0..3]"]);
}

#[test]
fn a_rule_that_does_not_fit_names_the_tensor() {
    let refuse = |entry: Entry, on: &str| {
        Layout::new(&registry([entry]), &mesh(on), &StageSplit::Auto).unwrap_err().to_string()
    };
    assert_eq!(
        refuse(entry("w", &[4], "tp:1"), "2x2"),
        "placement tp:1 of w cuts dimension 1, but its shape is 4"
    );
    assert_eq!(
        refuse(entry("s", &[], "dp:0"), "2x2"),
        "placement dp:0 of s cuts dimension 0, but its shape is scalar"
    );
    let bare = Entry { placement: None, ..entry("w", &[4], "replicate") };
    assert!(refuse(bare.clone(), "2").starts_with("no placement rule covers w"));
    assert!(Layout::new(&registry([bare]), &mesh("1x1x1"), &StageSplit::Auto).is_ok());
    assert!(refuse(entry("w", &[4], "pp:layer"), "1x2x1").contains("no layer index"));
    assert!(
        refuse(entry("w", &[4, 4], "dp:0,dp_shard:1"), "dp_shard=2")
            .contains("cuts twice over mesh axis dp_shard")
    );
}

fn model(layers: u64) -> Registry {
    let mut all = vec![entry("emb", &[64, 4], "pp:first")];
    all.extend((0..layers).map(|layer| entry(&format!("layers.{layer}.w"), &[8, 4], "tp:0,dp:0,pp:layer")));
    all.push(entry("tied", &[64, 4], "pp:first+last"));
    all.push(entry("norm", &[4], "pp:last"));
    registry(all)
}

#[test]
fn stages_split_evenly_explicitly_or_by_weight() {
    let sizes = |split: &str, layers, stages| {
        split.parse::<StageSplit>().unwrap().resolve(&model(layers), stages).map(|stages| stages.sizes())
    };
    assert_eq!(sizes("auto", 10, 4).unwrap(), [3, 3, 2, 2]);
    assert_eq!(sizes("1,2,3,4", 10, 4).unwrap(), [1, 2, 3, 4]);
    // Embeddings weigh 16 layers on the first stage, the tied copy and norm 8 on the last.
    assert_eq!(sizes("weights", 40, 3).unwrap(), [6, 22, 12]);
    assert_eq!(sizes("weights", 3, 3).unwrap(), [1, 1, 1]);
    for (split, layers, stages, why) in [
        ("auto", 3, 4, "3 layers do not fill 4 pipeline stages; pp can be at most 3"),
        ("1,2", 3, 3, "stage split 1,2 names 2 stages, but the mesh has pp=3"),
        ("1,3", 3, 2, "stage split 1,3 places 4 layers, but the model has 3"),
        ("1,0,2", 3, 3, "stage split 1,0,2 leaves a stage without layers"),
        ("1@0,2@2", 3, 2, "stage split 1@0,2@2 on pp=2: stage 1 is on rank 2, which isn't there"),
        ("1@1,2@1", 3, 2, "stage split 1@1,2@1 on pp=2: rank 0 has no stage"),
        ("1@0,1@1", 3, 2, "stage split 1@0,1@1 places 2 layers, but the model has 3"),
        ("1@0,0@1,2@0", 3, 2, "stage split 1@0,0@1,2@0 leaves a stage without layers"),
    ] {
        assert_eq!(sizes(split, layers, stages).unwrap_err().to_string(), why);
    }
    // Stages of embedding alone, and of the head alone.
    assert_eq!(sizes("0,3,0", 3, 3).unwrap(), [0, 3, 0]);
    assert_eq!(sizes("0@0,2@1,1@1,0@0", 3, 2).unwrap(), [0, 3]);
    assert_eq!("2@0,1@1,1@0".parse::<StageSplit>().unwrap().to_string(), "2@0,1@1,1@0");
    for text in ["8,x", "1@0,2", "1@,2@1", "1@0@1"] {
        assert!(text.parse::<StageSplit>().is_err(), "{text}");
    }
}

#[test]
fn stages_that_lie_where_they_are_placed_decide_who_holds_a_tensor() {
    let owners = |split: &str, tensor: usize| {
        let layout = Layout::new(&model(4), &mesh("1x2x1"), &split.parse().unwrap()).unwrap();
        layout.shards(tensor).flat_map(|(s, _)| s.owners.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    // A turning point: stages 0 and 3 on rank 0, so that what is first and last is there alone.
    let v = "1@0,1@1,1@1,1@0";
    assert_eq!(
        [0, 1, 2, 3, 4, 5, 6].map(|tensor| owners(v, tensor)),
        [vec![0], vec![0], vec![1], vec![1], vec![0], vec![0], vec![0]]
    );
    let round = "1@0,1@1,1@0,1@1";
    assert_eq!(
        [0, 1, 2, 3, 4, 5, 6].map(|tensor| owners(round, tensor)),
        [vec![0], vec![0], vec![1], vec![0], vec![1], vec![0, 1], vec![1]]
    );
    let stack = registry([entry("deep", &[4, 2], "pp:layers@0")]);
    let refused = Layout::new(&stack, &mesh("1x2x1"), &"2@0,2@1".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("deep stacks layers"), "{refused}");
}

#[test]
fn stacks_of_unequal_depth_weigh_on_the_layers_that_they_have() {
    // Layers of 108, 108, 8 and 8 bytes.
    let stacks = [entry("deep", &[4, 2], "pp:layers@0"), entry("wide", &[25, 2], "pp:layers@1")];
    let stages = StageSplit::Weights.resolve(&registry(stacks), 2).unwrap();
    assert_eq!(stages.sizes(), [1, 3]);
    let spans = |layers| [0, 1].map(|stage| stages.span(stage, layers));
    assert_eq!((spans(4), spans(2), spans(0)), ([(0, 1), (1, 3)], [(0, 1), (1, 1)], [(0, 0), (0, 0)]));
}

#[test]
fn as_many_stages_as_layers_can_be_are_laid_out_without_going_through_all_for_each() {
    let most = MAX_LAYERS;
    let stacks = (0..8).map(|n| entry(&format!("w{n}"), &[most, 1], "pp:layers@0"));
    let layout = Layout::new(&registry(stacks), &mesh(&format!("pp={most}")), &StageSplit::Auto).unwrap();
    assert_eq!(layout.stages().sizes(), vec![1; usize::try_from(most).unwrap()]);
    assert_eq!(layout.stages().span(most - 1, most), (most - 1, 1));
    assert_eq!(layout.boxes(7)[5], (Region::new(&[5, 0], &[1, 1]).unwrap(), 5));
}

#[test]
fn stages_decide_who_holds_a_tensor() {
    let layout = Layout::new(&model(4), &mesh("1x4x1"), &StageSplit::Auto).unwrap();
    let owners = |tensor: usize| {
        layout.shards(tensor).flat_map(|(s, _)| s.owners.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(owners(0), [0]);
    assert_eq!(owners(3), [2]);
    assert_eq!(owners(5), [0, 3]);
    assert_eq!(owners(6), [3]);
    assert!(layout.tensors()[5].is_held_at(layout.mesh(), &[0, 3, 0]));
    assert!(!layout.tensors()[5].is_held_at(layout.mesh(), &[0, 1, 0]));
}

#[test]
fn tied_names_lie_on_the_same_stages_or_the_tie_is_declared_on_both() {
    let tied = |embedding: &str, head: &str, on: &str| {
        let mut all = vec![entry("emb", &[8, 4], embedding), entry("head", &[8, 4], head)];
        all.iter_mut().for_each(|entry| entry.tie = Some(Fqn::new("emb").unwrap()));
        all.extend((0..3).map(|layer| entry(&format!("layers.{layer}.w"), &[4], "pp:layer")));
        Layout::new(&registry(all), &mesh(on), &StageSplit::Auto)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(tied("pp:first+last", "pp:first+last", "1x3x1"), Ok(()));
    assert_eq!(tied("pp:first", "pp:first", "1x3x1"), Ok(()));
    assert_eq!(tied("pp:first", "pp:last", "2x1x2"), Ok(()));
    assert_eq!(tied("pp:first+last", "replicate", "1x2x1"), Ok(()));
    assert_eq!(
        tied("tp:0,pp:first", "pp:last", "1x3x1").unwrap_err(),
        "emb (placed tp:0,pp:first) and head (placed pp:last) are one tensor, but lie on different pipeline stages: \
         place both on one stage, or declare the tie on both with pp:first+last"
    );
}

#[test]
fn a_mixture_of_experts_lies_on_data_pipeline_expert_and_tensor_parallel_ranks() {
    // A DeepSeek-style model of 4 layers, the first one dense, 6 experts: every expert is on its own part of ep alone, all else
    // on every part.
    let mut model = Registry::new();
    let mut push = |name: String, shape: &[u64]| {
        model.push(Entry { placement: None, ..entry(&name, shape, "replicate") }).unwrap();
    };
    push("model.embed_tokens.weight".into(), &[50, 8]);
    for layer in 0..4 {
        let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
        push(at("self_attn.q_a_proj"), &[6, 8]);
        push(at("self_attn.q_b_proj"), &[24, 6]);
        push(at("self_attn.kv_a_proj_with_mqa"), &[5, 8]);
        push(at("self_attn.kv_b_proj"), &[16, 4]);
        push(at("self_attn.o_proj"), &[8, 12]);
        push(at("input_layernorm"), &[8]);
        let experts = (0..if layer == 0 { 0 } else { 6 }).map(|n| format!("mlp.experts.{n}."));
        let mut lists: Vec<String> = experts.collect();
        if layer == 0 {
            lists.push("mlp.".into());
        } else {
            push(at("mlp.gate"), &[6, 8]);
            lists.push("mlp.shared_experts.".into());
        }
        for list in lists {
            push(at(&format!("{list}gate_proj")), &[14, 8]);
            push(at(&format!("{list}up_proj")), &[14, 8]);
            push(at(&format!("{list}down_proj")), &[8, 14]);
        }
    }
    push("model.norm.weight".into(), &[8]);
    push("lm_head.weight".into(), &[50, 8]);
    let (rules, _) = fqn::preset::detect(&model);
    assert_eq!(rules.unwrap().preset.as_ref().unwrap().name, "deepseek-hf");
    rules.unwrap().apply(&mut model).unwrap();
    for on in ["dp=2,pp=2,ep=3,tp=2", "dp_shard=2,ep=4,pp=3", "ep=6,tp=2,dp=1,pp=4", "dp=5"] {
        let layout = Layout::new(&model, &mesh(on), &StageSplit::Weights).unwrap();
        let ep = layout.mesh().axis("ep").unwrap_or(1);
        for (at, (entry, tensor)) in model.entries().iter().zip(layout.tensors()).enumerate() {
            let regions: Vec<Region> = layout.shards(at).map(|(shard, _)| shard.region).collect();
            assert_eq!(crate::coverage::check(tensor.shape(), &regions), Ok(()), "{on} {}", entry.fqn);
            let parts: BTreeSet<u64> = (0..layout.mesh().ranks())
                .map(|rank| layout.mesh().coords(rank).unwrap())
                .filter(|coords| tensor.is_held_at(layout.mesh(), coords))
                .map(|coords| layout.mesh().position("ep").map_or(0, |at| coords[at]))
                .collect();
            let expected: Vec<u64> = match entry.expert {
                Some(expert) => vec![u64::from(expert) / 6_u64.div_ceil(ep)],
                None => (0..ep).collect(),
            };
            assert_eq!(parts.into_iter().collect::<Vec<_>>(), expected, "{on} {}", entry.fqn);
        }
    }
}

#[test]
fn each_shard_has_one_writer_among_its_owners_and_work_is_balanced() {
    let replicated = (0..32).map(|n| entry(&format!("n{n}"), &[100 + n], "replicate"));
    let layout = Layout::new(&registry(replicated), &mesh("2x2x2"), &StageSplit::Auto).unwrap();
    let writers: BTreeSet<u64> = (0..32).flat_map(|t| layout.shards(t).map(|(_, writer)| writer)).collect();
    assert_eq!(writers.len(), 8);
    assert!(layout.write_imbalance() < 1.1, "{}", layout.write_imbalance());
    let total: u64 = layout.ranks().iter().map(|rank| rank.written).sum();
    assert_eq!(total, (0..32).map(|n| 4 * (100 + n)).sum::<u64>());
    assert!(layout.ranks().iter().all(|rank| rank.model == total));
    for tensor in 0..32 {
        assert!(layout.shards(tensor).all(|(shard, writer)| shard.owners.contains(writer)));
    }
}

#[test]
fn owners_are_exactly_the_ranks_that_hold_the_region() {
    let layout = Layout::new(&model(5), &mesh("3x2x2"), &StageSplit::Auto).unwrap();
    for (at, tensor) in layout.tensors().iter().enumerate() {
        for (shard, _) in layout.shards(at) {
            let listed: Vec<u64> = shard.owners.iter().collect();
            let held = (0..12).filter(|rank| {
                let coords = layout.mesh().coords(*rank).unwrap();
                tensor.regions_of(layout.mesh(), &coords).contains(&shard.region)
            });
            assert_eq!(listed, held.collect::<Vec<_>>());
            assert!((0..14).all(|rank| shard.owners.contains(rank) == listed.contains(&rank)));
            assert_eq!(shard.owners.len(), listed.len() as u64);
        }
    }
}

#[test]
fn a_mesh_that_does_not_divide_the_model_is_refused_with_meshes_that_do() {
    let demand = |what: &str, count, uneven| Divisibility {
        what: what.into(),
        count,
        axis: AxisName::new("tp").unwrap(),
        tensors: "layers.*.wk".into(),
        uneven,
    };
    let refused =
        check_divisibility(&mesh("1x1x16"), &[demand("heads", 32, false), demand("KV heads", 8, false)]);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "8 KV heads do not divide over tp=16 (layers.*.wk); meshes that fit: dp=2 pp=1 tp=8; dp=4 pp=1 tp=4; dp=8 pp=1 tp=2"
    );
    assert_eq!(check_divisibility(&mesh("2x1x3"), &[demand("rows", 8, true)]), Ok(()));
    assert_eq!(check_divisibility(&mesh("2x2"), &[demand("heads", 32, false)]), Ok(()));
    let none = check_divisibility(&mesh("tp=3"), &[demand("heads", 8, false)]).unwrap_err().to_string();
    assert!(none.contains("no mesh of as many ranks fits"), "{none}");
}

#[test]
fn boxes_are_the_shards_with_their_writers_also_of_fused_uneven_replicated_and_empty_tensors() {
    let mut fused = entry("gate_up", &[12, 5], "tp:0,dp:1");
    fused.fusion = [("gate", 8), ("up", 4)]
        .map(|(name, extent)| FusionPart { name: name.into(), axis: 0, extent })
        .into();
    let mut padded = entry("embed", &[7, 3], "tp:0,dp:0");
    padded.padded_rows = Some(12);
    let all = [
        fused,
        padded,
        entry("uneven", &[3, 10], "tp:1,dp:0"),
        entry("norm", &[4], "replicate"),
        entry("scalar", &[], "replicate"),
        entry("hollow", &[0, 4], "dp:1"),
    ];
    for on in ["1", "2x2", "3x4", "dp=2,pp=2,tp=2"] {
        let layout = Layout::new(&registry(all.clone()), &mesh(on), &StageSplit::Auto).unwrap();
        for (at, entry) in all.iter().enumerate() {
            let shards =
                layout.shards(at).map(|(shard, writer)| (shard.region, u32::try_from(writer).unwrap()));
            assert_eq!(layout.boxes(at), shards.collect::<Vec<_>>(), "{} on {on}", entry.fqn);
        }
    }
    assert!(Layout::new(&registry(all), &mesh("2x2"), &StageSplit::Auto).unwrap().boxes(6).is_empty());
}
