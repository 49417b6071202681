//! The halves of `cargo xtask bench store` and `cargo xtask bench reshard` that use the store's own code: each command does one job and
//! says, as JSON on the last line, what it took. What others take for the same, and what comes of it, is the other halves'.
//!
//! ```text
//!  turns GIGABYTES          waits for jobs on stdin, one a line, holding its state in memory: see [`turns`]
//!  writer GIGABYTES RANK    one of four writers that `turns` starts
//!  prints GIGABYTES DTYPE THREADS   fingerprints of so many bytes
//!  scale FOLDER             plan, check and write the manifest of a 405B model on 8,960 ranks into FOLDER
//!  open FOLDER              opens the newest checkpoint of a root, or a step's folder
//!  root FOLDER              an empty root
//!  relay FROM TO            floor of a reshard: reads, writes and two SHA-256 of each MiB of FROM's blobs, all cores
//!  share ROOT RANKS         one rank's columns of every matrix of a root's newest checkpoint, read alone and by blocks
//!  many FOLDER COUNT        a root with one checkpoint of so many small tensors
//!  commits FOLDER COUNT     so many commits more in that root's log, the last of them real
//! ```

mod commits;
mod prints;
mod relay;
mod scale;
mod share;
mod state;
mod turns;

use std::time::Instant;

pub(crate) type Any = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Any> {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["turns", gigabytes] => return turns::serve(gigabytes),
        ["writer", gigabytes, rank] => return turns::serve_rank(gigabytes, rank.parse()?),
        ["prints", gigabytes, dtype, threads] => {
            prints::measure(gigabytes.parse()?, dtype.parse()?, threads.parse()?)?
        }
        ["scale", folder] => scale::write(folder)?,
        ["open", folder] => scale::open(folder)?,
        ["root", folder] => commits::root(folder)?,
        ["relay", from, to] => relay::relay(from, to)?,
        ["share", root, ranks] => share::read(root, ranks.parse()?)?,
        ["many", folder, count] => commits::many(folder, count.parse()?)?,
        ["commits", folder, count] => commits::commits(folder, count.parse()?)?,
        _ => {
            eprintln!(
                "run by `cargo xtask bench store` and `bench reshard`; by itself: prints 1 f32 2, scale FOLDER, open FOLDER"
            );
            return Ok(());
        }
    };
    println!("{answer}");
    Ok(())
}

/// Processor time of all threads so far, where the system tells it as Linux does.
pub(crate) fn processor_seconds() -> f64 {
    let said = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields =
        said.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(11).take(2)).into_iter().flatten();
    // In hundredths of a second, on every machine that Linux runs on.
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Seconds that `work` took, and what it made.
pub(crate) fn timed<T>(work: impl FnOnce() -> Result<T, Any>) -> Result<(f64, T), Any> {
    let began = Instant::now();
    let made = work()?;
    Ok((began.elapsed().as_secs_f64(), made))
}

/// Peak resident memory of this process, where the system tells it.
pub(crate) fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}
