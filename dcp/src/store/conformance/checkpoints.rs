//! What stores are for: the commit log under many writers, and a checkpoint from save to collection.

use std::collections::BTreeMap;
use std::thread;

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::Region;

use super::Outcome;
use crate::commit::{Action, Commit, CommitError, Condemn, Label, Log, ManifestRef, Retire, Seq};
use crate::digest::Sha256Digest;
use crate::load::Loader;
use crate::ops::verify::{VerifyOptions, verify};
use crate::save::{SaveOptions, SavePlan, SaveSpec, Session};
use crate::store::root::Root;
use crate::{Cancel, ErrorKind, Silent};

const WRITERS: u64 = 8;
const EACH: u64 = 8;

/// Eight writers append to one log at once: afterwards it holds each of their records once, and its chain is whole.
///
/// # Errors
/// What the store says.
pub fn records_are_neither_lost_nor_doubled(root: &Root) -> Outcome {
    joined((0..WRITERS).map(|writer| move || append(root, writer)))?;
    let log = Log::open(root)?;
    let audit = log.audit()?;
    assert!(audit.findings.is_empty() && audit.voids.is_empty(), "{audit:?}");
    assert_eq!(audit.records, WRITERS * EACH);
    let mut found = BTreeMap::new();
    for n in 1..=audit.records {
        let entry = log.read(Seq::new(n)?)?.ok_or("a record is missing")?;
        if let Action::Commit(commit) = entry.record.action {
            *found.entry(commit.attempt.to_string()).or_insert(0) += 1;
        }
    }
    let expected = (0..WRITERS).flat_map(|writer| (0..EACH).map(move |n| (attempt(writer, n), 1)));
    assert_eq!(found, expected.collect());
    Ok(())
}

fn attempt(writer: u64, n: u64) -> String {
    format!("step-{n}-by-{writer}")
}

fn append(root: &Root, writer: u64) -> Outcome {
    let mut log = Log::open(root)?;
    for n in 0..EACH {
        let dir = attempt(writer, n).parse::<crate::commit::DirName>()?;
        let manifest = ManifestRef { sha256: Sha256Digest::of(b"none"), size: 4 };
        let directories = [dir.clone()].into();
        let commit = Commit { step: n, manifest, directories, attempt: dir, metrics: BTreeMap::new() };
        // A run of its own: within one, a commit goes on from the tip, and these know nothing of each other.
        let draft = log.draft(&format!("run-{writer}").parse::<Label>()?, Action::Commit(commit))?;
        while let Err(error) = log.append(&draft) {
            if !matches!(error, CommitError::Unknown { .. }) {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Four writers save a small model at once; it is verified and loaded; retired and condemned, its folder is deleted, and nothing of it is
/// left to load.
///
/// # Errors
/// What the store says.
pub fn what_is_saved_is_loaded_and_goes(root: &Root) -> Outcome {
    let run: Label = "main".parse()?;
    let (registry, values) = model()?;
    let plan = SavePlan::new(SaveSpec::new(run.clone(), registry.clone(), "dp=2,tp=2".parse()?, 7))?;
    joined((0..plan.ranks()).map(|rank| {
        let (plan, values) = (&plan, &values);
        move || save(root, plan, rank, values)
    }))?;
    let committed = Session::open(root, &plan, SaveOptions::default())?.commit()?;
    let loader = Loader::newest(root, &run)?;
    let report = verify(loader.source(), &VerifyOptions::default(), &Silent, &Cancel::new())?;
    assert!(report.is_sound() && report.checksums.unproven_bytes == 0, "{:?}", report.findings);
    for (entry, value) in registry.entries().iter().zip(&values) {
        let whole = Region::whole(&entry.shape)?;
        assert!(loader.reader().read_vec(&entry.id(), &whole)? == *value, "{} has other bytes", entry.fqn);
    }
    collect(root, &run, Seq::new(committed.sequence.ok_or("committed without a number")?)?)?;
    let gone = Loader::newest(root, &run).map(drop);
    assert!(gone.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound), "{gone:?}");
    Ok(())
}

/// Retires a checkpoint, condemns its folder, deletes that.
fn collect(root: &Root, run: &Label, checkpoint: Seq) -> Outcome {
    let mut log = Log::open(root)?;
    let entry = log.read(checkpoint)?.ok_or("the record is missing")?;
    let Action::Commit(commit) = entry.record.action else { return Err("the record commits nothing".into()) };
    for action in [
        Action::Retire(Retire { checkpoint }),
        Action::Condemn(Condemn { directories: commit.directories.clone() }),
    ] {
        let draft = log.draft(run, action)?;
        log.append(&draft)?;
    }
    let folder = crate::store::object_path(commit.attempt.as_str())?;
    assert!(root.delete_all(&folder)? > 0);
    assert!(root.list(Some(&folder))?.is_empty());
    Ok(())
}

fn save(root: &Root, plan: &SavePlan, rank: u32, values: &[Vec<u8>]) -> Outcome {
    let session = Session::open(root, plan, SaveOptions::default())?;
    let writer = session.writer(rank)?;
    for (tensor, region) in plan.boxes_of(rank) {
        let (entry, value) =
            plan.tensor(tensor).zip(values.get(tensor)).ok_or("the plan names a tensor that is not there")?;
        let mut bytes = Vec::new();
        for run in reshard::flat::runs(region, &entry.shape)? {
            let (start, len) = (usize::try_from(run.start * 4)?, usize::try_from(run.len * 4)?);
            bytes.extend_from_slice(value.get(start..start + len).ok_or("a box beyond its tensor")?);
        }
        writer.put(tensor, region, &bytes)?;
    }
    writer.finish()?;
    Ok(())
}

/// A few tensors of f32, one larger than a part of an upload.
fn model() -> Outcome<(Registry, Vec<Vec<u8>>)> {
    let (mut registry, mut values) = (Registry::new(), Vec::new());
    for (name, shape, rule) in [
        ("embed.weight", &[2_100_u64, 4_096][..], "tp:0,dp:0"),
        ("layers.0.attn.weight", &[33, 70], "tp:1,dp:0"),
        ("norm.weight", &[65], "replicate"),
    ] {
        let mut entry = Entry::new(Fqn::new(name)?, Role::Param, Dtype::F32, Shape::new(shape));
        entry.placement = Some(rule.parse()?);
        let count = shape.iter().product::<u64>();
        values.push(
            (0..count)
                .flat_map(|n| (n.wrapping_mul(2_654_435_761) ^ count).to_le_bytes()[..4].to_vec())
                .collect(),
        );
        registry.push(entry)?;
    }
    Ok((registry, values))
}

/// Runs each in a thread of its own, and waits for all.
fn joined<F: FnOnce() -> Outcome + Send>(work: impl Iterator<Item = F>) -> Outcome {
    thread::scope(|scope| {
        let threads: Vec<_> = work.map(|work| scope.spawn(work)).collect();
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.into_iter().try_for_each(|done| done.map_err(|_| "a thread panicked")?)
    })
}
