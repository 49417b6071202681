//! The same tensors sharded by real PyTorch and by our rules: every rank holds the same elements.
//!
//! Torch's side is `fixtures/torch_sharding`, read off the data of real processes; a part of it is made anew here with
//! the real library, so that it stays true.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{collections::BTreeMap, ops::Range, path::Path};

use fixtures::{FlatSharding, Segment, Sharding, flat_shardings, flat_shardings_in, shardings, shardings_in};
use fqn::{Dtype, Entry, Fqn, FusionPart, Registry, Role, Shape, preset};
use reshard::{
    Layout, Mesh, Region, StageSplit,
    flat::{self, FlatGroup},
    layout::chunk,
};

/// A tensor's rule in our words, on a mesh.
struct Ours {
    mesh: Mesh,
    entry: Entry,
}

fn named(axes: &[(String, u64)]) -> Mesh {
    Mesh::new(axes.iter().map(|(name, extent)| (name.parse().unwrap(), *extent)).collect()).unwrap()
}

fn entry(name: &str, shape: &[u64]) -> Entry {
    Entry::new(Fqn::new(name).unwrap(), Role::Param, Dtype::F64, Shape::new(shape))
}

/// What torch's placement cuts: dimension, and the split factor that says which axes cut before it.
fn cut(placement: &str) -> Option<(usize, u64)> {
    let inside = placement.split_once('(')?.1.trim_end_matches(')');
    let (dim, split) = inside.split_once(',').unwrap_or((inside, "1"));
    Some((dim.parse().unwrap(), split.parse().unwrap()))
}

/// Axes cut from the outermost in, but a strided one after as many to its right as make up its split factor. `None`
/// where no axes do.
fn in_order(case: &Sharding) -> Option<Ours> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (axis, placement) in case.placements.iter().enumerate().rev() {
        let Some((dim, split)) = cut(placement) else { continue };
        let mut parts = 1;
        let before = order.iter().take_while(|(other, cut)| {
            let more = parts < split;
            parts *= if more && *cut == dim { case.mesh[*other].1 } else { 1 };
            more
        });
        let place = before.count();
        if parts != split {
            return None;
        }
        order.insert(place, (axis, dim));
    }
    let cuts = order.iter().map(|(axis, dim)| format!("{}:{dim}", case.mesh[*axis].0));
    Some(ours(case, named(&case.mesh), &cuts.collect::<Vec<_>>()))
}

/// A strided axis cuts within each of as many parts as its split factor says; axes to its right cut what that leaves as
/// one. That is the same as cutting in order wherever everything divides. Ours calls the axis that cuts within parts
/// `tp`.
fn within_parts(case: &Sharding) -> Ours {
    let strided = case.placements.iter().position(|placement| placement.starts_with("_S")).unwrap();
    let (dim, split) = cut(&case.placements[strided]).unwrap();
    let first = case.placements.iter().position(|placement| cut(placement).is_some_and(|cut| cut.0 == dim));
    assert_eq!(first, Some(strided), "parts of parts: {case:?}");
    let call = |at: usize| if at == strided { "tp".to_owned() } else { format!("axis{at}") };
    let axes: Vec<_> = case.mesh.iter().enumerate().map(|(at, (_, extent))| (call(at), *extent)).collect();
    let cuts = case.placements.iter().enumerate();
    let cuts = cuts.filter_map(|(at, placement)| Some(format!("{}:{}", call(at), cut(placement)?.0)));
    let mut ours = ours(case, named(&axes), &cuts.collect::<Vec<_>>());
    let parts = (0..split).map(|part| chunk(case.shape[dim], split, part).1).filter(|extent| *extent > 0);
    let part = |(at, extent)| FusionPart { name: format!("part{at}"), axis: dim, extent };
    ours.entry.fusion = parts.enumerate().map(part).collect();
    ours
}

fn ours(case: &Sharding, mesh: Mesh, cuts: &[String]) -> Ours {
    let rule = if cuts.is_empty() { "replicate".to_owned() } else { cuts.join(",") };
    Ours { mesh, entry: Entry { placement: Some(rule.parse().unwrap()), ..entry("w", &case.shape) } }
}

/// Row-major indices of what each rank holds; `None` where it has no such tensor.
fn ranks_of(layout: &Layout, tensor: usize) -> Vec<Option<Vec<Range<u64>>>> {
    let (mesh, tensor) = (layout.mesh(), &layout.tensors()[tensor]);
    let held = (0..mesh.ranks()).map(|rank| {
        let coords = mesh.coords(rank).unwrap();
        let regions = tensor.regions_of(mesh, &coords);
        tensor.is_held_at(mesh, &coords).then(|| flat::ranges(tensor.shape(), &regions).unwrap())
    });
    held.collect()
}

/// The same of torch.
fn torchs(case: &Sharding) -> Vec<Option<Vec<Range<u64>>>> {
    let region = |spans: &Vec<(u64, u64)>| {
        let (offsets, extents): (Vec<_>, Vec<_>) = spans.iter().map(|(from, to)| (*from, to - from)).unzip();
        Region::new(&offsets, &extents).unwrap()
    };
    let held = |boxes: &Vec<_>| {
        flat::ranges(&Shape::new(&case.shape), &boxes.iter().map(region).collect::<Vec<_>>()).unwrap()
    };
    let sets: Vec<_> = case.shards.iter().map(held).collect();
    case.ranks.iter().map(|set| set.map(|set| sets[set].clone())).collect()
}

fn held(ours: Ours) -> Vec<Option<Vec<Range<u64>>>> {
    let mut registry = Registry::new();
    registry.push(ours.entry).unwrap();
    ranks_of(&Layout::new(&registry, &ours.mesh, &StageSplit::Auto).unwrap(), 0)
}

fn is_strided(case: &Sharding) -> bool {
    case.placements.iter().any(|placement| placement.starts_with("_S"))
}

#[test]
fn every_rank_holds_what_real_torch_gives_it() {
    let (mut cases, mut compared, mut parts) = (0, 0, 0);
    for case in shardings().iter().filter(|case| !case.placements.iter().any(|placement| placement == "-")) {
        let in_order = in_order(case).map(held);
        let wanted = torchs(case);
        // `fully_shard` cuts what tensor parallelism left; `distribute_tensor` takes placements one after another.
        let ordered = case.how != "distribute_tensor" || !is_strided(case);
        if ordered || in_order.as_ref() == Some(&wanted) {
            assert_eq!(in_order, Some(wanted), "{case:?}");
        } else {
            assert_eq!(held(within_parts(case)), wanted, "{case:?}");
            parts += 1;
        }
        cases += 1;
        compared += case.ranks.len();
    }
    assert!(cases >= 190, "{cases} cases of {compared} ranks, {parts} of them by parts");
}

#[test]
fn a_strided_placement_is_the_order_of_cutting_wherever_everything_divides() {
    let mut even = 0;
    for case in shardings().iter().filter(|case| is_strided(case)) {
        let cuts =
            case.placements.iter().enumerate().filter_map(|(at, placement)| Some((at, cut(placement)?.0)));
        let mut parts = vec![1; case.shape.len()];
        cuts.for_each(|(at, dim)| parts[dim] *= case.mesh[at].1);
        let divides = case.shape.iter().zip(parts).all(|(extent, parts)| extent.is_multiple_of(parts));
        if let Some(ours) = in_order(case).filter(|_| divides && case.fqn.is_none()) {
            assert_eq!(held(ours), torchs(case), "{case:?}");
            even += 1;
        }
    }
    assert!(even >= 12, "{even}");
}

/// Models, each on one mesh.
fn models() -> Vec<Vec<Sharding>> {
    let mut models: BTreeMap<String, Vec<Sharding>> = BTreeMap::new();
    for case in shardings().into_iter().filter(|case| case.fqn.is_some()) {
        let hugging_face =
            case.fqn.as_ref().is_some_and(|name| name.starts_with("model.") || name.starts_with("lm_head."));
        models.entry(format!("{hugging_face} {:?}", case.mesh)).or_default().push(case);
    }
    models.into_values().collect()
}

#[test]
fn presets_shard_a_model_as_real_torch_does_by_its_names_alone() {
    let mut compared = 0;
    for model in models() {
        let mut registry = Registry::new();
        for case in &model {
            registry.push(entry(case.fqn.as_deref().unwrap(), &case.shape)).unwrap();
        }
        let rules = preset::detect(&registry).0.unwrap();
        rules.apply(&mut registry).unwrap();
        // What TorchTitan makes one axis for FSDP is one axis of data parallelism.
        let axes = model[0].mesh.iter().map(|(name, extent)| {
            (if name == "dp_shard_cp" { "dp".to_owned() } else { name.clone() }, *extent)
        });
        let layout = Layout::new(&registry, &named(&axes.collect::<Vec<_>>()), &StageSplit::Auto).unwrap();
        for (at, case) in model.iter().enumerate() {
            assert_eq!(ranks_of(&layout, at), torchs(case), "{case:?}");
            compared += 1;
        }
    }
    assert!(compared >= 100, "{compared}");
}

/// The parameters of a case, in a flat buffer as FSDP 1 makes it.
fn flat_group(case: &FlatSharding) -> FlatGroup {
    let shapes = case.parameters.iter().map(|shape| Shape::new(shape)).collect();
    FlatGroup::fsdp1(shapes, case.ranks_of, case.use_orig_params.then_some(Dtype::F32)).unwrap()
}

/// What `rank` has of the buffer: pieces of parameters and the padding between them, as they follow each other.
fn flat_shard(group: &FlatGroup, rank: u64) -> Vec<Segment> {
    let pieces = group
        .pieces(rank)
        .map(|piece| (piece.at, Segment::Part(piece.tensor, piece.elements.start, piece.elements.end)));
    let padding = group.padding(rank).into_iter();
    let padding = padding.map(|range| (range.start, Segment::Padding((), range.end - range.start)));
    let mut segments: Vec<_> = pieces.chain(padding).collect();
    segments.sort_by_key(|(at, _)| *at);
    segments.into_iter().map(|(_, segment)| segment).collect()
}

#[test]
fn flat_parameters_hold_the_ranges_that_fsdp_1_gives_each_rank() {
    let (mut cases, mut boxes) = (0, 0);
    for case in flat_shardings() {
        let group = flat_group(&case);
        let mut held: Vec<Vec<Region>> = vec![Vec::new(); case.parameters.len()];
        for (rank, set) in (0..).zip(&case.ranks) {
            let torchs = &case.shards[set.unwrap()];
            assert_eq!(&flat_shard(&group, rank), torchs, "rank {rank} of {case:?}");
            group.boxes(rank).unwrap().into_iter().for_each(|part| held[part.tensor].push(part.region));
        }
        for (shape, regions) in group.shapes().iter().zip(held) {
            reshard::coverage::check(shape, &regions).unwrap();
            boxes += regions.len();
        }
        cases += 1;
    }
    assert!(cases >= 40 && boxes > 1000, "{cases} cases, {boxes} boxes");
}

/// Which ranks torch's own checkpoints put in a wrong place: known, so that a change of torch shows.
#[test]
fn torch_misplaces_uneven_parts_that_two_axes_cut_and_no_others() {
    let misplaced: Vec<_> = shardings().into_iter().filter(|case| !case.misplaced.is_empty()).collect();
    for case in &misplaced {
        assert!(is_strided(case), "{case:?}");
    }
    assert!(!misplaced.is_empty());
}

#[test]
fn the_real_library_still_shards_as_the_fixture_says() {
    let folder = tempfile::tempdir().unwrap();
    let script = fixtures::path("scripts/torch_sharding.py");
    let done = fixtures::python()
        .arg("-Wignore")
        .arg(script)
        .args(["--ranks", "4"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let of_four = |folder: Option<&Path>| {
        let mut cases = folder.map_or_else(shardings, shardings_in);
        cases.retain(|case| case.mesh.iter().map(|(_, extent)| extent).product::<u64>() == 4);
        let mut flats = folder.map_or_else(flat_shardings, flat_shardings_in);
        flats.retain(|case| case.ranks_of == 4);
        (cases, flats)
    };
    let (cases, flats) = of_four(Some(folder.path()));
    assert!(cases.len() >= 60 && flats.len() >= 10, "{} cases, {} flat", cases.len(), flats.len());
    assert_eq!((cases, flats), of_four(None));
}
