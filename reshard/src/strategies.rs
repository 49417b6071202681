//! Generators for property tests, here and in crates above: meshes, shapes, rules, chunkings.
//!
//! Shapes reach 4 dimensions with extents of 0, 1, small numbers and primes; chunkings are random guillotine cuts. The
//! environment variable `RESHARD_CASES` sets the number of cases of a full run.

use fqn::{AxisName, PlacementRule, Shape, StageRule};
use proptest::prelude::*;

use crate::{Mesh, Region};

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

/// A mesh of up to four axes in any order, of extents up to 5.
pub fn mesh() -> impl Strategy<Value = Mesh> {
    let names = prop::sample::subsequence(vec!["dp", "pp", "tp", "ep"], 1..=4).prop_shuffle();
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
pub fn rule(rank: usize) -> impl Strategy<Value = PlacementRule> {
    let most = if rank == 0 { 0 } else { 3 };
    let axes = prop::sample::subsequence(vec!["tp", "dp", "ep"], 0..=most).prop_shuffle();
    let stages = vec![StageRule::All, StageRule::First, StageRule::Last, StageRule::FirstAndLast];
    let dims = prop::collection::vec(0..rank.max(1), 3);
    (axes, dims, prop::sample::select(stages)).prop_filter_map("valid rule", |(axes, dims, stage)| {
        let cuts = axes.iter().zip(dims).filter_map(|(axis, dim)| Some((AxisName::new(axis).ok()?, dim)));
        PlacementRule::new(cuts.collect(), stage).ok()
    })
}

/// A shape and `count` rules that fit it.
pub fn shape_and_rules(count: usize) -> impl Strategy<Value = (Shape, Vec<PlacementRule>)> {
    shape().prop_flat_map(move |shape| {
        let rules = prop::collection::vec(rule(shape.rank()), count);
        (Just(shape), rules)
    })
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
