//! `fuzz`: every parser of bytes from outside, fed with the fixtures' own inputs after changes by chance. None may panic, overflow, hang,
//! or take memory beyond DESIGN §7's bound.
//!
//! ```text
//!  seeds (fixtures) ─ mutate ─ mend (check, header) ─► parser, memory counted, time taken ─► bad: kept in a folder, and printed
//! ```
//!
//! It is a stand-in for coverage-guided fuzzing on stable Rust; the same functions are targets of `cargo fuzz` (folder `fuzz/`).
//! That it notices is shown by three parsers that are bad on purpose.

pub(crate) mod memory;
mod mutate;
mod wide;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parsers::{Target, targets};
use serde::Serialize;

use crate::chance::Chance;
use crate::proof::{Proof, Size};
use crate::training::Outcome;

/// DESIGN §7: 64 MiB, four times the input, one declared block.
const FLAT: u64 = 64 << 20;
const TIMES: u64 = 4;
const DECLARED: u64 = 16 << 20;

/// An input that takes longer than this is a hang, on a busy machine and unoptimised.
const LONGEST: Duration = Duration::from_secs(10);

/// After this nothing can be said but which input it was.
const GIVEN_UP: Duration = Duration::from_secs(120);

/// What was tried, and what came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Fuzz {
    targets: BTreeMap<&'static str, Tried>,
    inputs: u64,
    /// Inputs of a million small things.
    wide: BTreeMap<&'static str, Wide>,
    /// Parsers that are bad on purpose, and were not noticed.
    unnoticed: Vec<&'static str>,
    bad: Vec<String>,
}

/// An input of many small things.
#[derive(Debug, Clone, Copy, Serialize)]
struct Wide {
    bytes: u64,
    accepted: bool,
    most_memory: u64,
    bound: u64,
    seconds: f64,
}

/// Of one parser.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Tried {
    seeds: u64,
    inputs: u64,
    accepted: u64,
    /// Bytes.
    most_memory: u64,
    slowest_ms: u64,
}

impl Proof for Fuzz {
    const NAME: &'static str = "fuzz";

    fn bad(&self) -> Vec<String> {
        let mut bad = self.bad.clone();
        bad.extend(self.unnoticed.iter().map(|name| format!("the bad parser {name:?} was not noticed")));
        for (name, it) in &self.targets {
            if it.seeds == 0 || it.accepted == 0 || it.accepted == it.inputs {
                bad.push(format!(
                    "{name}: of {} inputs {} were accepted: its checks were not reached",
                    it.inputs, it.accepted
                ));
            }
        }
        if self.targets.is_empty() {
            bad.push("no parser was tried".to_owned());
        }
        bad
    }
}

/// Tries them.
pub(crate) fn run(size: Size) -> Outcome<Fuzz> {
    let mut fuzz = Fuzz::default();
    let watch = Watch::begin();
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let folder = base.join(format!("ckpt-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for target in targets() {
        let (tried, bad) = feed(&target, size.pick(3000, 200_000), size.seed, &folder, &watch)?;
        fuzz.inputs += tried.inputs;
        fuzz.targets.insert(target.name, tried);
        fuzz.bad.extend(bad);
        eprintln!(
            "{:<20} {:>8} inputs, {:>7} accepted, {:>6} KiB at most, {:>5} ms the slowest",
            target.name,
            tried.inputs,
            tried.accepted,
            tried.most_memory >> 10,
            tried.slowest_ms
        );
    }
    for (name, input, parse) in wide::inputs(size.pick(100_000, 1_000_000))? {
        let began = Instant::now();
        let (accepted, most) = memory::most(|| parse(&input));
        let bound = FLAT + TIMES * input.len() as u64 + DECLARED;
        let wide = Wide {
            bytes: input.len() as u64,
            accepted,
            most_memory: most,
            bound,
            seconds: began.elapsed().as_secs_f64(),
        };
        eprintln!("{name:<20} {} bytes, {} KiB at most of {}", wide.bytes, most >> 10, bound >> 10);
        if most > bound {
            fuzz.bad.push(format!("{name}: it holds {most} bytes, {bound} are allowed"));
        }
        fuzz.wide.insert(name, wide);
    }
    // What they say of themselves is no news.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for target in bad_parsers() {
        let (_, bad) = feed(&target, 40, size.seed, &folder, &watch)?;
        if bad.is_empty() {
            fuzz.unnoticed.push(target.name);
        }
    }
    std::panic::set_hook(hook);
    // Inputs that were bad stay; those of the parsers that are bad on purpose do not.
    if fuzz.bad.is_empty() {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(fuzz)
}

/// Writes the seeds of all targets below a folder, as `cargo fuzz` looks for them.
pub(crate) fn write_seeds(folder: &Path) -> Outcome<()> {
    for target in targets() {
        let below = folder.join(target.name);
        std::fs::create_dir_all(&below)?;
        for (at, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(below.join(format!("seed-{at:03}")), seed)?;
        }
    }
    Ok(())
}

fn feed(
    target: &Target,
    inputs: u64,
    seed: u64,
    folder: &Path,
    watch: &Watch,
) -> Outcome<(Tried, Vec<String>)> {
    let seeds = (target.seeds)();
    let purpose =
        target.name.bytes().fold(3, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let (mut chance, mut bad) = (Chance::new(seed, purpose), Vec::new());
    let mut tried = Tried { seeds: seeds.len() as u64, ..Tried::default() };
    let now = folder.join(format!("{}-now", target.name));
    for at in 0..inputs.max(seeds.len() as u64) {
        let input = match usize::try_from(at).ok().and_then(|at| seeds.get(at)) {
            Some(seed) => seed.clone(),
            None => mutate::input(target, &seeds, &mut chance),
        };
        // A process that is killed for its memory, or given up, leaves it behind.
        std::fs::write(&now, &input)?;
        watch.now(&now);
        let began = Instant::now();
        let (outcome, most) = memory::most(|| catch_unwind(AssertUnwindSafe(|| (target.parse)(&input))));
        let took = began.elapsed();
        watch.idle();
        tried.inputs += 1;
        tried.accepted += u64::from(matches!(outcome, Ok(true)));
        tried.most_memory = tried.most_memory.max(most);
        tried.slowest_ms = tried.slowest_ms.max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let bound = FLAT + TIMES * input.len() as u64 + DECLARED;
        let what = match outcome {
            Err(panic) => Some(format!("it panics: {}", text_of(&*panic))),
            Ok(_) if most > bound => Some(format!("it holds {most} bytes, {bound} are allowed")),
            Ok(_) if took > LONGEST => Some(format!("it takes {took:?}")),
            Ok(_) => None,
        };
        if let Some(what) = what {
            let kept = folder.join(format!("{}-{:02}", target.name, bad.len()));
            std::fs::write(&kept, &input)?;
            bad.push(format!(
                "{}: {what}; the input of {} bytes is kept in {}",
                target.name,
                input.len(),
                kept.display()
            ));
            if bad.len() >= 5 {
                break;
            }
        }
    }
    std::fs::remove_file(&now)?;
    Ok((tried, bad))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Ends the program when an input takes for ever.
#[derive(Debug)]
struct Watch(Arc<(AtomicU64, std::sync::Mutex<PathBuf>)>);

impl Watch {
    fn begin() -> Self {
        let watched = Arc::new((AtomicU64::new(0), std::sync::Mutex::new(PathBuf::new())));
        let seen = Arc::clone(&watched);
        std::thread::spawn(move || {
            let (mut before, mut since) = (0, Instant::now());
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let now = seen.0.load(Ordering::Relaxed);
                // Odd numbers: an input is being read.
                if now != before || now.is_multiple_of(2) {
                    (before, since) = (now, Instant::now());
                } else if since.elapsed() > GIVEN_UP {
                    let input = seen.1.lock().map(|it| it.display().to_string()).unwrap_or_default();
                    eprintln!("bad  fuzz: an input takes longer than {GIVEN_UP:?}; it is kept in {input}");
                    std::process::exit(1);
                }
            }
        });
        Self(watched)
    }

    fn now(&self, input: &Path) {
        if let Ok(mut path) = self.0.1.lock() {
            path.clear();
            path.push(input);
        }
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }

    fn idle(&self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Parsers that are bad on purpose: one panics, one overflows, one believes a length.
fn bad_parsers() -> [Target; 3] {
    let target =
        |name, parse| Target { name, parse, seeds: || vec![b"0123456789".to_vec()], mend: None, words: &[] };
    [
        target("panics", |data| data[9] > 0),
        target("overflows", |data| data.iter().sum::<u8>() > 0),
        target("believes", |data| vec![1_u8; 90 << 20].len() > data.len()),
    ]
}
