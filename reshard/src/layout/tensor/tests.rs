//! Cuts of one tensor: axes that act as one, cutting order, fused parts, vocabulary padding, stacked layers, experts.

use fqn::{Dtype, Entry, Fqn, FusionPart, PlacementRule, Registry, Role, Shape};

use crate::{Layout, LayoutError, Mesh, Region, StageSplit, coverage};

fn entry(name: &str, shape: &[u64], rule: &str) -> Entry {
    let mut entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F32, Shape::new(shape));
    entry.placement = Some(rule.parse::<PlacementRule>().unwrap());
    (entry.layer, entry.expert) = (fqn::fold::layer_of(name), fqn::fold::expert_of(name));
    entry
}

fn fused(shape: &[u64], rule: &str, axis: usize, parts: &[(&str, u64)]) -> Entry {
    let mut entry = entry("fused", shape, rule);
    entry.fusion = parts
        .iter()
        .map(|(name, extent)| FusionPart { name: (*name).into(), axis, extent: *extent })
        .collect();
    entry
}

fn layout(entries: impl IntoIterator<Item = Entry>, on: &str) -> Result<Layout, LayoutError> {
    let mut registry = Registry::new();
    for entry in entries {
        registry.push(entry).unwrap();
    }
    Layout::new(&registry, &on.parse::<Mesh>().unwrap(), &StageSplit::Auto)
}

/// What every rank holds of tensor `at`; empty where another one has it.
fn of_ranks(layout: &Layout, at: usize) -> Vec<String> {
    let tensor = &layout.tensors()[at];
    let regions: Vec<Region> = layout.shards(at).map(|(shard, _)| shard.region).collect();
    assert_eq!(coverage::check(tensor.shape(), &regions), Ok(()));
    let held = |rank| {
        let coords = layout.mesh().coords(rank).unwrap();
        let regions = tensor.regions_of(layout.mesh(), &coords);
        regions.iter().map(Region::to_string).collect::<Vec<_>>().join("+")
    };
    (0..layout.mesh().ranks()).map(held).collect()
}

fn one(entry: Entry, on: &str) -> Vec<String> {
    of_ranks(&layout([entry], on).unwrap(), 0)
}

#[test]
fn axes_that_act_as_one_cut_into_equal_chunks_and_nested_ones_do_not() {
    // Ten rows over a flattened mesh of four, as FSDP shards over dp_shard × cp: 3, 3, 3, 1.
    let joined = one(entry("w", &[10], "dp+cp:0"), "dp_shard=2,cp=2");
    assert_eq!(joined, ["[0..3]", "[3..6]", "[6..9]", "[9..10]"]);
    let nested = one(entry("w", &[10], "dp:0,cp:0"), "dp_shard=2,cp=2");
    assert_eq!(nested, ["[0..3]", "[3..5]", "[5..8]", "[8..10]"]);
    // Where one of the axes is missing, the other cuts alone.
    assert_eq!(one(entry("w", &[10], "dp+cp:0"), "dp=2"), ["[0..5]", "[5..10]"]);
    assert_eq!(one(entry("w", &[10], "dp+cp:0"), "tp=2"), ["[0..10]", "[0..10]"]);
    let twice = layout([entry("w", &[10], "dp+dp_shard:0")], "dp_shard=2").unwrap_err();
    assert!(twice.to_string().contains("cuts twice over mesh axis dp_shard"), "{twice}");
}

#[test]
fn several_axes_on_one_dimension_may_cut_in_either_order() {
    // FSDP inside TP (torch's strided shard) and TP inside FSDP, on the same mesh, uneven.
    let strided = one(entry("w", &[11], "tp:0,dp:0"), "dp2,tp2");
    assert_eq!(strided, ["[0..3]", "[6..9]", "[3..6]", "[9..11]"]);
    let plain = one(entry("w", &[11], "dp:0,tp:0"), "dp2,tp2");
    assert_eq!(plain, ["[0..3]", "[3..6]", "[6..9]", "[9..11]"]);
    let three = one(entry("w", &[13, 2], "ep:0,tp:0,dp:0"), "dp2,ep2,tp2");
    assert_eq!(three[0], "[0..2, 0..2]");
    assert_eq!(three[7], "[12..13, 0..2]");
}

#[test]
fn a_tp_cut_falls_inside_each_part_of_a_state_space_projection() {
    // z, x, B, C, dt of a Mamba 2 block: each is cut over tp by itself, however unequal.
    let parts = [("z", 8), ("x", 8), ("B", 4), ("C", 4), ("dt", 2)];
    assert_eq!(
        one(fused(&[26, 3], "tp:0,dp:1", 0, &parts), "1x2"),
        [
            "[0..4, 0..3]+[8..12, 0..3]+[16..18, 0..3]+[20..22, 0..3]+[24..25, 0..3]",
            "[4..8, 0..3]+[12..16, 0..3]+[18..20, 0..3]+[22..24, 0..3]+[25..26, 0..3]"
        ]
    );
    // Parts may lie along any dimension: GPT-2 stores (in, out).
    let columns = fused(&[2, 6], "tp:1", 1, &[("q", 2), ("k", 2), ("v", 2)]);
    assert_eq!(one(columns, "1x2")[1], "[0..2, 1..2]+[0..2, 3..4]+[0..2, 5..6]");
}

#[test]
fn query_key_value_rows_of_whole_groups_stay_together() {
    // Two groups of 2 query heads, one key, one value, each of 2 rows: interleaved rows are cut as they lie.
    assert_eq!(one(entry("qkv", &[16], "tp:0"), "1x2"), ["[0..8]", "[8..16]"]);
    // The same heads as three parts: each rank takes its heads of every part, and packs them one after another.
    let split = layout([fused(&[16], "tp:0", 0, &[("q", 8), ("k", 4), ("v", 4)])], "1x2").unwrap();
    assert_eq!(of_ranks(&split, 0), ["[0..4]+[8..10]+[12..14]", "[4..8]+[10..12]+[14..16]"]);
    let local = split.tensors()[0].local(split.mesh(), &[0, 1]).unwrap().unwrap();
    let text: Vec<String> = local.pieces.iter().map(|p| format!("{} = {}", p.local, p.global)).collect();
    assert_eq!(text, ["[0..4] = [4..8]", "[4..6] = [10..12]", "[6..8] = [14..16]"]);
}

#[test]
fn vocabulary_padding_follows_tp_and_belongs_to_no_tensor() {
    // 50,257 rows padded to multiples of 128 × tp, as Megatron does: 50,304 on one rank, 51,200 on eight.
    let embedding = || entry("emb", &[50_257, 2], "tp:0%128");
    let padded = |on: &str| layout([embedding()], on).unwrap().tensors()[0].padded_shape().to_string();
    assert_eq!(padded("1"), "50304x2");
    assert_eq!(padded("1x2"), "50432x2");
    assert_eq!(padded("1x8"), "51200x2");
    let eight = layout([embedding()], "1x8").unwrap();
    assert_eq!(of_ranks(&eight, 0)[7], "[44800..50257, 0..2]");
    let local = eight.tensors()[0].local(eight.mesh(), &[0, 7]).unwrap().unwrap();
    assert_eq!(local.shape, Shape::new(&[6400, 2]));
    assert_eq!(local.padding, [Region::new(&[5457, 0], &[943, 2]).unwrap()]);
    // Formats that repeat the last true row in their padding.
    let rows: Vec<_> = local.last_row_pieces().collect();
    assert_eq!(rows.len(), 943);
    assert_eq!(rows[942].local, Region::new(&[6399, 0], &[1, 2]).unwrap());
    assert_eq!(rows[942].global, Region::new(&[50_256, 0], &[1, 2]).unwrap());
}

#[test]
fn a_rank_of_nothing_but_padding_holds_no_element() {
    let layout = layout([entry("emb", &[3, 4], "tp:0%2,dp:1")], "dp=2,tp=4").unwrap();
    assert_eq!(of_ranks(&layout, 0)[..4], ["[0..2, 0..2]", "[2..3, 0..2]", "[3..3, 0..2]", "[3..3, 0..2]"]);
    let local = layout.tensors()[0].local(layout.mesh(), &[1, 3]).unwrap().unwrap();
    assert_eq!((local.shape.to_string().as_str(), local.pieces.len()), ("2x2", 0));
    let row = local.last_row_pieces().next().unwrap();
    assert_eq!(row.global, Region::new(&[2, 2], &[1, 2]).unwrap());
    let huge = self::layout([entry("emb", &[u64::MAX, 1], "tp:0%128")], "1x2").unwrap_err();
    assert!(huge.to_string().ends_with("which then exceeds 64 bits"), "{huge}");
    let mut parts = fused(&[4], "tp:0%2", 0, &[("a", 4)]);
    parts.fqn = Fqn::new("p").unwrap();
    assert!(self::layout([parts], "1x2").unwrap_err().to_string().contains("consists of fused parts"));
}

#[test]
fn padding_that_no_rank_could_hold_is_refused() {
    let why = |entry: Entry| layout([entry], "1x2").unwrap_err().to_string();
    assert_eq!(
        why(entry("w", &[5, 2], "tp:0%2,dp:0%3")),
        "w (placed tp:0%2,dp:0%3) is padded along dimension 0 of shape 5x2, which another cut pads too"
    );
    // Each dimension by itself fits, both together do not.
    let half = (1_u64 << 31) + 1;
    let exceeds = "which then exceeds 64 bits";
    assert!(why(entry("w", &[half, half], "tp:0%2147483648,dp:1%4294967296")).ends_with(exceeds));
    let rows = |shape: &[u64], rule, padded| Entry { padded_rows: Some(padded), ..entry("w", shape, rule) };
    assert!(why(rows(&[2, 1 << 40], "tp:0", 1 << 30)).ends_with(exceeds));
    assert!(why(rows(&[0, 1 << 40], "tp:0", 1 << 30)).ends_with(exceeds));
    assert!(why(rows(&[2, 3], "pp:layers@0", 4)).ends_with("which stacks layers"));
    assert!(why(entry("w", &[2, 3], "tp:0%2,pp:layers@0")).ends_with("which stacks layers"));
    let parts = fused(&[4], "tp:0", 0, &[("a", 4)]);
    assert!(why(Entry { padded_rows: Some(6), ..parts.clone() }).ends_with("which consists of fused parts"));
    // Rows that are not more than there are pad nothing, and a rule that pads rows wins over them.
    assert_eq!(one(Entry { padded_rows: Some(4), ..parts }, "1x2"), ["[0..2]", "[2..4]"]);
    let ruled = layout([rows(&[5], "tp:0%3", u64::MAX)], "1x2").unwrap();
    assert_eq!(ruled.tensors()[0].padded_shape(), Shape::new(&[6]));
}

#[test]
fn stacked_layers_lie_on_the_stages_of_their_layers() {
    let stacked = || entry("decoder.layers.wq", &[5, 4, 2], "tp:1,dp:1,pp:layers@0");
    let layout = layout([stacked()], "dp=1,pp=2,tp=2").unwrap();
    assert_eq!(layout.stages().sizes(), [3, 2]);
    assert_eq!(
        of_ranks(&layout, 0),
        ["[0..3, 0..2, 0..2]", "[0..3, 2..4, 0..2]", "[3..5, 0..2, 0..2]", "[3..5, 2..4, 0..2]"]
    );
    let mut registry = Registry::new();
    registry.push(stacked()).unwrap();
    let declared = Layout::new(&registry, &"1x3x1".parse().unwrap(), &"1,1,3".parse().unwrap()).unwrap();
    assert_eq!(of_ranks(&declared, 0), ["[0..1, 0..4, 0..2]", "[1..2, 0..4, 0..2]", "[2..5, 0..4, 0..2]"]);
    let refused = self::layout([stacked()], "1x6x1").unwrap_err();
    assert_eq!(refused.to_string(), "5 layers do not fill 6 pipeline stages; pp can be at most 5");
    let endless = self::layout([entry("w", &[u64::MAX, 1], "pp:layers@0")], "1x2x1").unwrap_err();
    assert!(endless.to_string().contains("at most 65536 can be"), "{endless}");
    assert!(self::layout([entry("w", &[4], "pp:layers@1")], "1x2x1").is_err());
}

#[test]
fn experts_lie_where_rows_of_a_stacked_tensor_would() {
    let apart =
        (0..6).map(|n| entry(&format!("layers.0.experts.{n}.w1"), &[4, 2], "ep:expert,tp:0,pp:layer"));
    let apart = layout(apart, "ep=4,tp=2").unwrap();
    let stacked =
        layout([entry("layers.0.experts.w1", &[6, 4, 2], "ep:0,tp:1,pp:layer")], "ep=4,tp=2").unwrap();
    for rank in 0..8 {
        let coords = stacked.mesh().coords(rank).unwrap();
        let rows = stacked.tensors()[0].regions_of(stacked.mesh(), &coords)[0].clone();
        let held = (0..6).filter(|n| !apart.tensors()[*n].regions_of(apart.mesh(), &coords).is_empty());
        let (first, count) = (rows.offsets()[0], rows.extents()[0]);
        assert_eq!(held.map(|n| n as u64).collect::<Vec<_>>(), (first..first + count).collect::<Vec<_>>());
    }
    assert_eq!(of_ranks(&apart, 5)[6], "");
    assert_eq!(of_ranks(&apart, 5)[4], "[0..2, 0..2]");
    let nameless = layout([entry("w", &[4], "ep:expert")], "ep=2").unwrap_err();
    assert!(nameless.to_string().contains("has no expert index"), "{nameless}");
    // On a mesh without experts' axis every rank holds all of them.
    assert_eq!(one(entry("experts.7.w", &[2], "ep:expert"), "2"), ["[0..2]", "[0..2]"]);
}
