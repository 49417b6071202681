//! Generators for property tests, here and in crates above: meshes, shapes, rules, chunkings.
//!
//! Shapes reach 4 dimensions with extents of 0, 1, small numbers and primes; chunkings are random guillotine cuts. The
//! environment variable `RESHARD_CASES` sets the number of cases of a full run.

use fqn::{AxisCut, AxisName, Dtype, Entry, Fqn, FusionPart, PlacementRule, Role, Shape, StageRule};
use proptest::prelude::*;

use crate::{
    Mesh, Region,
    flat::{FlatGroup, FlatPadding},
};

/// Configuration with as many cases as `RESHARD_CASES` says; 128 where it says nothing.
#[must_use]
pub fn config() -> ProptestConfig {
    let cases = std::env::var("RESHARD_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(128);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

/// An extent: often 1, sometimes 0, else small or prime.
pub fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 2 => Just(1_u64), 6 => 2_u64..10, 3 => prop::sample::select(vec![11_u64, 13, 17])]
}

/// A shape of up to four dimensions.
pub fn shape() -> impl Strategy<Value = Shape> {
    prop::collection::vec(extent(), 0..=4).prop_map(|dims| Shape::new(&dims))
}

/// A mesh of up to five axes in any order, of extents up to 5; half of them with `dp_replicate` and `dp_shard`.
pub fn mesh() -> impl Strategy<Value = Mesh> {
    let names = prop::sample::subsequence(vec!["dp", "pp", "tp", "ep", "cp"], 1..=4).prop_shuffle();
    let replicated = any::<bool>();
    (names, prop::collection::vec(1_u64..=5, 4), replicated).prop_filter_map(
        "valid axes",
        |(names, extents, hybrid)| {
            let spelled = |name: &'static str| if hybrid && name == "dp" { "dp_shard" } else { name };
            let mut text: Vec<String> =
                names.iter().zip(&extents).map(|(n, e)| format!("{}={e}", spelled(n))).collect();
            if hybrid {
                text.push("dp_replicate=2".to_owned());
            }
            text.join(",").parse().ok()
        },
    )
}

/// A rule for a tensor of `rank` dimensions: some axes in any order, each on any dimension, and an end or all stages.
/// One cut in four joins two axes, one in four pads its dimension, unless an earlier one does.
pub fn rule(rank: usize) -> impl Strategy<Value = PlacementRule> {
    let most = if rank == 0 { 0 } else { 4 };
    let axes = prop::sample::subsequence(vec!["tp", "dp", "ep", "cp"], 0..=most).prop_shuffle();
    let stages = vec![StageRule::All, StageRule::First, StageRule::Last, StageRule::FirstAndLast];
    let cut = (0..rank.max(1), prop::bool::weighted(0.25), prop::option::weighted(0.25, 1_u64..=3));
    let stages = prop::sample::select(stages);
    (axes, prop::collection::vec(cut, 4), stages).prop_filter_map("valid rule", |(axes, how, stage)| {
        let mut cuts: Vec<AxisCut> = Vec::new();
        for (axis, (dim, joined, pad)) in axes.iter().zip(how) {
            let axis = AxisName::new(axis).ok()?;
            match cuts.last_mut().filter(|_| joined) {
                Some(before) => before.axes.push(axis),
                None => {
                    let pad = pad.filter(|_| !cuts.iter().any(|cut| cut.dim == dim && cut.pad.is_some()));
                    cuts.push(AxisCut { pad, ..AxisCut::from((axis, dim)) });
                }
            }
        }
        PlacementRule::new(cuts, stage).ok()
    })
}

/// A shape and `count` rules that fit it.
pub fn shape_and_rules(count: usize) -> impl Strategy<Value = (Shape, Vec<PlacementRule>)> {
    shape().prop_flat_map(move |shape| {
        let rules = prop::collection::vec(rule(shape.rank()), count);
        (Just(shape), rules)
    })
}

/// A tensor with a rule that fits it. One in three has a dimension of one to five fused parts, of any extents; one in four
/// stacks layers along a dimension, is an expert's, or has padded rows. Its meshes are [`fitting`] ones.
pub fn entry() -> impl Strategy<Value = Entry> {
    let parts = prop::option::weighted(0.33, (any::<usize>(), prop::collection::vec(0_u64..=7, 1..=5)));
    let (layers, expert) =
        (prop::option::weighted(0.25, any::<usize>()), prop::option::weighted(0.25, 0_u32..9));
    let more = (parts, layers, expert, prop::option::weighted(0.25, 0_u64..20));
    let ruled = shape().prop_flat_map(|shape| (rule(shape.rank()), Just(shape)));
    (ruled, more).prop_filter_map("valid name and rule", |((rule, shape), (parts, layers, expert, rows))| {
        let rank = shape.rank();
        let mut entry = Entry::new(Fqn::new("w").ok()?, Role::Param, Dtype::U8, shape);
        if let Some((at, extents)) = parts.filter(|_| rank > 0) {
            fuse(&mut entry, at % rank, &extents);
        }
        let layers = layers.and_then(|at| at.checked_rem(rank));
        let stage = layers.map_or(rule.stage, StageRule::Layers);
        let padded = |dim| layers != Some(dim) && !entry.fusion.iter().any(|part| part.axis == dim);
        let cut = |cut: &AxisCut| AxisCut { pad: cut.pad.filter(|_| padded(cut.dim)), ..cut.clone() };
        let rule = PlacementRule::new(rule.cuts().iter().map(cut), stage).ok()?;
        let more = rows.zip(entry.shape.first()).filter(|_| padded(0));
        entry.padded_rows = more.map(|(more, rows)| rows + more);
        entry.expert = expert;
        // An axis that cuts already shares out no experts.
        let by = AxisName::new("ep").ok().filter(|_| expert.is_some());
        entry.placement = by.and_then(|axis| rule.clone().of_expert(axis).ok()).or(Some(rule));
        Some(entry)
    })
}

/// Makes dimension `axis` one of parts of these extents.
fn fuse(entry: &mut Entry, axis: usize, extents: &[u64]) {
    let whole = extents.iter().sum();
    entry.shape = entry.shape.iter().enumerate().map(|(d, n)| if d == axis { whole } else { *n }).collect();
    let part = |(at, extent): (usize, &u64)| FusionPart { name: format!("p{at}"), axis, extent: *extent };
    entry.fusion = extents.iter().enumerate().map(part).collect();
}

/// `mesh` with no more pipeline stages than `entry` stacks layers.
#[must_use]
pub fn fitting(entry: &Entry, mesh: &Mesh) -> Mesh {
    let stage = entry.placement.as_ref().map(|rule| rule.stage);
    let layers = if let Some(StageRule::Layers(dim)) = stage { entry.shape.get(dim).copied() } else { None };
    let most = layers.filter(|layers| *layers > 0).unwrap_or(u64::MAX);
    let fits = |(axis, extent): &(AxisName, u64)| {
        (axis.clone(), if axis.is_pipeline() { most.min(*extent) } else { *extent })
    };
    Mesh::new(mesh.axes().iter().map(fits).collect()).unwrap_or_else(|_| mesh.clone())
}

/// A shape and chunks that tile it: random guillotine cuts, in random order.
pub fn chunking() -> impl Strategy<Value = (Shape, Vec<Region>)> {
    let cuts = prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..16);
    (shape(), cuts).prop_map(|(shape, cuts)| {
        let mut chunks: Vec<Region> = Region::whole(&shape).into_iter().collect();
        for (which, dim, at) in cuts {
            let picked = which as usize % chunks.len().max(1);
            if let Some(halves) = chunks.get(picked).and_then(|chunk| halved(chunk, dim as usize, at.into()))
            {
                chunks.swap_remove(picked);
                chunks.extend(halves);
            }
        }
        (shape, chunks)
    })
}

/// Tensors in flat buffers of one to six ranks: joined with any alignment, as ZeRO 1 and 2 or FSDP 1 have them, or each by itself.
pub fn flat_group() -> impl Strategy<Value = FlatGroup> {
    let kind = (0_u8..5, 1_u64..=8, 1_u64..=12);
    (prop::collection::vec(shape(), 0..6), 1_u64..=6, kind).prop_filter_map(
        "sizes within 64 bits",
        |(shapes, ranks, (kind, start, len))| match kind {
            0 => FlatGroup::zero(shapes, ranks).ok(),
            1 => FlatGroup::each(shapes, ranks).ok(),
            2 => FlatGroup::fsdp1(shapes, ranks, Some(Dtype::BF16)).ok(),
            3 => FlatGroup::fsdp1(shapes, ranks, None).ok(),
            _ => FlatGroup::joined(shapes, ranks, FlatPadding { start, len }).ok(),
        },
    )
}

/// A chunk cut in two; `None` where the dimension that `dim` picks can't be cut.
fn halved(chunk: &Region, dim: usize, at: u64) -> Option<[Region; 2]> {
    let dim = dim.checked_rem(chunk.rank())?;
    let mut low = chunk.extents().to_vec();
    let (mut offsets, mut high) = (chunk.offsets().to_vec(), low.clone());
    let first = 1 + at.checked_rem(low.get(dim)?.checked_sub(1)?)?;
    *low.get_mut(dim)? = first;
    *high.get_mut(dim)? -= first;
    *offsets.get_mut(dim)? += first;
    Some([Region::new(chunk.offsets(), &low).ok()?, Region::new(&offsets, &high).ok()?])
}
