//! Checkpoints larger than the memory there is: the system itself refuses every page above `--max-memory` and 64 MiB.
//!
//! `CKPT_LARGE_MIB` sets the size of the checkpoint for a run at full size, with the bounds that the project promises; its
//! file has holes, its target needs as much space again in `TMPDIR`:
//! `CKPT_LARGE_MIB=8192 cargo test --release -p ckpt --test cli memory`.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use crate::place::{Answer, Place};

const MIB: u64 = 1 << 20;

/// What the program itself takes: its text, stacks, catalogs.
const BESIDES: u64 = 64;

/// One file: a tensor of half its size, and eight smaller ones. Zeros, but for a number in every mebibyte.
fn large(file: &Path, mib: u64) {
    let shape = |mib: u64| serde_json::json!([mib * MIB / 4096, 1024]);
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut add = |name: String, mib: u64| {
        let entry =
            serde_json::json!({"dtype": "F32", "shape": shape(mib), "data_offsets": [end, end + mib * MIB]});
        header.insert(name, entry);
        end += mib * MIB;
    };
    add("embed".to_owned(), mib / 2);
    (0..8).for_each(|layer| add(format!("layers.{layer}.w"), mib / 16));
    let header = serde_json::Value::Object(header).to_string();
    let mut file = File::create(file).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let start = 8 + header.len() as u64;
    file.set_len(start + end).unwrap();
    for number in 0..end / MIB {
        file.seek(SeekFrom::Start(start + number * (MIB + 12) % end / 4 * 4)).unwrap();
        file.write_all(&number.to_le_bytes()[..4]).unwrap();
    }
}

/// Runs `ckpt` where it can have so many MiB of addresses and no more. Of every thread's heap the C library would reserve 64
/// MiB of them beforehand, in use or not; so there is one heap.
fn within(place: &Place, mib: u64, more: Option<&(&str, String)>, args: &[&str]) -> Answer {
    let inner = place.command(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &(mib * 1024).to_string()]);
    shell.arg(inner.get_program()).args(inner.get_args()).current_dir(inner.get_current_dir().unwrap());
    shell.env_clear().env("NO_COLOR", "1").env("MALLOC_ARENA_MAX", "1");
    shell.envs(more.map(|(name, value)| (name, value)));
    Answer::of(&shell.output().unwrap())
}

#[test]
fn a_checkpoint_larger_than_memory_goes_from_mesh_to_mesh_within_its_bound() {
    let full = std::env::var("CKPT_LARGE_MIB").ok().map(|mib| mib.parse::<u64>().unwrap());
    let bounds: &[u64] = if full.is_some() { &[256, 512, 2048] } else { &[16] };
    let mib = full.unwrap_or(192);
    let place = Place::new();
    large(&place.path("source.safetensors"), mib);
    for bound in bounds {
        assert!(bound + BESIDES < mib, "a checkpoint of {mib} MiB is not larger than memory");
        let memory = format!("{bound}MiB");
        let done = |args: &[&str]| {
            let answer = within(&place, bound + BESIDES, None, &[args, &["--max-memory", &memory]].concat());
            assert_eq!(answer.code, 0, "ckpt {} in {memory}: {answer:#?}", args.join(" "));
        };
        // Columns of the largest tensor, which alone is larger than the bound.
        let rules = ["--place", "embed=tp:1,dp:0,pp:first", "--place", "layers.*.w=tp:1,dp:0,pp:layer"];
        done(&[&["convert", "source.safetensors", "a", "--to", "2x1x3"], &rules[..]].concat());
        done(&["reshard", "a", "b", "--to", "3x2x1"]);
        std::fs::remove_dir_all(place.path("a")).unwrap();
        done(&["verify", "b"]);
        done(&["diff", "source.safetensors", "b"]);
        std::fs::remove_dir_all(place.path("b")).unwrap();
        // All layers as one tensor, larger than the bound too, along both of its rows.
        for axis in ["0", "1"] {
            let pair = format!("layers.{{layer}}.w=layers.w@{axis}");
            done(
                &[&["convert", "source.safetensors", "a", "--to", "2x1x3", "--stack", &pair], &rules[..]]
                    .concat(),
            );
            done(&["reshard", "a", "b", "--to", "3x2x1", "--unstack", &pair]);
            std::fs::remove_dir_all(place.path("a")).unwrap();
            done(&["diff", "source.safetensors", "b"]);
            std::fs::remove_dir_all(place.path("b")).unwrap();
        }
    }
}

#[test]
fn where_threads_are_refused_the_work_is_done_by_those_there_are() {
    let place = Place::new();
    large(&place.path("source.safetensors"), 16);
    // Stacks of 1 GiB, of which there is room for none, or for a few.
    let stack = ("RUST_MIN_STACK", (1_u64 << 30).to_string());
    for room in [900, 1200, 2300, 3400] {
        let target = format!("target-{room}");
        let args = ["convert", "source.safetensors", &target, "--to", "2x1x3", "--place", "**=tp:1,dp:0"];
        let answer = within(&place, room, Some(&stack), &[&args[..], &["--jobs", "8"]].concat());
        assert_eq!(answer.code, 0, "{room} MiB: {answer:#?}");
        place.done(&["verify", &target]);
    }
}
