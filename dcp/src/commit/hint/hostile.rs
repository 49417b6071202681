//! Hints that are not what their writer put: that claim too much, lead over what must be refused, or outlive their record.

use std::sync::Arc;

use super::super::append::tests::{append, log, memory, options};
use super::super::error::CommitError;
use super::super::fold::tests::{commit, label, seq};
use super::super::log::{Log, LogOptions};
use super::super::record::{Action, Tag};
use super::tests::{assert_opens_as_without, fill, found, open, put_hint};
use super::*;
use crate::store::sim::{Disk, SimFs};
use crate::store::{LocalStore, Nonce, SeededNonces};

/// A hint at record 3 of a log of three, whose record 3 is changed in its JSON before both are put.
fn hint_at_changed_record(change: impl Fn(&str) -> String) -> Root {
    let root = memory();
    fill(&root, 3, 1);
    let bytes = root.get(&seq(3).path()).unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    let body = change(text.rsplit_once(",\"check\"").unwrap().0);
    let record = format!("{body},\"check\":\"{}\"}}\n", Sha256Digest::of(body.as_bytes()));
    let hint = Hint { record: Sha256Digest::of(record.as_bytes()), ..found(&root) };
    root.delete(&seq(3).path()).unwrap();
    root.put_same(&seq(3).path(), record.into()).unwrap();
    put_hint(&root, &hint);
    root
}

#[test]
fn a_hint_leads_over_no_record_that_a_reader_must_refuse() {
    let newer = hint_at_changed_record(|body| body.replacen("\"format\":1", "\"format\":2", 1));
    assert!(matches!(open(&newer), Err(CommitError::Newer { format: 2, .. })));
    let features = hint_at_changed_record(|body| {
        body.replacen("\"must_understand\":[", "\"must_understand\":[\"x\"", 1)
    });
    assert!(matches!(open(&features), Err(CommitError::NotUnderstood { .. })));
    let misplaced = hint_at_changed_record(|body| body.replacen("\"seq\":3", "\"seq\":2", 1));
    assert!(matches!(open(&misplaced), Err(CommitError::Mixed { .. })));
    // The record is good, and the hint says that it is of another root.
    let root = memory();
    fill(&root, 3, 1);
    put_hint(&root, &Hint { root: RootId::new(Nonce::from_bits(9)), ..found(&root) });
    assert_opens_as_without(&root, "of another root");
    assert_ne!(open(&root).unwrap().root_id(), Some(RootId::new(Nonce::from_bits(9))));
}

#[test]
fn a_record_that_a_hint_repeats_is_the_one_of_the_newest_checkpoint_or_none() {
    let root = memory();
    fill(&root, 3, 1);
    append(&mut log(&root, 2), Action::Tag(Tag { name: label("best"), checkpoint: seq(1) })).unwrap();
    let other = memory();
    fill(&other, 3, 5);
    let (hint, foreign) = (found(&root), other.get(&seq(3).path()).unwrap());
    for record in [root.get(&seq(4).path()).unwrap(), foreign] {
        let newest = Some(std::str::from_utf8(&record).unwrap().to_owned());
        put_hint(&root, &Hint { newest, ..hint.clone() });
        let opened = open(&root).unwrap();
        assert_eq!(opened.record(seq(3)).unwrap(), root.get(&seq(3).path()).unwrap());
    }
}

#[test]
fn what_a_small_hint_claims_needs_little_memory() {
    let root = memory();
    fill(&root, 3, 1);
    let mut json =
        serde_json::to_vec(&serde_json::json!({"must_understand": [], "root": found(&root).root})).unwrap();
    json.resize(20 << 20, b' ');
    let frame = zstd::bulk::compress(&json, LEVEL).unwrap();
    assert!(frame.len() < 64 << 10);
    let mut bytes =
        [MAGIC.as_slice(), &VERSION.to_le_bytes(), &(json.len() as u64).to_le_bytes(), &frame].concat();
    let digest = Sha256Digest::of(&bytes);
    bytes.extend_from_slice(digest.as_bytes());
    put(&root, bytes);
    assert!(matches!(read(&root).unwrap(), Found::Unreadable(reason) if reason.contains("too large")));
    assert_opens_as_without(&root, "a bomb");
}

#[test]
fn a_crash_leaves_no_hint_without_the_record_that_it_names() {
    let root = |fs: SimFs| Root::from_local(LocalStore::over(fs, "sim", Arc::new(SeededNonces::new(5))));
    let rarely =
        |seed| LogOptions { hint_every: Some(std::time::Duration::from_secs(3600)), ..options(seed) };
    let (mut seen, mut states) = (0, 0);
    for changes in 1..20 {
        let fs = SimFs::new();
        let mut log = Log::open_with(&root(fs.clone()), rarely(1)).unwrap();
        append(&mut log, commit("s-1")).unwrap();
        append(&mut log, commit("s-2")).unwrap();
        // Another process is stopped: before its record has its name, between that and making it durable, or after.
        let mut other = Log::open_with(&root(fs.killed_after(changes)), rarely(2)).unwrap();
        drop(append(&mut other, commit("s-3")));
        log.refresh().unwrap();
        seen += u64::from(log.head() == Some(seq(3)));
        // This one has a record to tell of, and tells of the last that it has read.
        drop(log);
        let mut disk = Disk::new();
        for op in &fs.journal() {
            disk.apply(op);
            for choice in disk.choices(64, 8, changes) {
                let left = root(SimFs::mount(&disk.state(choice)));
                states += 1;
                if let Err(error) = Log::open_with(&left, rarely(3)) {
                    panic!("{error}, after {changes} changes and {choice}");
                }
            }
        }
    }
    assert!(seen > 2 && states > 500, "{seen} {states}");
}
