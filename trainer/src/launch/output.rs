//! What workers print: to the console with the rank before each line, and to a log file per rank as it is.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

/// Longest line that is kept together.
const LONGEST: u64 = 1 << 20;

/// The log of one rank, shared by its two streams.
pub(super) type Log = Arc<Mutex<File>>;

/// Opens `folder/rank_00000.log` and notes who writes from here on.
pub(super) fn open(folder: &Path, rank: usize, restart: u32) -> io::Result<Log> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("rank_{rank:05}.log"));
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    writeln!(file, "=== rank {rank}, restart {restart} ===")?;
    Ok(Arc::new(Mutex::new(file)))
}

/// Which stream of the launcher a worker's line goes to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Console {
    Nowhere,
    Out,
    Err,
}

/// Copies `from` line by line until it ends. A worker's own children may hold it open for longer than the worker lives.
pub(super) fn copy(
    from: impl Read + Send + 'static,
    to: Console,
    prefix: String,
    log: Log,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // A full disk or a closed console must not stop the training.
            let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
            let _ = show(to, &prefix, &line);
        }
    })
}

fn show(to: Console, prefix: &str, line: &[u8]) -> io::Result<()> {
    let whole = [prefix.as_bytes(), line].concat();
    match to {
        Console::Nowhere => Ok(()),
        Console::Out => io::stdout().lock().write_all(&whole).and_then(|()| io::stdout().flush()),
        Console::Err => io::stderr().lock().write_all(&whole),
    }
}
