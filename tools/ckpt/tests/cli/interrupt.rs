//! SIGINT and SIGTERM: nothing visible, and the same command goes on where it stopped.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Answer, Place, names};

const TENSORS: usize = 96;
const ROWS: usize = 512;

/// A safetensors file of 96 tensors of 1 MiB.
fn model(path: &Path) {
    let bytes = ROWS * 1024 * 2;
    let tensor = |at: usize| {
        let (start, end) = (at * bytes, (at + 1) * bytes);
        format!(
            "\"layers.{at}.w\":{{\"dtype\":\"BF16\",\"shape\":[{ROWS},1024],\"data_offsets\":[{start},{end}]}}"
        )
    };
    let header = format!("{{{}}}", (0..TENSORS).map(tensor).collect::<Vec<_>>().join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for at in 0..TENSORS {
        file.write_all(&vec![u8::try_from(at).unwrap(); bytes]).unwrap();
    }
}

/// Runs until the first file is finished, then sends the signal.
fn stopped(place: &Place, args: &[&str], signal: &str) -> Answer {
    let mut command = place.command(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    while finished(place) == 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing was finished in a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    Answer::of(&child.wait_with_output().unwrap())
}

/// Files that the unfinished target's journal names.
fn finished(place: &Place) -> usize {
    let partial = place.listed().into_iter().find(|name| name.contains(".ckpt-partial-"));
    let journal = partial.map(|name| place.path(&name).join("journal")).filter(|path| path.is_dir());
    journal.map_or(0, |path| names(&path).iter().filter(|name| !name.starts_with('.')).count())
}

#[test]
fn a_stopped_conversion_leaves_nothing_visible_and_goes_on() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let place = Place::new();
        model(&place.path("model.safetensors"));
        let args = [
            "export",
            "model.safetensors",
            "out",
            "--as",
            "hf",
            "--max-shard-size",
            "2MiB",
            "--jobs",
            "1",
            "--config",
            "config",
        ];
        std::fs::create_dir(place.path("config")).unwrap();
        std::fs::write(place.path("config/config.json"), "{\"model_type\": \"none\"}").unwrap();
        let answer = stopped(&place, &args, signal);
        answer.refused(code, &["stopped on request", "run the same command again"]);
        assert!(!place.path("out").exists());
        let outcome: Value = place.json(&args);
        let skipped = outcome["result"]["report"]["skipped_files"].as_u64().unwrap();
        assert!(skipped >= 1, "{outcome}");
        place.done(&["diff", "model.safetensors", "out"]);
        assert_eq!(place.listed(), ["config", "model.safetensors", "out"]);
    }
}
