//! `ckpt verify` and `ckpt seal`.

use std::os::unix::fs::FileExt;

use crate::place::{Place, fixture, names};

const DCP: &str = "torch_dcp/fsdp2_tp2";

#[test]
fn every_fixture_is_sound() {
    let place = Place::new();
    for name in fixtures::all() {
        let checked = place.json(&["verify", &fixture(&name)]);
        assert_eq!(checked["schema"], "ckpt.verify/1");
        assert_eq!(
            (&checked["result"]["sound"], &checked["result"]["errors"]),
            (&true.into(), &0.into()),
            "{name}"
        );
    }
}

/// Flips a bit of the file at the first byte of the first chunk that `ckpt` itself shows.
fn flip(place: &Place, folder: &str) -> (String, String) {
    let card = place.json(&["inspect", folder, "--shards"])["result"].clone();
    let shard = &card["shards"][0];
    let (file, offset) = (shard["file"].as_str().unwrap(), shard["offset"].as_u64().unwrap());
    let opened = std::fs::File::options().read(true).write(true).open(place.path(folder).join(file)).unwrap();
    let mut byte = [0];
    opened.read_exact_at(&mut byte, offset).unwrap();
    opened.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
    (shard["tensor"].as_str().unwrap().to_owned(), file.to_owned())
}

#[test]
fn a_flipped_bit_is_named_by_tensor_and_range_and_file() {
    let place = Place::new();
    place.copy(DCP, "flipped");
    let (tensor, file) = flip(&place, "flipped");
    let answer = place.run(&["verify", "flipped", "--format", "human"]);
    assert_eq!(answer.code, 20, "{answer:?}");
    let line = answer.out.lines().next().unwrap();
    assert!(line.starts_with("corrupt    "), "{line}");
    assert!(line.contains(&tensor) && line.contains("[0..") && line.contains(&file), "{line}");
    assert!(answer.out.contains("verdict    corrupt  1 error, 0 warnings"), "{}", answer.out);
    let plain = place.run(&["verify", "flipped"]);
    assert_eq!((plain.code, plain.out.lines().filter(|it| it.starts_with("corrupt\t")).count()), (20, 1));
}

#[test]
fn a_missing_file_comes_before_the_gaps_that_it_makes() {
    let place = Place::new();
    let folder = place.copy(DCP, "lost");
    std::fs::remove_file(folder.join("__2_0.distcp")).unwrap();
    let answer = place.run(&["verify", "lost"]);
    assert_eq!(answer.code, 20);
    let words: Vec<&str> = answer.out.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(words.first(), Some(&"missing"), "{words:?}");
    assert!(words.contains(&"gap"), "{words:?}");
    assert!(answer.out.contains("__2_0.distcp"), "{}", answer.out);
    place.run(&["convert", "lost", "out"]).refused(20, &["__2_0.distcp"]);
    assert_eq!(place.listed(), ["lost"]);
}

#[test]
fn a_reader_that_stops_reading_does_not_change_the_verdict() {
    let place = Place::new();
    place.copy(DCP, "flipped");
    flip(&place, "flipped");
    let mut child =
        place.command(&["verify", "flipped"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(20));
}

#[test]
fn structure_alone_reads_no_payload() {
    let place = Place::new();
    place.copy(DCP, "flipped");
    flip(&place, "flipped");
    let checked = place.json(&["verify", "flipped", "--structure-only"]);
    assert_eq!((&checked["result"]["bytes"], &checked["result"]["sound"]), (&0.into(), &true.into()));
}

#[test]
fn a_seal_leaves_the_folder_as_it_is_and_finds_what_changes_later() {
    let place = Place::new();
    let folder = place.copy(DCP, "run");
    let before: Vec<Vec<u8>> =
        names(&folder).iter().map(|it| std::fs::read(folder.join(it)).unwrap()).collect();
    let sealed = place.json(&["seal", "run"]);
    assert_eq!(
        (&sealed["schema"], &sealed["result"]["target"]),
        (&"ckpt.seal/1".into(), &"run.sealed@seq:1".into())
    );
    assert_eq!(sealed["result"]["report"]["before"], false);
    let after: Vec<Vec<u8>> =
        names(&folder).iter().map(|it| std::fs::read(folder.join(it)).unwrap()).collect();
    assert_eq!(before, after);
    assert_eq!(place.json(&["seal", "run"])["result"]["report"]["before"], true);
    let checked = place.json(&["verify", "run.sealed"])["result"].clone();
    assert_eq!((&checked["sound"], &checked["checksums"]["block_files"]), (&true.into(), &4.into()));
    place.done(&["diff", "run.sealed", "run"]);
    flip(&place, "run");
    let answer = place.run(&["verify", "run.sealed"]);
    assert_eq!(answer.code, 20, "{answer:#?}");
}

#[test]
fn a_seal_inside_the_sealed_folder_or_of_a_damaged_one_is_refused() {
    let place = Place::new();
    place.copy(DCP, "run");
    place.run(&["seal", "run", "--into", "run/manifest"]).refused(22, &["lies inside the checkpoint"]);
    flip(&place, "run");
    place.run(&["seal", "run", "--into", "s"]).refused(20, &["__0_0.distcp"]);
    let nothing = place.run(&["inspect", "s"]);
    assert_eq!(nothing.code, 10, "{nothing:?}");
}

#[test]
fn parts_together_find_what_is_damaged_and_no_part_calls_the_rest_verified() {
    let place = Place::new();
    place.copy(DCP, "whole");
    place.done(&["seal", "whole", "--into", "root"]);
    let (mut bytes, mut total) = (0, 0);
    for part in ["1/3", "2/3", "3/3"] {
        let answer = place.json(&["verify", "root", "--subset", part])["result"].clone();
        assert_eq!((&answer["sound"], &answer["coverage"]["complete"]), (&true.into(), &false.into()));
        bytes += answer["coverage"]["bytes"].as_u64().unwrap();
        total = answer["coverage"]["of_bytes"].as_u64().unwrap();
        assert_eq!(answer["coverage"]["bytes"], answer["bytes"]);
    }
    assert_eq!(bytes, total);
    let human = place.done(&["verify", "root", "--subset", "1/3", "--format", "human"]).out;
    assert!(human.contains("part       1 of 3: ") && human.contains("the rest was not read"), "{human}");
    assert!(human.contains("verdict    partial  0 errors") && !human.contains("  ok"), "{human}");
    let all = place.done(&["verify", "root", "--subset", "100%", "--format", "human"]).out;
    assert!(all.contains("verdict    ok"), "{all}");
    flip(&place, "whole");
    let codes: Vec<i32> = ["1/3", "2/3", "3/3"]
        .iter()
        .map(|part| place.run(&["verify", "root", "--subset", part]).code)
        .collect();
    let mut sorted = codes.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 0, 20], "{codes:?}");
    assert_eq!(place.run(&["verify", "root", "--subset", "0/3"]).code, 2);
    assert_eq!(place.run(&["verify", "root", "--subset", "1/3", "--structure-only"]).code, 2);
}
