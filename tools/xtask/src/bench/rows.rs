//! What reading ten rows out of a thousand takes: their own bytes when unverified, the blocks around them when verified.

use super::Bench;
use crate::error::Error;
use crate::process;

/// Bytes of a block, as the native format has them.
const BLOCK: u64 = 1 << 20;

/// Reads the rows from torch's own checkpoint and from a native store of it, and prints what each took.
pub(super) fn rows(bench: &Bench) -> Result<(), Error> {
    bench.measure(&bench.script("bench_rows.py", &["rows"]))?;
    bench.measure(&bench.ckpt(&["convert", "rows", "rows-native"]))?;
    let (bytes, read) = value(bench, "rows", &["--unverified"])?;
    print("ten of 1,000 rows, torch DCP, unverified", bytes, read, bytes + bytes / 10)?;
    let (bytes, read) = value(bench, "rows-native", &["--unverified"])?;
    print("ten of 1,000 rows, native, unverified", bytes, read, bytes + bytes / 10)?;
    let (bytes, read) = value(bench, "rows-native", &[])?;
    // Ten rows of 16 KiB may lie across a boundary of blocks.
    print("ten of 1,000 rows, native, verified", bytes, read, 2 * BLOCK)
}

fn value(bench: &Bench, folder: &str, more: &[&str]) -> Result<(u64, u64), Error> {
    let mut command = bench.ckpt(&["inspect", folder, "--json", "--value", "w[500:510]"]);
    command.args(more);
    let output = process::output(&mut command)?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|source| Error::Answer { command: process::shown(&command), source })?;
    let number = |key: &str| answer["result"][key].as_u64().unwrap_or_default();
    Ok((number("bytes"), number("bytes_read")))
}

fn print(what: &str, bytes: u64, read: u64, most: u64) -> Result<(), Error> {
    println!("{what}: {bytes} bytes asked for, {read} read (target: at most {most})");
    if bytes == 0 || read < bytes {
        return Err(Error::Checks { count: 1, what: format!("reading {what}") });
    }
    Ok(())
}
