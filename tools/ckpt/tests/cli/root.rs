//! The verbs about a root's history: `ls`, `log`, `tag`, `pin`, `forget`, `gc`, `du`, `doctor`, `verify --record`.

use serde_json::Value;

use crate::place::{Place, fixture, names};

const DCP: &str = "torch_dcp/fsdp2_tp2";
const HF: &str = "hf/llama_sharded";

/// A root with one checkpoint a step.
fn root(place: &Place, steps: &[&str]) {
    for step in steps {
        place.done(&["convert", &fixture(DCP), "root", "--to", "1x1x2", "--heads", "4", "--step", step]);
    }
}

fn steps(place: &Place) -> Vec<u64> {
    let listed = place.json(&["ls", "root"]);
    listed["result"]["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["step"].as_u64().unwrap())
        .collect()
}

fn folders(place: &Place) -> usize {
    names(&place.path("root")).iter().filter(|name| name.starts_with("step-")).count()
}

/// Bytes of every file below.
fn bytes(path: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let of = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        it if it.is_dir() => bytes(&entry.path()),
        it => it.len(),
    };
    entries.map(of).sum()
}

#[test]
fn checkpoints_are_listed_newest_first_with_their_names_and_marks() {
    let place = Place::new();
    root(&place, &["100", "200", "300"]);
    place.done(&["tag", "root@step:100", "best"]);
    place.done(&["pin", "root@latest~1"]);
    place.done(&["verify", "root", "--record"]);
    let listed = place.json(&["ls", "root", "--long"]);
    let rows = listed["result"]["checkpoints"].as_array().unwrap();
    let of = |key: &str| rows.iter().map(|row| row[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("seq"), [3, 2, 1]);
    assert_eq!(of("step"), [300, 200, 100]);
    assert_eq!(of("parent"), [2.into(), 1.into(), Value::Null]);
    assert_eq!(
        of("tags"),
        [Value::from(Vec::<String>::new()), Value::from(Vec::<String>::new()), vec!["best"].into()]
    );
    assert_eq!(of("pinned"), [false, true, false]);
    assert!(rows[0]["verified"].is_u64() && rows[1]["verified"].is_null());
    assert_eq!(of("mesh"), ["dp=1 pp=1 tp=2"; 3]);
    assert!(rows.iter().all(|row| row["bytes"].as_u64().unwrap() > 30_000
        && row["committed_ms"].as_u64().unwrap() > 1_600_000_000_000));
    let human = place.done(&["ls", "root", "--format", "human"]).out;
    assert!(human.starts_with("root  3 checkpoints\n"), "{human}");
    for part in ["seq:3", "verified", "tag:best", "pinned", "KiB", " s"] {
        assert!(human.contains(part), "{part} is not in {human}");
    }
    assert_eq!(place.done(&["ls", "root", "-q"]).out, "root@seq:3\nroot@seq:2\nroot@seq:1\n");
    assert_eq!(place.done(&["ls", "root", "--run", "other", "-q"]).out, "");
}

#[test]
fn the_log_tells_every_record_and_its_effect() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    place.done(&["tag", "root", "a"]);
    place.done(&["tag", "root@step:100", "a"]);
    place.done(&["tag", "root", "a", "--delete"]);
    place.done(&["pin", "root@step:100", "--release"]);
    let log = place.json(&["log", "root"]);
    let records = log["result"]["records"].as_array().unwrap();
    let actions: Vec<&str> =
        records.iter().map(|it| it["action"].as_object().unwrap().keys().next().unwrap().as_str()).collect();
    assert_eq!(
        actions,
        ["untag", "tag", "tag", "commit", "commit"],
        "to release what is not pinned is no record"
    );
    assert!(records.iter().all(|it| it["void"].is_null() && it["stored_ms"].is_u64()));
    assert_eq!(place.done(&["log", "root", "--limit", "2", "-q"]).out, "5\n4\n");
    let human = place.done(&["log", "root", "--limit", "2", "--format", "human"]).out;
    assert!(human.contains("5 records, the last 2") && human.contains("a is seq:1"), "{human}");
}

#[test]
fn marks_say_what_changed_and_what_was_so_already() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    let human = |args: &[&str]| place.done(&[args, &["--format", "human"]].concat()).out;
    assert_eq!(human(&["tag", "root", "best"]), "tagged     root@seq:2 as best\n");
    assert_eq!(human(&["tag", "root@tag:best", "best"]), "same       root@seq:2 is tag best already\n");
    assert_eq!(human(&["tag", "root@latest~1", "best"]), "tagged     root@seq:1 as best, which was seq:2\n");
    assert_eq!(human(&["pin", "root"]), "pinned     root@seq:2\n");
    assert_eq!(human(&["pin", "root"]), "same       root@seq:2 is pinned already\n");
    assert_eq!(human(&["pin", "root", "--release"]), "released   root@seq:2\n");
    assert_eq!(human(&["tag", "root", "best", "--delete"]), "untagged   root@seq:1, which was best\n");
    place.run(&["tag", "root", "best", "--delete"]).refused(10, &["no tag best"]);
    place.run(&["tag", "root@seq:9", "x"]).refused(10, &["seq:9", "seq:2 (step 200)"]);
}

#[test]
fn what_goes_is_told_with_reasons_before_and_done_after() {
    let place = Place::new();
    root(&place, &["100", "200", "300", "400", "500"]);
    place.done(&["tag", "root@step:200", "good"]);
    let policy = ["forget", "root", "--keep-last", "2", "--keep-every", "300"];
    let tried = place.done(&[&policy[..], &["--dry-run", "--format", "human"]].concat()).out;
    for line in [
        "keep     seq:5    step 500      newest; 1 of the last 2",
        "keep     seq:4    step 400      2 of the last 2",
        "keep     seq:3    step 300      first from step 300 on, every 300",
        "keep     seq:2    step 200      tagged good",
        "keep     seq:1    step 100      first from step 0 on, every 300",
        "dry run: 0 checkpoints would go and 5 checkpoints stay; nothing was written",
    ] {
        assert!(tried.contains(line), "{line:?} is not in\n{tried}");
    }
    let policy = ["forget", "root", "--keep-last", "2", "--keep-within", "0s"];
    place.run(&policy).refused(22, &["keeps none"]);
    let tried = place.done(&["forget", "root", "--keep-last", "2", "--dry-run", "--format", "human"]).out;
    assert!(tried.contains("forget   seq:1    step 100      number 5, 2 stay"), "{tried}");
    assert_eq!(steps(&place), [500, 400, 300, 200, 100]);
    let done = place.json(&["forget", "root", "--keep-last", "2"]);
    assert_eq!((&done["result"]["kept"], &done["result"]["forgotten"]), (&3.into(), &2.into()));
    assert_eq!(done["result"]["runs"][0]["retired"], serde_json::json!([1, 3]));
    assert_eq!(steps(&place), [500, 400, 200]);
    let again = place.json(&["forget", "root", "--keep-last", "2"]);
    assert_eq!(again["result"]["forgotten"], 0);
    let young = place.json(&["forget", "root", "--keep-within", "1h"]);
    assert_eq!((&young["result"]["forgotten"], &young["result"]["kept"]), (&0.into(), &3.into()));
    assert!(young["result"]["runs"][0]["decisions"][0]["age_seconds"].is_u64());
}

#[test]
fn a_policy_that_says_nothing_or_keeps_nothing_is_refused() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    let without = place.run(&["forget", "root"]);
    assert_eq!(without.code, 2, "{without:?}");
    assert!(without.err.contains("--keep-last"), "{without:?}");
    for wrong in
        [["--keep-last", "0"], ["--keep-every", "0"], ["--keep-within", "soon"], ["--keep-last", "-1"]]
    {
        assert_eq!(place.run(&[&["forget", "root"], &wrong[..]].concat()).code, 2, "{wrong:?}");
    }
    place.run(&["forget", "root", "--keep-best", "loss"]).refused(22, &["loss:min:3"]);
    place
        .run(&["forget", "root", "--keep-best", "loss:min:3"])
        .refused(22, &["has the metric loss", "without metrics"]);
    place.run(&["forget", "root", "--keep-last", "1", "--run", "other"]).refused(10, &["run other", "main"]);
    assert_eq!(steps(&place), [200, 100]);
}

#[test]
fn bytes_go_in_two_steps_and_the_sums_are_right_at_each() {
    let place = Place::new();
    root(&place, &["100", "200", "300"]);
    let sums = |kinds: &[&str]| {
        let usage = place.json(&["du", "root"])["result"]["usage"].clone();
        assert_eq!(usage["total"]["bytes"], bytes(&place.path("root")), "{usage}");
        let own: u64 = usage["checkpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["own"]["bytes"].as_u64().unwrap())
            .sum();
        let folders: u64 = ["retired", "condemned", "uncommitted", "foreign"]
            .iter()
            .flat_map(|kind| usage[kind].as_array().unwrap())
            .map(|it| it["bytes"].as_u64().unwrap())
            .sum();
        let rest = ["shared", "unreferenced", "log", "others"]
            .iter()
            .map(|kind| usage[kind]["bytes"].as_u64().unwrap());
        assert_eq!(own + folders + rest.sum::<u64>(), usage["total"]["bytes"].as_u64().unwrap(), "{usage}");
        for kind in ["retired", "condemned", "uncommitted", "foreign"] {
            assert_eq!(!usage[kind].as_array().unwrap().is_empty(), kinds.contains(&kind), "{kind}: {usage}");
        }
    };
    sums(&[]);
    place.done(&["forget", "root", "--keep-last", "1"]);
    sums(&["retired"]);
    let tried = place.done(&["gc", "root", "--dry-run", "--format", "human"]).out;
    assert!(tried.contains("dry run: 2 would be condemned, 0 folders deleted"), "{tried}");
    sums(&["retired"]);
    let first = place.json(&["gc", "root"]);
    assert_eq!(first["result"]["report"]["condemned"].as_array().unwrap().len(), 2);
    sums(&["condemned"]);
    assert_eq!(folders(&place), 3);
    let second = place.done(&["gc", "root", "--format", "human"]).out;
    assert!(second.contains("waits") && second.contains("goes in "), "{second}");
    let last = place.json(&["gc", "root", "--grace", "0s"]);
    assert_eq!(last["result"]["report"]["deleted"].as_array().unwrap().len(), 2);
    assert!(last["result"]["report"]["bytes"].as_u64().unwrap() > 60_000);
    assert_eq!(folders(&place), 1);
    sums(&[]);
    place.done(&["verify", "root"]);
    let human = place.done(&["du", "root", "--format", "human"]).out;
    assert!(human.contains("seq:3") && human.contains("\ntotal "), "{human}");
    // What is left of the others in the log does no harm: the same plan is written once more.
    root(&place, &["100"]);
    assert_eq!(steps(&place), [100, 300]);
}

#[test]
fn what_is_not_ours_is_told_of_and_left() {
    let place = Place::new();
    root(&place, &["100"]);
    let odd = "notes \u{1b}[31mred";
    std::fs::create_dir_all(place.path("root").join(odd)).unwrap();
    std::fs::write(place.path("root").join(odd).join("x"), b"mine").unwrap();
    std::fs::create_dir_all(place.path("root/notes")).unwrap();
    std::fs::write(place.path("root/notes/x"), b"mine").unwrap();
    let cleaned =
        place.done(&["gc", "root", "--grace", "0s", "--orphans-after", "0s", "--format", "human"]).out;
    assert!(cleaned.contains("no part of the store") && !cleaned.contains('\u{1b}'), "{cleaned:?}");
    let found = place.run(&["doctor", "root", "--format", "human"]);
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.out.contains("foreign") && !found.out.contains('\u{1b}'), "{found:?}");
    assert!(!place.done(&["du", "root", "--format", "human"]).out.contains('\u{1b}'));
    assert!(place.path("root").join(odd).join("x").is_file() && place.path("root/notes/x").is_file());
    for name in ["../up", "a b", "", "\u{1b}[31m", ".x"] {
        let answer = place.run(&["tag", "root", name]);
        answer.refused(22, &["cannot be the name"]);
        assert!(!answer.err.contains('\u{1b}'), "{answer:?}");
    }
}

#[test]
fn a_stopped_save_is_found_by_doctor_and_collected_when_it_is_old() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    // The record of the newest is gone, and the hint at it, as when its save was stopped before it.
    for gone in ["00000000000000000002.json", "head"] {
        std::fs::remove_file(place.path("root/commits").join(gone)).unwrap();
    }
    let found = place.json(&["doctor", "root"])["result"]["report"].clone();
    let codes: Vec<&str> =
        found["findings"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap()).collect();
    assert!(
        codes.contains(&"uncommitted") && codes.contains(&"file-system") && codes.contains(&"clock"),
        "{codes:?}"
    );
    assert_eq!((&found["records"], &found["checkpoints"]), (&1.into(), &1.into()));
    assert!(found["file_system"]["free_bytes"].as_u64().unwrap() > 0);
    assert!(codes.contains(&"sealed"), "{codes:?}");
    let gc = |more: &[&str]| {
        place.json(&[&["gc", "root", "--grace", "0s"], more].concat())["result"]["report"].clone()
    };
    let whole = gc(&["--orphans-after", "0s"]);
    assert_eq!(whole["spared"][0]["sealed"], true, "it may be a whole checkpoint: {whole}");
    let folder = whole["spared"][0]["folder"].as_str().unwrap().to_owned();
    place.done(&["verify", &format!("root/{folder}")]);
    let young = gc(&["--sealed"]);
    assert!(young["spared"][0]["seconds_left"].as_u64().unwrap() > 80_000, "{young}");
    assert_eq!(folders(&place), 2);
    let old = gc(&["--orphans-after", "0s", "--sealed"]);
    assert_eq!(old["deleted"][0]["kind"], "orphan", "{old}");
    assert_eq!((folders(&place), steps(&place)), (1, vec![100]));
}

#[test]
fn damage_is_an_error_of_doctor_with_the_exit_code_of_damage() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    let folder =
        names(&place.path("root")).into_iter().find(|name| name.starts_with("step-00000200")).unwrap();
    let manifest = names(&place.path("root").join(&folder))
        .into_iter()
        .find(|name| name.starts_with("manifest-"))
        .unwrap();
    std::fs::remove_file(place.path("root").join(&folder).join(manifest)).unwrap();
    let found = place.run(&["doctor", "root", "--json"]);
    assert_eq!(found.code, 20, "{found:?}");
    let result = found.json()["result"].clone();
    assert_eq!(
        (&result["healthy"], &result["report"]["findings"][0]["code"]),
        (&false.into(), &"incomplete".into())
    );
    std::fs::write(place.path("root/commits/00000000000000000001.json"), b"{}").unwrap();
    let found = place.run(&["doctor", "root", "--format", "human"]);
    assert_eq!(found.code, 20);
    assert!(found.out.starts_with("error  log"), "{found:?}");
    std::fs::remove_file(place.path("root/commits/head")).unwrap();
    place.run(&["ls", "root"]).refused(20, &["00000000000000000001.json"]);
}

#[test]
fn a_place_without_a_root_is_refused_by_every_verb() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    std::fs::write(place.path("file"), b"x").unwrap();
    let hf = fixture(HF);
    let verbs: Vec<Vec<&str>> = vec![
        vec!["ls"],
        vec!["log"],
        vec!["pin"],
        vec!["forget", "--keep-last", "1"],
        vec!["gc"],
        vec!["du"],
    ];
    for verb in &verbs {
        for (target, words) in [
            ("empty", "no commit log"),
            (hf.as_str(), "no commit log"),
            ("missing", "missing"),
            ("memory://nothing", "memory://nothing"),
        ] {
            let args = [&verb[..1], &[target], &verb[1..]].concat();
            place.run(&args).refused(10, &[words]);
        }
        assert_ne!(place.run(&[&verb[..1], &["file"], &verb[1..]].concat()).code, 0);
    }
    root(&place, &["100"]);
    for verb in verbs.iter().filter(|verb| verb[0] != "pin") {
        place.run(&[&verb[..1], &["root@latest"], &verb[1..]].concat()).refused(22, &["leave @latest out"]);
    }
    place.run(&["doctor", &hf]).refused(10, &["no root of the native store"]);
    place.run(&["doctor", "memory://nothing"]).refused(10, &["memory://nothing"]);
    let empty = place.json(&["doctor", "empty"]);
    assert_eq!(
        (&empty["result"]["healthy"], &empty["result"]["report"]["records"]),
        (&true.into(), &0.into())
    );
    assert!(names(&place.path("empty")).is_empty(), "its probes are gone");
    place.run(&["verify", &hf, "--record"]).refused(22, &["not committed to a native root"]);
}

/// A folder that nobody can write to, until this is dropped.
struct ReadOnly(std::path::PathBuf);

impl ReadOnly {
    /// By permissions, or, for whom those do not hold back, by a mount. `None`, with the reason printed, where neither can be had.
    fn of(folder: std::path::PathBuf) -> Option<Self> {
        let only = Self(folder);
        only.mode(0o555);
        let probe = only.0.join("may");
        if std::fs::write(&probe, b"").is_err() {
            return Some(only);
        }
        std::fs::remove_file(&probe).unwrap();
        for options in [["--bind"].as_slice(), ["-o", "remount,bind,ro"].as_slice()] {
            let mount = std::process::Command::new("mount").args(options).args([&only.0, &only.0]).output();
            match mount {
                Ok(output) if output.status.success() => {}
                told => {
                    println!(
                        "not run: permissions do not hold this user back, and nothing can be mounted: {told:?}"
                    );
                    return None;
                }
            }
        }
        Some(only)
    }

    fn mode(&self, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        for path in [self.0.join("commits"), self.0.clone()] {
            drop(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)));
        }
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(&self.0).output());
        self.mode(0o755);
    }
}

#[test]
fn a_folder_that_can_only_be_read_is_listed_and_never_changed() {
    let place = Place::new();
    root(&place, &["100", "200"]);
    let before = names(&place.path("root/commits"));
    let Some(only) = ReadOnly::of(place.path("root")) else { return };
    assert_eq!(steps(&place), [200, 100]);
    place.done(&["log", "root"]);
    place.done(&["du", "root"]);
    let tried = place.json(&["forget", "root", "--keep-within", "1d", "--dry-run"]);
    assert!(tried["warnings"][0].as_str().unwrap().contains("last record"), "{tried}");
    place.run(&["forget", "root", "--keep-last", "1"]).refused(12, &["permission denied"]);
    place.run(&["tag", "root", "x"]).refused(12, &["permission denied"]);
    let found = place.json(&["doctor", "root"]);
    assert_eq!(found["result"]["report"]["findings"][0]["code"], "read-only");
    // What was found is shown though it can't be noted.
    let verified = place.run(&["verify", "root", "--record", "--json"]);
    let result = verified.json()["result"].clone();
    assert_eq!((verified.code, &result["sound"]), (12, &true.into()), "{verified:?}");
    assert_eq!(result["recorded"], false);
    drop(only);
    assert_eq!(names(&place.path("root/commits")), before);
    assert_eq!(steps(&place), [200, 100]);
}

#[test]
fn what_was_recorded_as_whole_is_kept_until_it_is_recorded_as_damaged() {
    let place = Place::new();
    root(&place, &["100", "200", "300"]);
    let checked = place.json(&["verify", "root@step:100", "--record"]);
    assert_eq!((&checked["result"]["sound"], &checked["result"]["recorded"]), (&true.into(), &true.into()));
    assert!(place.json(&["verify", "root"])["result"]["recorded"].is_null());
    let tried = place.done(&["forget", "root", "--keep-last", "1", "--format", "human"]).out;
    assert!(tried.contains("newest verified") && tried.contains("1 checkpoint forgotten"), "{tried}");
    assert_eq!(steps(&place), [300, 100]);
    let folder =
        names(&place.path("root")).into_iter().find(|name| name.starts_with("step-00000100")).unwrap();
    let data = place.path("root").join(&folder).join("data");
    let blob = data.join(&names(&data)[0]);
    let mut content = std::fs::read(&blob).unwrap();
    *content.last_mut().unwrap() ^= 1;
    std::fs::write(&blob, content).unwrap();
    let damaged = place.run(&["verify", &format!("root/{folder}"), "--record", "--json"]);
    assert_eq!((damaged.code, &damaged.json()["result"]["recorded"]), (20, &true.into()));
    place.done(&["forget", "root", "--keep-last", "1"]);
    assert_eq!(steps(&place), [300]);
    assert_eq!(place.run(&["verify", "root", "--record", "--structure-only"]).code, 2);
}
