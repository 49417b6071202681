//! One function for each parser that reads bytes from outside: `cargo xtask fuzz` calls them on stable Rust, the targets of
//! `cargo fuzz` in `fuzz/` call the same ones.
//!
//! A function takes any bytes, says whether they were accepted, and must neither panic, nor hang, nor allocate beyond DESIGN §7's
//! bound: 64 MiB, four times the input, and one declared block. Nothing that is parsed is executed or written.
//!
//! ```
//! let records = parsers::targets().into_iter().find(|it| it.name == "record").unwrap();
//! assert!((records.seeds)().iter().all(|seed| (records.parse)(seed)));
//! assert!(!(records.parse)(b"{}"));
//! ```

mod foreign;
mod native;
mod seeds;
mod text;

pub use foreign::{dcp_metadata, hf_config, hf_index, pickle, safetensors_header, torch_archive};
pub use native::{block_table, chunks, head_hint, held, manifest, part, record};
pub use text::{baseline, dialect, location, mesh, names, pattern, placement, plan, revision, rules};

/// A parser, as fuzzers see it.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, also that of its fuzz target.
    pub name: &'static str,
    /// Reads bytes; whether they were accepted.
    pub parse: fn(&[u8]) -> bool,
    /// Inputs to begin from: those that the fixtures hold.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes what a mutation has broken fit again (a check, a length), so that the rest is reached.
    pub mend: Option<fn(Vec<u8>) -> Vec<u8>>,
    /// Words of the format.
    pub words: &'static [&'static str],
}

/// All of them.
#[must_use]
pub fn targets() -> Vec<Target> {
    [native::TARGETS, foreign::TARGETS, text::TARGETS].concat()
}

/// A target that needs no mending.
const fn target(
    name: &'static str,
    parse: fn(&[u8]) -> bool,
    seeds: fn() -> Vec<Vec<u8>>,
    words: &'static [&'static str],
) -> Target {
    Target { name, parse, seeds, mend: None, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_accepts_a_seed_and_refuses_something() {
        for target in targets() {
            let seeds = (target.seeds)();
            assert!(seeds.iter().any(|seed| (target.parse)(seed)), "{}: no seed is accepted", target.name);
            let torn =
                seeds.iter().any(|seed| !(target.parse)(seed.get(..seed.len() / 2).unwrap_or_default()));
            assert!(torn || !(target.parse)(b"\x1b\0\xff"), "{} accepts anything", target.name);
        }
    }

    #[test]
    fn mending_a_seed_leaves_it_acceptable() {
        for target in targets() {
            let Some(mend) = target.mend else { continue };
            let mended = (target.seeds)().into_iter().any(|seed| (target.parse)(&mend(seed)));
            assert!(mended, "{}", target.name);
        }
    }

    #[test]
    fn every_target_has_its_fuzz_target() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for target in targets() {
            let file = folder.join(format!("fuzz_targets/{}.rs", target.name));
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(text.contains(&format!("parsers::{}(", target.name)), "{}", file.display());
            assert!(manifest.contains(&format!("fuzz_targets/{}.rs", target.name)), "{}", target.name);
        }
    }
}
