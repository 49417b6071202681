//! Ratio and speed of the codecs, a core alone, on the bytes of files: `cargo xtask bench codecs` makes them from state that was
//! really trained.
//!
//! `cargo bench -p dcp --bench codecs -- FOLDER`: FOLDER holds `NAME.f32`, `NAME.bf16` …, bare little-endian elements. Each file is
//! taken as a tensor: cut into blocks, each block compressed and decompressed as the store does it. Prints a table, and the same as
//! JSON on the last line. Speed is by processor time where the system tells it (Linux), so that other work doesn't count; else by
//! wall time. Ends with an error if a block doesn't come back as it was.

use std::{
    error::Error,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Instant,
};

use dcp::{
    codec::{Codec, Decoder, Encoder, LEVEL},
    digest::{BLOCK_LEN, BlockCodec, Sha256Digest},
};
use fqn::Dtype;
use serde::Serialize;

/// Rounds that count; the median is told.
const ROUNDS: usize = 5;

type Any = Box<dyn Error + Send + Sync>;

/// One codec on one file.
#[derive(Debug, Serialize)]
struct Row {
    data: String,
    bytes: u64,
    codec: &'static str,
    level: i32,
    /// Stored bytes for each logical one.
    ratio: f64,
    /// Blocks that were kept coded, of all.
    coded: usize,
    blocks: usize,
    compress_mb_s: f64,
    decompress_mb_s: f64,
}

fn main() -> Result<(), Any> {
    let folder = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    // Without data there is nothing to measure: `cargo bench` of all benches passes by.
    let Some(folder) = folder else { return Ok(()) };
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|it| Ok(it?.path())).collect::<Result<_, Any>>()?;
    files.retain(|path| dtype(path).is_some());
    files.sort();
    println!(
        "{:<18} {:<7} {:>5} {:>7} {:>9} {:>14} {:>16}",
        "data", "codec", "level", "stored", "coded", "compress MB/s", "decompress MB/s"
    );
    let mut rows = Vec::new();
    for path in &files {
        for (codec, level) in [
            (Codec::Zstd, LEVEL),
            (Codec::Zstd, 3),
            (Codec::Planes, LEVEL),
            (Codec::Planes, 3),
            (Codec::Planes, 9),
        ] {
            rows.push(measured(path, codec, level)?);
        }
    }
    if let Some(path) = files.first() {
        println!("beside them, a core: {}", floor(&fs::read(path)?));
    }
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

fn dtype(path: &Path) -> Option<Dtype> {
    path.extension()?.to_str()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn measured(path: &Path, codec: Codec, level: i32) -> Result<Row, Any> {
    let (bytes, data) =
        (fs::read(path)?, path.file_name().and_then(|it| it.to_str()).unwrap_or("?").to_owned());
    let kind = dtype(path).map(|dtype| codec.of_blocks(dtype)).ok_or("no dtype")?;
    let (mut encoder, mut decoder) = (Encoder::at_level(level)?, Decoder::new()?);
    let (mut compress, mut decompress, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    let mut back = vec![0; BLOCK_LEN as usize];
    for _ in 0..=ROUNDS {
        stored.clear();
        let began = now();
        for block in bytes.chunks(BLOCK_LEN as usize) {
            let (kind, stored_as) = encoder.encode(kind, block)?;
            stored.push((kind, stored_as.to_vec(), block));
        }
        compress.push(now() - began);
        let began = now();
        for (kind, stored, block) in &stored {
            let back = back.get_mut(..block.len()).ok_or("a block of more than 1 MiB")?;
            decoder.decode(*kind, stored, back)?;
            black_box(&back);
        }
        decompress.push(now() - began);
    }
    for (kind, stored, block) in &stored {
        let back = back.get_mut(..block.len()).ok_or("a block of more than 1 MiB")?;
        decoder.decode(*kind, stored, back)?;
        if back != *block {
            return Err(format!("{data}: a block did not come back as it was").into());
        }
    }
    let rate = |seconds: &mut Vec<f64>| bytes.len() as f64 / 1e6 / median(seconds);
    let row = Row {
        data,
        bytes: bytes.len() as u64,
        codec: codec.name(),
        level,
        ratio: stored.iter().map(|it| it.1.len()).sum::<usize>() as f64 / bytes.len().max(1) as f64,
        coded: stored.iter().filter(|it| it.0 != BlockCodec::None).count(),
        blocks: stored.len(),
        compress_mb_s: rate(&mut compress),
        decompress_mb_s: rate(&mut decompress),
    };
    let coded = format!("{}/{}", row.coded, row.blocks);
    println!(
        "{:<18} {:<7} {:>5} {:>6.1} % {:>8} {:>14.0} {:>16.0}",
        row.data,
        row.codec,
        row.level,
        row.ratio * 100.0,
        coded,
        row.compress_mb_s,
        row.decompress_mb_s
    );
    Ok(row)
}

/// Seconds that this thread has worked; of the clock on the wall where the system doesn't tell.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn now() -> f64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let worked = told.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    worked.map_or_else(|| BEGAN.elapsed().as_secs_f64(), |nanoseconds| nanoseconds as f64 / 1e9)
}

/// The median, the first round left out: it warms up.
fn median(seconds: &mut Vec<f64>) -> f64 {
    let mut counted: Vec<f64> = seconds.drain(..).skip(1).collect();
    counted.sort_by(f64::total_cmp);
    counted.get(counted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a save does to each byte anyway.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn floor(bytes: &[u8]) -> String {
    let mut sha = Vec::new();
    for _ in 0..=ROUNDS {
        let began = now();
        bytes.chunks(BLOCK_LEN as usize).for_each(|block| {
            black_box(Sha256Digest::of(block));
        });
        sha.push(now() - began);
    }
    format!("SHA-256 {:.0} MB/s", bytes.len() as f64 / 1e6 / median(&mut sha))
}
