//! What reading ten rows out of a thousand takes: their own bytes when unverified, the blocks around them when verified.

use serde::Serialize;

use super::Bench;
use crate::error::Error;
use crate::process;

/// Bytes of a block, as the native format has them.
const BLOCK: u64 = 1 << 20;

/// Bytes of one reading.
#[derive(Debug, Serialize)]
pub(super) struct Rows {
    what: &'static str,
    asked_for: u64,
    read: u64,
    /// The target.
    at_most: u64,
}

/// Reads the rows from torch's own checkpoint and from a native store of it, and prints what each took.
pub(super) fn rows(bench: &Bench) -> Result<Vec<Rows>, Error> {
    bench.measure(&bench.script("bench_rows.py", &["rows"]))?;
    bench.measure(&bench.ckpt(&["convert", "rows", "rows-native"]))?;
    let unverified = |bytes: u64| bytes + bytes / 10;
    // Ten rows of 16 KiB may lie across a boundary of blocks.
    let verified = |_: u64| 2 * BLOCK;
    Ok(vec![
        read(bench, "ten of 1,000 rows, torch DCP, unverified", "rows", &["--unverified"], unverified)?,
        read(bench, "ten of 1,000 rows, native, unverified", "rows-native", &["--unverified"], unverified)?,
        read(bench, "ten of 1,000 rows, native, verified", "rows-native", &[], verified)?,
    ])
}

fn read(
    bench: &Bench,
    what: &'static str,
    folder: &str,
    more: &[&str],
    at_most: impl Fn(u64) -> u64,
) -> Result<Rows, Error> {
    let mut command = bench.ckpt(&["inspect", folder, "--json", "--value", "w[500:510]"]);
    command.args(more);
    let output = process::output(&mut command)?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|source| Error::Answer { command: process::shown(&command), source })?;
    let number = |key: &str| answer["result"][key].as_u64().unwrap_or_default();
    let (asked_for, read) = (number("bytes"), number("bytes_read"));
    let at_most = at_most(asked_for);
    println!("{what}: {asked_for} bytes asked for, {read} read (target: at most {at_most})");
    if asked_for == 0 || read < asked_for {
        return Err(Error::Checks { count: 1, what: format!("reading {what}") });
    }
    Ok(Rows { what, asked_for, read, at_most })
}
