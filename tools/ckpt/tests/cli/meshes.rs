//! Checkpoints on their way over meshes and back, in real stores: every file of every rank has the bytes that it had.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::place::{Place, names};

/// Name, dtype as safetensors has it, shape.
type Tensor = (String, &'static str, Vec<u64>);

/// Writes one safetensors file, its bytes as good as random, so that any that is misplaced shows.
fn write(file: &Path, tensors: &[Tensor]) {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let width = match *dtype {
            "I64" => 8,
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let start = end;
        end += shape.iter().product::<u64>() * width;
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut content = (header.len() as u64).to_le_bytes().to_vec();
    content.extend(header.as_bytes());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let whole = content.len() + usize::try_from(end).unwrap();
    while content.len() < whole {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend(state.to_le_bytes());
    }
    content.truncate(whole);
    fs::write(file, content).unwrap();
}

struct Llama {
    layers: u64,
    hidden: u64,
    feed_forward: u64,
    key_value: u64,
    vocabulary: u64,
}

impl Llama {
    fn parameters(&self) -> Vec<(String, Vec<u64>)> {
        let Self { layers, hidden, feed_forward, key_value, vocabulary } = *self;
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden])];
        for layer in 0..layers {
            let parts = [
                ("input_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.k_proj", vec![key_value, hidden]),
                ("self_attn.v_proj", vec![key_value, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("mlp.gate_proj", vec![feed_forward, hidden]),
                ("mlp.up_proj", vec![feed_forward, hidden]),
                ("mlp.down_proj", vec![hidden, feed_forward]),
            ];
            let named = |(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape);
            all.extend(parts.into_iter().map(named));
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        all.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
        all
    }

    /// Parameters and what Adam keeps of each.
    fn with_moments(&self) -> Vec<Tensor> {
        let mut all = Vec::new();
        for (name, shape) in self.parameters() {
            for slot in ["exp_avg", "exp_avg_sq"] {
                all.push((format!("optimizer.state.{name}.{slot}"), "F32", shape.clone()));
            }
            all.push((format!("optimizer.state.{name}.step"), "F32", Vec::new()));
            all.push((name, "BF16", shape));
        }
        all
    }
}

/// The data files of a root's only commit by rank and number, without the writer's nonce.
fn blobs(root: &Path) -> BTreeMap<String, PathBuf> {
    let step = names(root).into_iter().find(|name| name.starts_with("step-")).unwrap();
    let data = root.join(step).join("data");
    let key = |name: &str| name.rsplit_once('-').unwrap().0.to_owned();
    names(&data).into_iter().map(|name| (key(&name), data.join(name))).collect()
}

fn assert_identical(one: &Path, other: &Path, files: usize) {
    let (one, other) = (blobs(one), blobs(other));
    assert_eq!(one.len(), files);
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (key, file) in &one {
        assert!(fs::read(file).unwrap() == fs::read(&other[key]).unwrap(), "{key}");
    }
}

/// Reshards into a new root; everything proven, every byte read and written once.
fn reshard(place: &Place, source: &str, target: &str, mesh: &str, more: &[&str]) {
    let outcome = place.json(&[&["reshard", source, target, "--to", mesh], more].concat());
    let (result, report) = (&outcome["result"], &outcome["result"]["report"]);
    assert_eq!(report["proven"], result["tensors"], "{report}");
    assert_eq!(report["passes"], 1, "{report}");
    assert!(report["read_amplification"].as_f64().unwrap() <= 1.02, "{report}");
    assert_eq!(report["bytes_read"], report["bytes_verified"], "{report}");
}

#[test]
fn over_three_meshes_and_back_every_file_of_every_rank_is_as_it_was() {
    let place = Place::new();
    // Tensor parallelism divides heads and width, as it must; nothing else divides.
    let model = Llama { layers: 5, hidden: 80, feed_forward: 168, key_value: 40, vocabulary: 301 };
    write(&place.path("source.safetensors"), &model.with_moments());
    let facts = ["--heads", "16", "--kv-heads", "8"];
    place.done(&[&["convert", "source.safetensors", "a", "--to", "4x2x8"], &facts[..]].concat());
    reshard(&place, "a", "b", "8x1x8", &facts);
    reshard(&place, "b", "c", "1x1x1", &facts);
    reshard(&place, "c", "d", "4x2x8", &facts);
    assert_identical(&place.path("a"), &place.path("d"), 64);
    reshard(&place, "a", "straight", "1x1x1", &facts);
    assert_identical(&place.path("c"), &place.path("straight"), 1);
    for root in ["a", "b", "c", "d"] {
        let same = place.json(&["diff", "source.safetensors", root]);
        assert_eq!(same["result"]["same"], true, "{same}");
    }
}

#[test]
fn a_model_of_seventy_billion_at_a_thousandth_goes_from_a_mesh_of_three_axes_to_one_and_back() {
    let place = Place::new();
    // Llama 3 70B, widths by sixteen and layers by four: 75 million parameters.
    let model = Llama { layers: 20, hidden: 512, feed_forward: 1792, key_value: 64, vocabulary: 8016 };
    let tensors: Vec<Tensor> =
        model.parameters().into_iter().map(|(name, shape)| (name, "BF16", shape)).collect();
    write(&place.path("source.safetensors"), &tensors);
    let (data_fsdp_tensor, fsdp) = ("dp_replicate=4,dp_shard=8,tp=4", "dp_replicate=1,dp_shard=128,tp=1");
    let facts = ["--heads", "64", "--kv-heads", "8"];
    place.done(&[&["convert", "source.safetensors", "a", "--to", data_fsdp_tensor], &facts[..]].concat());
    fs::remove_file(place.path("source.safetensors")).unwrap();
    reshard(&place, "a", "b", fsdp, &facts);
    assert_eq!(blobs(&place.path("b")).len(), 128);
    reshard(&place, "b", "c", data_fsdp_tensor, &facts);
    // Rows of 32 ranks, each written by one of its four replicas.
    assert_identical(&place.path("a"), &place.path("c"), 128);
    let same = place.json(&["diff", "a", "b", "--level", "hash"]);
    assert_eq!(same["result"]["same"], true, "{same}");
}

#[test]
fn from_64_ranks_to_48_and_back_with_nothing_that_divides() {
    let place = Place::new();
    let mut tensors: Vec<Tensor> = vec![
        ("embed".to_owned(), "BF16", vec![1009, 31]),
        ("head".to_owned(), "F8_E4M3", vec![997, 29]),
        ("none".to_owned(), "F32", vec![0, 5]),
        ("count".to_owned(), "I64", Vec::new()),
        ("narrow".to_owned(), "I64", vec![1, 61]),
    ];
    for layer in 0..7 {
        let mut push = |part: &str, dtype, shape: &[u64]| {
            tensors.push((format!("layers.{layer}.{part}"), dtype, shape.to_vec()));
        };
        push("rows", "F32", &[131, 17]);
        push("columns", "BF16", &[19, 127]);
        push("few", "U8", &[3, 5]);
        push("cube", "F32", &[7, 11, 13]);
        push("four", "BF16", &[5, 2, 23, 3]);
        push("scale", "F32", &[13]);
    }
    write(&place.path("source.safetensors"), &tensors);
    let rules = [
        "{none,count}=replicate",
        "embed=tp:0,dp:0,pp:first",
        "head=dp:1,tp:0,pp:last",
        "narrow=dp:1,tp:1,pp:first+last",
        "layers.*.rows=tp:0,dp:0,pp:layer",
        "layers.*.columns=tp:1,dp:1,pp:layer",
        "layers.*.few=dp:0,tp:1,pp:layer",
        "layers.*.cube=tp:2,dp:1,pp:layer",
        "layers.*.four=dp:2,tp:0,pp:layer",
        "layers.*.scale=dp:0,pp:layer",
    ];
    let rules: Vec<&str> = rules.iter().flat_map(|rule| ["--place", *rule]).collect();
    place.done(&[&["convert", "source.safetensors", "a", "--to", "4x2x8"], &rules[..]].concat());
    reshard(&place, "a", "b", "4x3x4", &[]);
    reshard(&place, "b", "c", "4x2x8", &[]);
    assert_identical(&place.path("a"), &place.path("c"), 64);
    reshard(&place, "a", "d", "2x4x6", &["--stage-split", "1,3,1,2"]);
    reshard(&place, "d", "e", "4x2x8", &["--stage-split", "auto"]);
    assert_identical(&place.path("a"), &place.path("e"), 64);
    let same = place.json(&["diff", "source.safetensors", "d"]);
    assert_eq!(same["result"]["same"], true, "{same}");
}
