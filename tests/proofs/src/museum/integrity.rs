//! Of reading: rot, cuts, missing pieces, and ranks that decide for themselves.

use std::path::{Path, PathBuf};

use dcp::engine::RunOptions;
use dcp::formats::native::{open, open_in};
use dcp::formats::{OpenOptions, Strictness};
use dcp::load::{Level, Loader, newest_good};
use dcp::ops::seal::{SealOptions, seal};
use dcp::ops::verify::{VerifyOptions, verify};
use dcp::store::{Root, Stores};
use dcp::{Cancel, ErrorKind, FindingCode, Silent};
use fqn::TensorId;
use reshard::Region;

use super::{Exhibit, must, refused};
use crate::faults::files;
use crate::training::{Load, Outcome, compare, location, run, save_step, scratch};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        source: "pytorch/torchtitan #4011",
        happened: "a checkpoint is valid if its files exist: bits that rot load in silence",
        switch: "one bit of a blob flips",
        caught_by: "SHA-256 of the block that is read (`load::BoxReader`)",
        show: bit_rot,
    },
    Exhibit {
        source: "pytorch/torchtitan #4011 (truncated shards)",
        happened: "a shard that was cut short loads",
        switch: "a blob of the newest checkpoint lacks its end",
        caught_by: "`newest_good` names the file and finds the checkpoint before it",
        show: truncated,
    },
    Exhibit {
        source: "huggingface/safetensors #220",
        happened: "the format has no checksum: users got corrupt files",
        switch: "one bit flips in a file that was sealed",
        caught_by: "`ckpt seal`, then `verify`: the tensor and its range are named",
        show: sealed_rot,
    },
    Exhibit {
        source: "LMResiliency/lm-resiliency #32",
        happened: "the checksum of one rank fails; it alone falls back to an older step",
        switch: "the manifest is damaged where one rank reads it",
        caught_by: "the group's decision is a record's bytes: `Loader::open_record` opens that or nothing",
        show: alone,
    },
    Exhibit {
        source: "meta-pytorch/tnt #559",
        happened: "a folder without metadata is accepted by restore",
        switch: "the manifest is missing",
        caught_by: "opening says that the root is incomplete, and which object is missing",
        show: no_metadata,
    },
    Exhibit {
        source: "pytorch/pytorch #126881",
        happened: "keys that are absent are passed over without a warning",
        switch: "the reader asks for a tensor that was never saved",
        caught_by: "`BoxReader::read` is an error that names it",
        show: absent_key,
    },
];

/// A root of two steps in a folder.
fn two_steps(folder: &Path) -> Outcome<Root> {
    let root = Root::create(location(folder)?, &Stores::new())?;
    save_step(&root, 1, "dp=2", 1)?;
    save_step(&root, 2, "dp=2", 1)?;
    Ok(root)
}

fn file(folder: &Path, parts: [&str; 2]) -> Outcome<PathBuf> {
    let found = files(folder)?.into_keys().find(|path| parts.iter().all(|part| path.contains(part)));
    Ok(folder.join(found.ok_or("no such file")?))
}

fn flip(path: &Path) -> Outcome<()> {
    let mut bytes = std::fs::read(path)?;
    let at = bytes.len() - 5;
    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 4);
    Ok(std::fs::write(path, bytes)?)
}

fn bit_rot(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = two_steps(folder.path())?;
    if on {
        flip(&file(folder.path(), ["step-00000002", "/data/r00001"])?)?;
    }
    match (on, compare(&Loader::newest(&root, &run()?)?, 2)) {
        (true, Load::Refused(said)) => Ok(said),
        (false, Load::Right) => Ok("loads as saved".to_owned()),
        (_, other) => Err(format!("{other:?}").into()),
    }
}

fn truncated(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = two_steps(folder.path())?;
    let blob = file(folder.path(), ["step-00000002", "/data/r00001"])?;
    if on {
        let bytes = std::fs::read(&blob)?;
        std::fs::write(&blob, bytes.get(..bytes.len() - 1).unwrap_or_default())?;
    }
    let good = newest_good(&root, &run()?, Level::Quick)?;
    let step = good.found.ok_or("nothing was found")?.step;
    must(step == if on { 1 } else { 2 }, || format!("step {step}"))?;
    let named = good.skipped.iter().flat_map(|it| &it.findings).map(|it| it.message.clone()).next();
    Ok(format!("step {step} is found; {}", named.unwrap_or_default()))
}

fn sealed_rot(on: bool) -> Outcome<String> {
    let (folder, target) = (scratch()?, scratch()?);
    let path = folder.path().join("model.safetensors");
    std::fs::copy(fixtures::path("safetensors/single.safetensors"), &path)?;
    let source = dcp::formats::open(&path, OpenOptions::new())?;
    let root = Root::create(location(target.path())?, &Stores::new())?;
    let options = SealOptions::new(location(folder.path())?, run()?);
    seal(&*source, &root, &options, &RunOptions::default(), &Silent, &Cancel::new())?;
    if on {
        flip(&path)?;
    }
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    let sealed = open_in(&Stores::new(), location(target.path())?, None, lenient)?;
    let report = verify(&sealed, &VerifyOptions::default(), &Silent, &Cancel::new())?;
    let found =
        report.findings.iter().find(|it| it.code == FindingCode::BlockMismatch && it.tensor.is_some());
    match (on, found) {
        (true, Some(it)) => Ok(format!("{:?}: {}", it.tensor.as_ref().map(ToString::to_string), it.message)),
        (false, None) if report.is_sound() => Ok("whole".to_owned()),
        _ => Err(format!("{:?}", report.findings).into()),
    }
}

fn alone(on: bool) -> Outcome<String> {
    let (here, there) = (scratch()?, scratch()?);
    let root = two_steps(here.path())?;
    for (path, bytes) in files(here.path())? {
        let file = there.path().join(path);
        std::fs::create_dir_all(file.parent().ok_or("a file without a folder")?)?;
        std::fs::write(file, bytes)?;
    }
    if on {
        flip(&file(there.path(), ["step-00000002", "/manifest-"])?)?;
    }
    let chosen = Loader::newest(&root, &run()?)?;
    let other = Root::open(location(there.path())?, &Stores::new())?;
    let opened = Loader::open_record(&other, chosen.record().clone());
    if on {
        return refused(opened, ErrorKind::Corrupt, &["manifest-"]);
    }
    Ok(format!("all load step {}", opened?.commit()?.step))
}

fn no_metadata(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    two_steps(folder.path())?;
    if on {
        std::fs::remove_file(file(folder.path(), ["step-00000002", "/manifest-"])?)?;
    }
    let opened = open(location(folder.path())?, None);
    if on {
        return refused(opened.map(|_| ()), ErrorKind::Corrupt, &["manifest-", "incomplete"]);
    }
    Ok(format!("{} tensors", dcp::Source::catalog(&opened?).tensors.len()))
}

fn absent_key(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = two_steps(folder.path())?;
    let loader = Loader::newest(&root, &run()?)?;
    let name = if on { "layers.7.norm" } else { "layers.0.norm" };
    let read = loader.reader().read_vec(&TensorId::param(name)?, &Region::new(&[0], &[64])?);
    if on {
        return refused(read, ErrorKind::NotFound, &["layers.7.norm", "is not in the checkpoint"]);
    }
    Ok(format!("{} bytes", read?.len()))
}
