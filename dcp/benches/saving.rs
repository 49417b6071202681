//! Speed of a save from memory and of a load onto another mesh, beside a plain write of the same bytes with fsync.
//!
//! `cargo bench -p dcp --bench saving [-- FOLDER]`: FOLDER on the medium to measure; a RAM-backed one shows the code alone.

use std::{error::Error, fs, io::Write, path::Path, time::Instant};

use dcp::{
    digest::Sha256Digest,
    load::Loader,
    save::{SaveOptions, SavePlan, SaveSpec, Session},
    store::{Root, Stores},
};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::Region;

const ROUNDS: u64 = 12;

type Any = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Any> {
    let given = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let base = given.unwrap_or_else(|| "/dev/shm".to_owned());
    for (name, layers, mesh) in [("19 MB", 4, "dp=4"), ("19 MB", 4, "4x2x8"), ("302 MB", 64, "dp=4")] {
        let folder = tempfile::tempdir_in(&base)?;
        bench(folder.path(), name, layers, mesh)?;
    }
    Ok(())
}

/// Parameters and two moments of layers of 4.7 MB.
fn registry(layers: u32) -> Result<Registry, Any> {
    let mut registry = Registry::new();
    for layer in 0..layers {
        for (name, rows, columns, rule) in [
            ("q", 256, 256, "tp:0,dp:0,pp:layer"),
            ("o", 256, 256, "tp:1,dp:0,pp:layer"),
            ("up", 512, 256, "tp:0,dp:0,pp:layer"),
            ("down", 256, 512, "tp:1,dp:0,pp:layer"),
            ("norm", 256, 1, "pp:layer"),
        ] {
            for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq] {
                let fqn = Fqn::new(format!("layers.{layer}.{name}.weight"))?;
                let mut entry = Entry::new(fqn, role, Dtype::F32, Shape::new(&[rows, columns]));
                (entry.layer, entry.placement) = (Some(layer), Some(rule.parse()?));
                registry.push(entry)?;
            }
        }
    }
    Ok(registry)
}

fn bench(folder: &Path, name: &str, layers: u32, mesh: &str) -> Result<(), Any> {
    let location = folder.to_str().ok_or("a folder that is not UTF-8")?;
    let root = Root::create(location, &Stores::new())?;
    let registry = registry(layers)?;
    let plan_at = |step| -> Result<SavePlan, Any> {
        Ok(SavePlan::new(SaveSpec::new("main".parse()?, registry.clone(), mesh.parse()?, step))?)
    };
    let total: u64 = registry.entries().iter().filter_map(Entry::bytes).sum();
    let bytes: Vec<u8> =
        (0..total.min(8 << 20)).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[2]).collect();
    let (mut plans, mut writes, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..ROUNDS {
        let begin = Instant::now();
        let plan = plan_at(step)?;
        let session = Session::open(&root, &plan, SaveOptions::default())?;
        plans.push(begin.elapsed());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let each: Vec<_> = (0..plan.ranks())
                .map(|rank| {
                    scope.spawn({
                        let (session, bytes) = (&session, &bytes);
                        move || write(session, rank, bytes)
                    })
                })
                .collect();
            each.into_iter().try_for_each(|it| it.join().map_err(|_| "a writer panicked")?)
        })?;
        writes.push(begin.elapsed());
        let begin = Instant::now();
        session.commit()?;
        commits.push(begin.elapsed());
    }
    let mut loads = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        load(&root, &registry)?;
        loads.push(begin.elapsed());
    }
    let mut floors = Vec::new();
    for round in 0..ROUNDS {
        let begin = Instant::now();
        floor(&folder.join(format!("floor-{round}")), &bytes, total)?;
        floors.push(begin.elapsed());
    }
    for (what, mut times) in [
        ("plan and session", plans),
        ("write, all ranks", writes),
        ("commit", commits),
        ("load as tp=2", loads),
        ("floor: SHA-256, write, fsync", floors),
    ] {
        times.sort_unstable();
        let millis = |at: usize| times.get(at).map_or(0.0, |it| it.as_secs_f64() * 1e3);
        println!(
            "{name:7} {mesh:6} {what:30} best {:8.2} ms, median {:8.2} ms",
            millis(0),
            millis(times.len() / 2)
        );
    }
    Ok(())
}

fn write(session: &Session, rank: u32, bytes: &[u8]) -> Result<(), Any> {
    let writer = session.writer(rank)?;
    for (tensor, region) in session.plan().boxes_of(rank) {
        let len = usize::try_from(region.elements() * 4)?;
        writer.put(tensor, region, bytes.get(..len).ok_or("a box beyond the bytes")?)?;
    }
    writer.finish()?;
    Ok(())
}

/// Opens the newest, and reads what rank 0 of two along `tp` holds.
fn load(root: &Root, registry: &Registry) -> Result<(), Any> {
    let loader = Loader::newest(root, &"main".parse()?)?;
    let reader = loader.reader();
    for entry in registry.entries() {
        let mut extents = entry.shape.to_vec();
        if let (Some(rows), Some(rule)) = (extents.first_mut(), &entry.placement)
            && rule.to_string().starts_with("tp:0")
        {
            *rows /= 2;
        }
        reader.read_vec(&entry.id(), &Region::new(&vec![0; extents.len()], &extents)?)?;
    }
    Ok(())
}

fn floor(path: &Path, bytes: &[u8], total: u64) -> Result<(), Any> {
    let mut file = fs::File::create(path)?;
    let mut left = usize::try_from(total)?;
    while left > 0 {
        for piece in bytes.get(..left.min(bytes.len())).unwrap_or(bytes).chunks(1 << 20) {
            std::hint::black_box(Sha256Digest::of(piece));
            file.write_all(piece)?;
            left -= piece.len();
        }
    }
    Ok(file.sync_all()?)
}
