//! The algebra on real bytes: any way over any meshes gives the unsharded tensor; every element is owned once.

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use proptest::prelude::*;

use super::{MoveError, Moves};
use crate::{
    Layout, Mesh, Region, StageSplit,
    copy::{Strided, copy_region},
    coverage, strategies,
};

fn layout(shape: &Shape, rule: &fqn::PlacementRule, mesh: &Mesh) -> Layout {
    let mut entry = Entry::new(Fqn::new("w").unwrap(), Role::Param, Dtype::U8, shape.clone());
    entry.placement = Some(rule.clone());
    laid(entry, mesh)
}

fn laid(entry: Entry, mesh: &Mesh) -> Layout {
    let mut registry = Registry::new();
    registry.push(entry).unwrap();
    Layout::new(&registry, mesh, &StageSplit::Auto).unwrap()
}

type Buffers = Vec<(Region, Vec<u8>)>;

/// Regions made from what `source` holds, by moves and copies of real bytes.
fn made(source: &Buffers, targets: impl IntoIterator<Item = Region>) -> Buffers {
    let regions: Vec<Region> = source.iter().map(|(region, _)| region.clone()).collect();
    let moves = Moves::new(&regions);
    let make = |target: Region| {
        let mut bytes = vec![0; usize::try_from(target.elements()).unwrap()];
        for part in moves.of(&target).unwrap() {
            let (held, from) = &source[part.source];
            copy_region(&part.region, &Strided::row_major(from, held), &mut bytes, &target, 1).unwrap();
        }
        (target, bytes)
    };
    targets.into_iter().map(make).collect()
}

fn regions(layout: &Layout) -> Vec<Region> {
    layout.shards(0).map(|(shard, _)| shard.region).collect()
}

fn unsharded(shape: &Shape) -> Buffers {
    let whole = Region::whole(shape).unwrap();
    let bytes = (0..whole.elements())
        .map(|n| u8::try_from((n.wrapping_mul(2_654_435_761) >> 7) % 256).unwrap())
        .collect();
    vec![(whole, bytes)]
}

/// What `rank` holds by cutting lists of indices as `torch.chunk` is documented: equal parts of `ceil(n / parts)`
/// indices until they run out. Joined axes count as one of all their parts, padding is indices that are dropped at the
/// end; stages are dealt stacked layers first, as evenly as can be. Shares nothing with the crate but the numbering of ranks.
fn chunked(entry: &Entry, mesh: &Mesh, rank: u64) -> Region {
    let (shape, rule) = (&entry.shape, entry.placement.as_ref().unwrap());
    let named = |name: &str| mesh.axes().iter().position(|(axis, _)| axis.as_str() == name);
    let position = |name: &str| named(name).or_else(|| if name == "dp" { named("dp_shard") } else { None });
    let parts_and_index = |cut: &fqn::AxisCut| {
        cut.axes.iter().filter_map(|axis| position(axis.as_str())).fold((1, 0), |(parts, index), at| {
            let below: u64 = mesh.axes()[at + 1..].iter().map(|(_, extent)| extent).product();
            let extent = mesh.axes()[at].1;
            (parts * extent, index * extent + rank / below % extent)
        })
    };
    let mut held: Vec<Vec<u64>> = shape.iter().map(|n| (0..*n).collect()).collect();
    if let Some(padded) = entry.padded_rows {
        held[0] = (0..padded).collect();
    }
    for cut in rule.cuts() {
        if let Some(pad) = cut.pad {
            let step = pad * parts_and_index(cut).0;
            held[cut.dim] = (0..shape[cut.dim].div_ceil(step) * step).collect();
        }
    }
    if let (fqn::StageRule::Layers(dim), Some(at)) = (rule.stage, named("pp")) {
        let (stages, below) =
            (mesh.axes()[at].1, mesh.axes()[at + 1..].iter().map(|(_, extent)| extent).product::<u64>());
        let on = |stage: u64| shape[dim] / stages + u64::from(stage < shape[dim] % stages);
        let stage = rank / below % stages;
        let first: u64 = (0..stage).map(on).sum();
        held[dim].retain(|layer| (first..first + on(stage)).contains(layer));
    }
    for cut in rule.cuts() {
        let (parts, index) = parts_and_index(cut);
        let mut rest = held[cut.dim].clone();
        let size = rest.len().div_ceil(usize::try_from(parts).unwrap());
        for _ in 0..index {
            rest.drain(..size.min(rest.len()));
        }
        rest.truncate(size);
        held[cut.dim] = rest;
    }
    for (held, n) in held.iter_mut().zip(shape.iter()) {
        held.retain(|at| at < n);
    }
    let offsets: Vec<u64> =
        held.iter().zip(shape.iter()).map(|(h, n)| h.first().copied().unwrap_or(*n)).collect();
    Region::new(&offsets, &held.iter().map(|h| h.len() as u64).collect::<Vec<_>>()).unwrap()
}

proptest! {
    #![proptest_config(strategies::config())]

    #[test]
    fn any_way_over_any_meshes_gives_the_unsharded_bytes(
        (shape, rules) in strategies::shape_and_rules(3),
        meshes in prop::collection::vec(strategies::mesh(), 3),
    ) {
        let layouts: Vec<Layout> = rules.iter().zip(&meshes).map(|(rule, mesh)| layout(&shape, rule, mesh)).collect();
        let whole = unsharded(&shape);
        let a = made(&whole, regions(&layouts[0]));
        let through = made(&made(&a, regions(&layouts[1])), regions(&layouts[2]));
        prop_assert_eq!(&through, &made(&a, regions(&layouts[2])));
        prop_assert_eq!(&through, &made(&whole, regions(&layouts[2])));
        prop_assert_eq!(made(&through, [whole[0].0.clone()]), whole);
    }

    #[test]
    fn fused_padded_joined_and_stacked_tensors_and_experts_come_back_over_any_meshes(
        entry in strategies::entry(), meshes in prop::collection::vec(strategies::mesh(), 3),
    ) {
        let meshes = meshes.iter().map(|mesh| strategies::fitting(&entry, mesh));
        let layouts: Vec<Layout> = meshes.map(|mesh| laid(entry.clone(), &mesh)).collect();
        let whole = unsharded(&entry.shape);
        let a = made(&whole, regions(&layouts[0]));
        let through = made(&made(&a, regions(&layouts[1])), regions(&layouts[2]));
        prop_assert_eq!(&through, &made(&whole, regions(&layouts[2])));
        prop_assert_eq!(made(&through, [whole[0].0.clone()]), whole);
    }

    #[test]
    fn every_element_is_owned_exactly_once(entry in strategies::entry(), mesh in strategies::mesh()) {
        let mesh = strategies::fitting(&entry, &mesh);
        let layout = laid(entry.clone(), &mesh);
        prop_assert_eq!(coverage::check(&entry.shape, &regions(&layout)), Ok(()));
        let owned: u64 = layout.ranks().iter().map(|rank| rank.model).sum();
        let held = layout.shards(0).map(|(shard, _)| shard.region.elements() * shard.owners.len());
        prop_assert_eq!(owned, held.sum::<u64>());
        for (shard, writer) in layout.shards(0) {
            let rank_holds = |rank: &u64| {
                let coords = mesh.coords(*rank).unwrap();
                layout.tensors()[0].regions_of(&mesh, &coords).contains(&shard.region)
            };
            prop_assert!(shard.owners.contains(writer));
            prop_assert_eq!(shard.owners.iter().collect::<Vec<_>>(), (0..mesh.ranks()).filter(rank_holds).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_ranks_own_tensor_is_its_regions_and_padding(entry in strategies::entry(), mesh in strategies::mesh()) {
        let mesh = strategies::fitting(&entry, &mesh);
        let layout = laid(entry.clone(), &mesh);
        let tensor = &layout.tensors()[0];
        for rank in 0..mesh.ranks() {
            let coords = mesh.coords(rank).unwrap();
            let Some(local) = tensor.local(&mesh, &coords).unwrap() else {
                prop_assert!(tensor.regions_of(&mesh, &coords).is_empty());
                continue;
            };
            let tiles: Vec<Region> = local.pieces.iter().map(|piece| piece.local.clone()).chain(local.padding.clone()).collect();
            prop_assert_eq!(coverage::check(&local.shape, &tiles), Ok(()));
            let mut globals: Vec<Region> = local.pieces.iter().map(|piece| piece.global.clone()).collect();
            let mut held: Vec<Region> = tensor.regions_of(&mesh, &coords).into_iter().filter(|r| !r.is_empty()).collect();
            globals.sort();
            held.sort();
            prop_assert_eq!(globals, held);
        }
    }

    #[test]
    fn layouts_are_what_nested_torch_chunk_gives(mut entry in strategies::entry(), mesh in strategies::mesh()) {
        entry.fusion.clear();
        let mesh = strategies::fitting(&entry, &mesh);
        let layout = laid(entry.clone(), &mesh);
        for rank in 0..mesh.ranks() {
            let coords = mesh.coords(rank).unwrap();
            for region in layout.tensors()[0].regions_of(&mesh, &coords) {
                prop_assert_eq!(region, chunked(&entry, &mesh, rank));
            }
        }
    }

    #[test]
    fn a_sub_slice_made_from_chunks_is_a_slice_of_the_whole(
        (shape, chunks) in strategies::chunking(), seed in prop::collection::vec((0_u64..100, 0_u64..100), 4)
    ) {
        let whole = unsharded(&shape);
        let parts = made(&whole, chunks);
        let offsets: Vec<u64> = shape.iter().zip(&seed).map(|(n, s)| s.0 % (n + 1)).collect();
        let extents: Vec<u64> = shape.iter().zip(&offsets).zip(&seed).map(|((n, o), s)| s.1 % (n - o + 1)).collect();
        let slice = Region::new(&offsets, &extents).unwrap();
        prop_assert_eq!(made(&parts, [slice.clone()]), made(&whole, [slice]));
    }
}

#[test]
fn the_worked_meshes_lead_back_to_the_same_bytes() {
    let rule = "tp:0,dp:0,pp:first".parse().unwrap();
    for way in [
        &["4x2x8", "8x1x8", "1x1x1", "4x2x8"][..],
        &["4x8x4", "1x128x1", "4x8x4"],
        &["dp_replicate=2,dp_shard=4,tp=8", "dp=48", "dp_replicate=2,dp_shard=4,tp=8"],
    ] {
        for shape in [Shape::new(&[83, 7]), Shape::new(&[128, 3])] {
            let layouts: Vec<Layout> =
                way.iter().map(|mesh| layout(&shape, &rule, &mesh.parse().unwrap())).collect();
            let first = made(&unsharded(&shape), regions(&layouts[0]));
            let last = layouts.iter().skip(1).fold(first.clone(), |held, next| made(&held, regions(next)));
            assert_eq!(last, first);
        }
    }
}

#[test]
fn what_sources_lack_or_hold_twice_is_named() {
    let region = |o: &[u64], e: &[u64]| Region::new(o, e).unwrap();
    let sources = [region(&[0, 0], &[4, 2]), region(&[0, 3], &[4, 3])];
    let refused = Moves::new(&sources).of(&region(&[1, 0], &[2, 6])).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "target region [1..3, 0..6] needs [1..3, 2..3], which no source chunk holds"
    );
    let twice = [region(&[0, 0], &[4, 4]), region(&[9, 9], &[1, 1]), region(&[0, 3], &[4, 3])];
    let refused = Moves::new(&twice).of(&region(&[1, 0], &[2, 6])).unwrap_err();
    assert!(matches!(refused, MoveError::Overlap { first: 0, second: 2, .. }), "{refused}");
    assert_eq!(Moves::new(&sources).of(&region(&[4, 6], &[0, 0])), Ok(Vec::new()));
}
