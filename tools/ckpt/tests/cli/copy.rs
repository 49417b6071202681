//! `ckpt copy`: checkpoints that need no other folder, several at once, plans that write nothing, refusals by name.

use crate::place::{Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";

/// A root `a` with two checkpoints of one model on two meshes.
fn two() -> Place {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    place.done(&["reshard", "a", "--to", "1x1x2"]);
    place
}

#[test]
fn a_copy_verifies_and_is_the_same_as_its_source() {
    let place = two();
    let plan = place.json(&["copy", "a", "b", "--dry-run"])["result"].clone();
    assert_eq!((&plan["dry_run"], plan["copies"][0].get("done")), (&true.into(), None));
    assert_eq!(place.listed(), ["a"], "a plan writes nothing");
    let human = place.done(&["copy", "a", "b", "--format", "human", "--tag", "kept"]).out;
    assert!(
        human.contains("from       a@seq:2") && human.contains("copied     b@seq:1 (run main)"),
        "{human}"
    );
    assert!(human.contains("proof      every block by its SHA-256; fingerprints of "), "{human}");
    place.done(&["verify", "b@tag:kept"]);
    place.done(&["diff", "a", "b", "--level", "hash"]);
    let again = place.json(&["copy", "a", "b"])["result"]["copies"][0].clone();
    assert_eq!((&again["done"]["before"], &again["done"]["bytes_copied"]), (&true.into(), &0.into()));
    std::fs::remove_dir_all(place.path("a")).unwrap();
    assert_eq!(place.json(&["verify", "b"])["result"]["sound"], true);
}

#[test]
fn several_are_copied_in_order_and_all_of_a_root() {
    let place = two();
    let sequences = |args: &[&str]| -> Vec<String> {
        place.done(&[args, &["--quiet"]].concat()).out.lines().map(str::to_owned).collect()
    };
    assert_eq!(sequences(&["copy", "a@seq:1", "a@seq:2", "b"]), ["b@seq:1", "b@seq:2"]);
    assert_eq!(sequences(&["copy", "a", "c", "--all", "--run", "archive"]), ["c@seq:1", "c@seq:2"]);
    let plain = place.done(&["copy", "a", "c", "--all", "--run", "archive"]).out;
    assert_eq!(plain.lines().filter(|line| line.starts_with("before\ta@seq:")).count(), 2, "{plain}");
    place.run(&["copy", "a", "d", "--all", "--tag", "x"]).refused(22, &["--tag names one checkpoint"]);
    place.run(&["copy", "a@seq:1", "d", "--all"]).refused(22, &["--all copies every checkpoint"]);
    place.run(&["copy", "a", "d", "--run", "a b"]).refused(22, &["--run a b"]);
    assert_eq!(place.listed(), ["a", "b", "c"]);
}

#[test]
fn all_of_a_root_is_copied_time_and_again_without_what_was_forgotten_there() {
    let place = two();
    place.done(&["copy", "a", "b", "--all"]);
    place.done(&["forget", "b", "--keep-last", "1"]);
    place.done(&["reshard", "a", "--to", "1x1x1"]);
    for dry in [true, false] {
        let args = ["copy", "a", "b", "--all", "--dry-run"];
        let copies = place.json(if dry { &args } else { &args[..4] })["result"]["copies"].clone();
        let why = copies[0]["skipped"].as_str().unwrap();
        assert!(why.contains("by record 1") && why.contains("forgotten"), "{why}");
        assert!(
            copies[0]["done"].is_null() && copies[1]["skipped"].is_null() && copies[2]["skipped"].is_null()
        );
    }
    let again = place.done(&["copy", "a", "b", "--all", "--format", "human"]).out;
    assert!(again.contains("left out it was copied before, by record 1"), "{again}");
    assert_eq!(place.done(&["ls", "b", "-q"]).out.lines().count(), 2);
    place.run(&["copy", "a@seq:1", "b"]).refused(11, &["of the source"]);
}

#[test]
fn what_is_damaged_foreign_or_in_the_way_is_refused() {
    let place = two();
    place.run(&["copy", &fixture(DCP), "b"]).refused(22, &["only a native store is copied"]);
    place.run(&["copy", "a#layers.*", "b"]).refused(22, &["copied whole"]);
    place.run(&["copy", "a@seq:9", "b"]).refused(10, &["seq:9"]);
    std::fs::create_dir(place.path("busy")).unwrap();
    std::fs::write(place.path("busy/notes.txt"), "mine").unwrap();
    place.run(&["copy", "a", "busy"]).refused(11, &["notes.txt"]);
    let card = place.json(&["inspect", "a", "--shards"])["result"].clone();
    let (shard, folder) = (&card["shards"][0], std::fs::read_dir(place.path("a")).unwrap());
    let file = folder
        .map(|step| step.unwrap().path().join(shard["file"].as_str().unwrap()))
        .find(|path| path.exists())
        .unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[usize::try_from(shard["offset"].as_u64().unwrap()).unwrap()] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let tensor = shard["tensor"].as_str().unwrap();
    place.run(&["copy", "a", "b"]).refused(20, &["has another SHA-256", tensor]);
    place.run(&["verify", "b"]).refused(10, &[]);
}
