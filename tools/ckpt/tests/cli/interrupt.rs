//! SIGINT, SIGTERM and SIGKILL: nothing visible, and the same command goes on where it stopped.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::place::{Answer, Place, fixture, names};

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

/// Runs until the first file is finished, of those that `finished` counts, then sends the signal.
fn stopped(place: &Place, args: &[&str], signal: &str, finished: impl Fn(&Place) -> usize) -> Answer {
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
fn journalled(place: &Place) -> usize {
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
        let answer = stopped(&place, &args, signal, journalled);
        answer.refused(code, &["stopped on request", "run the same command again"]);
        assert!(!place.path("out").exists());
        let outcome: Value = place.json(&args);
        let skipped = outcome["result"]["report"]["skipped_files"].as_u64().unwrap();
        assert!(skipped >= 1, "{outcome}");
        place.done(&["diff", "model.safetensors", "out"]);
        assert_eq!(place.listed(), ["config", "model.safetensors", "out"]);
    }
}

#[test]
fn resume_goes_on_with_a_stopped_run_into_a_foreign_target_and_refuses_where_there_is_none() {
    let place = Place::new();
    model(&place.path("model.safetensors"));
    std::fs::create_dir(place.path("config")).unwrap();
    std::fs::write(place.path("config/config.json"), "{\"model_type\": \"none\"}").unwrap();
    let args = [
        "convert",
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
    let resume = [&args[..], &["--resume"]].concat();
    place.run(&resume).refused(11, &["--resume", "no run of this command", "leave --resume out"]);
    assert_eq!(place.listed(), ["config", "model.safetensors"], "a refusal left something behind");

    stopped(&place, &args, "-INT", journalled).refused(130, &["run the same command again"]);
    let other = [&resume[..], &["--dtype", "f32"]].concat();
    place.run(&other).refused(11, &["--resume", ".out.ckpt-partial-", "of another command"]);
    let outcome = place.json(&resume);
    assert!(outcome["result"]["report"]["skipped_files"].as_u64().unwrap() >= 1, "{outcome}");
    place.done(&["diff", "model.safetensors", "out"]);
    place.run(&resume).refused(11, &["out", "the target exists"]);
    assert_eq!(place.run(&[&resume[..], &["--dry-run"]].concat()).code, 2);
}

#[test]
fn resume_goes_on_with_a_stopped_run_into_a_root_and_says_when_it_is_done() {
    let place = Place::new();
    model(&place.path("model.safetensors"));
    let resume = [&STAGES[..], &["--resume"]].concat();
    place.run(&resume).refused(11, &["--resume", "no run of this command"]);
    assert!(!place.path("root").exists(), "a refusal made a root");

    let answer = stopped(&place, &STAGES, "-KILL", |place| parts_of(attempts(place).first()));
    said_so(&answer, "-KILL", -1);
    let attempt = attempts(&place).remove(0);
    let finished = parts_of(Some(&attempt));
    place.run(&[&resume[..], &["--step", "9"]].concat()).refused(11, &["--resume", "no run of this command"]);
    let report = place.json(&resume)["result"]["report"].clone();
    assert_eq!(report["skipped_files"], finished);
    assert_eq!(attempts(&place), [attempt], "another attempt was begun");
    place.done(&["diff", "model.safetensors", "root"]);
    place.run(&resume).refused(11, &["--resume", "done, as record 1", "root@seq:1"]);
    assert_eq!(place.json(&STAGES)["result"]["sequence"], 1, "without the word it is as before");
}

/// Into a native root, a file for each of twelve stages, one after another.
const STAGES: [&str; 9] =
    ["convert", "model.safetensors", "root", "--to", "1x12x1", "--place", "**=pp:layer", "--jobs", "1"];

/// Attempts in the root.
fn attempts(place: &Place) -> Vec<PathBuf> {
    let root = place.path("root");
    let names = if root.is_dir() { names(&root) } else { Vec::new() };
    names.into_iter().filter(|name| name.starts_with("step-")).map(|name| root.join(name)).collect()
}

/// What a folder of an attempt holds by now, but for what is on its way into it.
fn held(attempt: &Path, folder: &str) -> Vec<PathBuf> {
    let folder = attempt.join(folder);
    let names = if folder.is_dir() { names(&folder) } else { Vec::new() };
    names.into_iter().filter(|name| !name.starts_with('.')).map(|name| folder.join(name)).collect()
}

/// How many files of an attempt are finished.
fn parts_of(attempt: Option<&PathBuf>) -> usize {
    attempt.map_or(0, |attempt| held(attempt, "parts").len())
}

/// Which file it is, and since when: of a file that was written anew neither stays.
fn identities(files: &[PathBuf]) -> Vec<(u64, SystemTime)> {
    let metadata = files.iter().map(|file| file.metadata().unwrap());
    metadata.map(|it| (it.ino(), it.modified().unwrap())).collect()
}

/// The stopped run said what a stop is to say; a killed one can't.
fn said_so(answer: &Answer, signal: &str, code: i32) {
    if signal == "-KILL" {
        assert_eq!(answer.code, -1, "{answer:#?}");
    } else {
        answer.refused(code, &["stopped on request", "run the same command again"]);
    }
}

#[test]
fn a_stopped_conversion_into_a_new_root_commits_nothing_and_keeps_finished_files() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-KILL", -1)] {
        let place = Place::new();
        model(&place.path("model.safetensors"));
        let answer = stopped(&place, &STAGES, signal, |place| parts_of(attempts(place).first()));
        said_so(&answer, signal, code);
        place.run(&["inspect", "root"]).refused(10, &["root", "never committed", "again"]);
        assert!(!place.path("root/commits").exists());

        let attempt = attempts(&place).remove(0);
        let finished = parts_of(Some(&attempt));
        let parts = held(&attempt, "parts");
        let before = identities(&parts);
        let report = place.json(&STAGES)["result"]["report"].clone();
        assert_eq!(attempts(&place), std::slice::from_ref(&attempt), "another attempt was begun");
        assert_eq!(identities(&parts), before);
        assert_eq!((&report["skipped_files"], &report["files"]), (&finished.into(), &12.into()));
        let left = (12 - finished) * (TENSORS / 12) * ROWS * 1024 * 2;
        assert_eq!(report["bytes_read"], left, "finished files were read again");
        if signal != "-KILL" {
            assert_eq!(held(&attempt, "data").len(), 12, "the stopped run left what it had not finished");
        }
        place.done(&["verify", "root"]);
        place.done(&["diff", "model.safetensors", "root"]);
        assert_eq!(place.listed(), ["model.safetensors", "root"]);
    }
}

#[test]
fn a_root_shows_its_older_checkpoint_while_a_later_one_is_stopped_and_until_it_is_whole() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let place = Place::new();
        model(&place.path("model.safetensors"));
        place.done(&["convert", &fixture("torch_dcp/fsdp2_tp2"), "root", "--step", "3"]);
        let older = attempts(&place);
        let later = |place: &Place| attempts(place).into_iter().find(|attempt| !older.contains(attempt));
        let args = [&STAGES[..], &["--step", "4"]].concat();
        let answer = stopped(&place, &args, signal, |place| parts_of(later(place).as_ref()));
        said_so(&answer, signal, code);
        let shown = || {
            place.json(&["diff", &fixture("torch_dcp/fsdp2_tp2"), "root@latest"])["result"]["same"].clone()
        };
        assert_eq!(shown(), true);
        place.done(&["verify", "root"]);

        let outcome = place.json(&args)["result"].clone();
        assert_eq!(outcome["target"], "root@seq:2");
        assert!(outcome["report"]["skipped_files"].as_u64().unwrap() >= 1, "{outcome}");
        place.done(&["diff", "model.safetensors", "root@latest"]);
        place.done(&["diff", &fixture("torch_dcp/fsdp2_tp2"), "root@seq:1"]);
    }
}
