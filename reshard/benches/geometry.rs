//! Figures of the geometry: coverage of a million chunks in several arrangements, queries, a plan of two million chunks,
//! moves of a million, and copies. `cargo bench -p reshard`.

use std::{borrow::Cow, hint::black_box, time::Instant};

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::{Cost, Index, Layout, Mesh, Moves, Region, StageSplit, Strided, copy_region, coverage, flat};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = black_box(run());
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<58} {:>9.1} ms", seconds * 1e3);
    (result, seconds)
}

fn grid(shape: &[u64], parts: &[u64]) -> Outcome<Vec<Region>> {
    let mut chunks = vec![(Vec::new(), Vec::new())];
    for (n, parts) in shape.iter().zip(parts) {
        let pieces = (0..*parts).map(|at| reshard::layout::chunk(*n, *parts, at));
        let longer = |(o, e): &(Vec<u64>, Vec<u64>)| {
            let (o, e) = (o.clone(), e.clone());
            pieces.clone().map(move |(start, len)| ([&o[..], &[start]].concat(), [&e[..], &[len]].concat()))
        };
        chunks = chunks.iter().flat_map(longer).collect();
    }
    Ok(chunks.iter().map(|(o, e)| Region::new(o, e)).collect::<Result<_, _>>()?)
}

/// Random guillotine cuts: the part is picked and the place is chosen by a fixed congruential sequence.
fn guillotine(shape: &[u64], count: usize) -> Outcome<Vec<Region>> {
    let mut chunks = vec![Region::whole(&Shape::new(shape))?];
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    while chunks.len() < count {
        let pick = usize::try_from(next())? % chunks.len();
        let (offsets, extents) = (chunks[pick].offsets().to_vec(), chunks[pick].extents().to_vec());
        let dim = usize::try_from(next())? % shape.len();
        if extents[dim] < 2 {
            continue;
        }
        let (mut low, mut high, mut start) = (extents.clone(), extents.clone(), offsets.clone());
        low[dim] = 1 + next() % (extents[dim] - 1);
        high[dim] -= low[dim];
        start[dim] += low[dim];
        chunks[pick] = Region::new(&offsets, &low)?;
        chunks.push(Region::new(&start, &high)?);
    }
    Ok(chunks)
}

fn coverage_and_index() -> Outcome<()> {
    let million = 1_u64 << 20;
    for (what, shape, chunks) in [
        ("slices of one dimension", vec![million * 4, 16], grid(&[million * 4, 16], &[million, 1])?),
        ("a grid of two dimensions", vec![4099, 4099], grid(&[4099, 4099], &[1024, 1024])?),
        ("a grid of four dimensions", vec![64; 4], grid(&[64; 4], &[32; 4])?),
        ("random cuts, two dimensions", vec![1 << 20; 2], guillotine(&[1 << 20; 2], 1 << 20)?),
        ("random cuts, three dimensions", vec![1 << 16; 3], guillotine(&[1 << 16; 3], 1 << 20)?),
    ] {
        let (checked, _) =
            timed(&format!("cover, 2^20 chunks, {what}"), || coverage::check(&Shape::new(&shape), &chunks));
        checked?;
        let (index, _) = timed("  index of them", || Index::new(&chunks));
        let met = || chunks.iter().step_by(1 << 10).map(|chunk| index.meeting(chunk).len()).sum::<usize>();
        timed("  1,024 queries", met);
    }
    Ok(())
}

/// 126 layers of 9 matrices, three tensors each: 3,402 tensors.
fn model() -> Outcome<Registry> {
    let mut registry = Registry::new();
    for layer in 0..126 {
        for matrix in 0..9_u64 {
            for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq] {
                let name = Fqn::new(format!("layers.{layer}.w{matrix}"))?;
                let shape = Shape::new(&[16_384 + 128 * matrix, 16_384]);
                let mut entry = Entry::new(name, role, Dtype::F32, shape);
                entry.placement =
                    Some(if matrix % 2 == 0 { "tp:0,dp:0,pp:layer" } else { "tp:1,dp:0,pp:layer" }.parse()?);
                entry.layer = Some(layer);
                registry.push(entry)?;
            }
        }
    }
    Ok(registry)
}

/// What `--dry-run` takes for two million chunks: the target's layout, and every move counted.
fn plan_of_two_million() -> Outcome<()> {
    let registry = model()?;
    let (from, to): (Mesh, Mesh) = ("dp=80,pp=14,tp=8".parse()?, "dp=35,pp=16,tp=16".parse()?);
    let source = Layout::new(&registry, &from, &StageSplit::Auto)?;
    let chunks: Vec<Vec<Region>> =
        (0..registry.len()).map(|at| source.shards(at).map(|(shard, _)| shard.region).collect()).collect();
    println!("from {} chunks on {from}", chunks.iter().map(Vec::len).sum::<usize>());
    let (layout, laid) = timed("layout on 8,960 ranks", || Layout::new(&registry, &to, &StageSplit::Auto));
    let layout = layout?;
    println!("  {} shards, imbalance {:.4}", layout.shard_count(), layout.write_imbalance());
    let walk = || {
        (0..registry.len()).flat_map(|at| layout.shards(at)).map(|(s, _)| s.region.elements()).sum::<u64>()
    };
    timed("  walking them", walk);
    let of = |at: usize| Cow::Borrowed(chunks.get(at).map_or(&[][..], Vec::as_slice));
    let (cost, counted) = timed("cost of the plan", || Cost::count(&registry, Some(&from), &layout, of));
    let cost = cost?;
    println!("  {} moves, {} reads; layout and cost {:.2} s", cost.moves, cost.reads, laid + counted);
    Ok(())
}

/// One tensor of a million chunks to another million.
fn moves_of_a_million() -> Outcome<()> {
    let shape = [1 << 20, 1 << 10];
    let (sources, targets) = (grid(&shape, &[1 << 12, 1 << 8])?, grid(&shape, &[3 << 10, 3 << 7])?);
    let (moves, arranged) = timed("moves, 2^20 chunks: arranged", || Moves::new(&sources));
    let derive = || targets.iter().map(|target| moves.of(target).map(|m| m.len())).sum::<Result<usize, _>>();
    let (count, derived) = timed("  derived for 1.2 million targets", derive);
    println!("  {} moves, {:.2} s", count?, arranged + derived);
    Ok(())
}

fn copies() -> Outcome<()> {
    let side = 8192_u64;
    let whole = Region::new(&[0, 0], &[side, side])?;
    let source: Vec<u8> = (0..side * side * 4).map(|n| n.to_le_bytes()[1]).collect();
    let mut target = vec![1_u8; source.len()];
    let (_, floor) = timed("memcpy, 256 MiB", || target.copy_from_slice(&source));
    let rows = Region::new(&[0, 0], &[side, side / 2])?;
    let gigabytes = |bytes: u64, seconds: f64| println!("    {:.1} GB/s", bytes as f64 / seconds / 1e9);
    gigabytes(side * side * 4, floor);
    let strided = Strided::row_major(&source, &whole);
    let turned = Strided::new(&source, &whole, &[1, side])?;
    for (what, from, region) in [
        ("copy of the whole", &strided, whole.clone()),
        ("copy of half columns", &strided, rows),
        ("copy of 8 columns in all", &strided, Region::new(&[0, 8], &[side, 8])?),
        ("copy of a transposed source", &turned, whole.clone()),
    ] {
        let (done, seconds) = timed(what, || copy_region(&region, from, &mut target, &whole, 4));
        done?;
        gigabytes(region.elements() * 4, seconds);
    }
    timed("runs of half columns", || {
        flat::runs(&Region::new(&[0, 0], &[side, 8]).ok()?, &Shape::new(&[side, side]))
            .ok()
            .map(Iterator::count)
    });
    Ok(())
}

fn main() -> Outcome<()> {
    coverage_and_index()?;
    plan_of_two_million()?;
    moves_of_a_million()?;
    copies()
}
