//! A root with a checkpoint of many tensors, and with many commits before it.

use std::collections::BTreeSet;

use dcp::{
    commit::{Action, Commit, Log, ManifestRef, Metrics},
    digest::Sha256Digest,
    save::{SaveOptions, SavePlan, SaveSpec, Session},
    store::{Root, Stores},
};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use serde_json::json;

use crate::{Any, timed};

/// Creates a root.
pub(crate) fn root(folder: &str) -> Result<serde_json::Value, Any> {
    Root::create(folder, &Stores::new())?;
    Ok(json!({}))
}

/// Creates a root and saves a checkpoint of `count` tensors into it.
pub(crate) fn many(folder: &str, count: u32) -> Result<serde_json::Value, Any> {
    let root = Root::create(folder, &Stores::new())?;
    let (seconds, ()) = timed(|| save(&root, count, 1))?;
    Ok(json!({"seconds": seconds}))
}

fn save(root: &Root, count: u32, step: u64) -> Result<(), Any> {
    let mut registry = Registry::new();
    for layer in 0..count {
        let fqn = Fqn::new(format!("model.layers.{layer}.mlp.up_proj.weight"))?;
        let mut entry = Entry::new(fqn, Role::Param, Dtype::F32, Shape::new(&[8, 8]));
        entry.placement = Some("dp:0".parse()?);
        registry.push(entry)?;
    }
    let plan = SavePlan::new(SaveSpec::new("main".parse()?, registry, "dp=1".parse()?, step))?;
    let session = Session::open(root, &plan, SaveOptions::default())?;
    let writer = session.writer(0)?;
    for (tensor, region) in plan.boxes_of(0) {
        writer.put(tensor, region, &vec![1; usize::try_from(region.elements() * 4)?])?;
    }
    writer.finish()?;
    session.commit()?;
    Ok(())
}

/// Appends `count` commits to the log of a root. The last is a save; of the others only the records are there, as after
/// their data was copied elsewhere.
pub(crate) fn commits(folder: &str, count: u64) -> Result<serde_json::Value, Any> {
    let root = Root::open(folder, &Stores::new())?;
    let mut log = Log::open(&root)?;
    let run = "main".parse()?;
    let (seconds, live) = timed(|| {
        for step in 2..=count {
            let attempt: dcp::commit::DirName = format!("step-{step:08}-{step:024x}").parse()?;
            let manifest = ManifestRef { sha256: Sha256Digest::of(attempt.as_str().as_bytes()), size: 4096 };
            let directories = BTreeSet::from([attempt.clone()]);
            let tip = log.state().runs.get(&run).and_then(|line| line.tip);
            let draft = log.draft(
                &run,
                Action::Commit(Commit { step, attempt, manifest, directories, metrics: Metrics::new() }),
            )?;
            log.append(&draft.after(tip))?;
        }
        let live = log.state().checkpoints.len() + 1;
        // It tells of its last record as it goes, so that the hint which is there is that of the save, as of one that a trainer makes.
        drop(log);
        save(&root, 100, count + 1)?;
        Ok(live)
    })?;
    Ok(json!({"seconds": seconds, "commits": live}))
}
