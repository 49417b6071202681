//! Of saves: ranks that are missing, plans that are stale, bytes that are another's, chunks at wrong places.

use dcp::commit::{Action, Commit, Log, ManifestRef, Metrics, Seq};
use dcp::formats::native::open;
use dcp::load::Loader;
use dcp::manifest::Manifest;
use dcp::ops::prepare::{Request, prepare};
use dcp::ops::verify::{VerifyOptions, verify};
use dcp::save::{Replicas, SaveOptions, SavePlan, SaveSpec, Session};
use dcp::store::{Root, Stores, object_path};
use dcp::{Cancel, ErrorKind, FindingCode, Format, ReshardRule, Silent, Source};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape, TensorId};
use reshard::Region;

use super::rigged::{Rigged, Trouble};
use super::{Exhibit, memory, must, product, refused};
use crate::faults::files;
use crate::training::{
    Load, Outcome, compare, load, location, log_options, objects, region, registry, run, save, save_options,
    save_step, scratch, spec, whole, write_rank,
};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        source: "intelligent-machine-learning/dlrover #1146",
        happened: "26 of 32 shards are there, and the commit goes ahead",
        switch: "one of four ranks has not written",
        caught_by: "the committer reads the parts, and names the ranks that have none",
        show: missing_rank,
    },
    Exhibit {
        source: "intelligent-machine-learning/dlrover #1585",
        happened: "step 101 is written into the buffer that step 100 is still saved from",
        switch: "one rank writes the bytes of the next step",
        caught_by: "`Replicas`: what ranks hold twice is compared by fingerprint before the commit",
        show: overwritten_buffer,
    },
    Exhibit {
        source: "pytorch/pytorch #120356, pytorch/pytorch #146566",
        happened: "different tensors under one name on different ranks are taken for replicas, and all but one are lost",
        switch: "one tensor that is said to be replicated differs on one rank",
        caught_by: "`Replicas`: fingerprints before anything is left out",
        show: unequal_replicas,
    },
    Exhibit {
        source: "intelligent-machine-learning/dlrover #972",
        happened: "shards of two steps make one checkpoint",
        switch: "a rank's part is that of another step",
        caught_by: "a part names its plan, and is refused under another",
        show: part_of_another_step,
    },
    Exhibit {
        source: "NVIDIA-NeMo/Automodel #3369",
        happened: "a second checkpointer in the process gets the plan that the first one has cached",
        switch: "one rank plans from a registry with one tensor more",
        caught_by: "a plan's digest covers everything that it depends on: the rank is missing in this one's folder",
        show: another_plan,
    },
    Exhibit {
        source: "NVIDIA/Megatron-LM #4378",
        happened: "the structure is taken for constant and is not: the checkpoint looks fine and can't be loaded",
        switch: "a tensor has grown since the plan was made",
        caught_by: "`Writer::put` compares bytes with the plan's box",
        show: grown_tensor,
    },
    Exhibit {
        source: "nvidia-resiliency-ext PR #359",
        happened: "tensors that are gone leave entries that point to nothing",
        switch: "a tensor of the plan is not written",
        caught_by: "`Writer::finish` names the boxes that are missing",
        show: removed_tensor,
    },
    Exhibit {
        source: "dolthub/doltlite #930",
        happened: "good bytes are dropped because a corrupt chunk of the same hash is there already",
        switch: "a blob that an earlier try finished has rotted when the save is repeated",
        caught_by: "what an earlier writer finished is read and proven before it is kept (`Parts::prove`)",
        show: rotten_original,
    },
    Exhibit {
        source: "earth-mover/icechunk #2328",
        happened: "a chunk without bytes is accepted at the write and fails at the read",
        switch: "the tensors have an extent of 0",
        caught_by: "empty boxes are planned, saved and loaded like others",
        show: empty_chunk,
    },
    Exhibit {
        source: "pytorch/pytorch PR #150862",
        happened: "an empty shard takes the place of the real data",
        switch: "there are more ranks than rows, so that some shards are empty",
        caught_by: "the cover is checked at the commit; the load gives what was saved",
        show: more_ranks_than_rows,
    },
    Exhibit {
        source: "pytorch/pytorch #161368",
        happened: "offsets of uneven shards in two dimensions are wrong",
        switch: "a chunk of the manifest lies one row too far",
        caught_by: "`verify` tells the gap and the overlap with FQN and range; a load is refused",
        show: wrong_offset,
    },
    Exhibit {
        source: "google/orbax #605, keras-team/keras #23609",
        happened: "a save in the background fails; the next one crashes on it, or close() says nothing",
        switch: "the store fails while data is written",
        caught_by: "the writer says so; the next save begins its own folder and succeeds",
        show: failed_save,
    },
    Exhibit {
        source: "earth-mover/icechunk #2284",
        happened: "a manifest is written that can't be read back",
        switch: "a tensor has more dimensions than a reader takes",
        caught_by: "the writer's limits are the reader's: refused before anything is committed",
        show: unreadable_manifest,
    },
    Exhibit {
        source: "NVIDIA-NeMo/RL #1053, pytorch/torchtitan #811",
        happened: "state that belongs to single ranks breaks a conversion, or is missing on a new mesh",
        switch: "an object is one opaque value per rank",
        caught_by: "`prepare` refuses it by name, unless it is told to leave it out",
        show: per_rank_state,
    },
    Exhibit {
        source: "pytorch/pytorch #162948, NVIDIA/Megatron-LM #2345",
        happened: "an attribute of the metadata that a later version does not know is dropped",
        switch: "the manifest has a key that this version does not know",
        caught_by: "unknown keys are kept (`Manifest::later`)",
        show: unknown_key,
    },
];

fn session(root: &Root, spec: SaveSpec, seed: u64) -> Outcome<Session> {
    Ok(Session::open(root, &SavePlan::new(spec)?, save_options(seed))?)
}

fn missing_rank(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = session(&root, spec(1, "dp=4", 1)?, 1)?;
    (0..if on { 3 } else { 4 }).try_for_each(|rank| write_rank(&session, rank, 1))?;
    if on {
        return refused(session.commit(), ErrorKind::Conflict, &["rank 3"]);
    }
    Ok(format!("committed as {:?}", session.commit()?.sequence))
}

fn overwritten_buffer(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = session(&root, spec(100, "dp=2", 1)?.comparing(Replicas::ALL), 1)?;
    write_rank(&session, 0, 100)?;
    write_rank(&session, 1, if on { 101 } else { 100 })?;
    if on {
        return refused(session.commit(), ErrorKind::Corrupt, &["drifted apart", "rank"]);
    }
    Ok(format!("committed as {:?}", session.commit()?.sequence))
}

fn unequal_replicas(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = session(&root, spec(1, "dp=2", 1)?.comparing(Replicas::ALL), 1)?;
    for rank in 0..2 {
        let writer = session.writer(rank)?;
        let bytes = |entry: &Entry, cut: &Region| {
            let differs = on && rank == 1 && entry.fqn.as_str() == "positions";
            region(entry, &whole(entry, if differs { 7 } else { 1 }), cut)
        };
        for (tensor, cut) in session.plan().boxes_of(rank) {
            let entry = session.plan().tensor(tensor).ok_or("no such tensor")?;
            writer.put(tensor, cut, &bytes(entry, cut)?)?;
        }
        for (tensor, cut) in session.plan().replicas_of(rank) {
            let entry = session.plan().tensor(tensor).ok_or("no such tensor")?;
            writer.hold(tensor, &cut, &bytes(entry, &cut)?)?;
        }
        writer.finish()?;
    }
    if on {
        return refused(session.commit(), ErrorKind::Corrupt, &["drifted apart", "positions[0..9]"]);
    }
    Ok(format!("committed as {:?}", session.commit()?.sequence))
}

fn part_of_another_step(on: bool) -> Outcome<String> {
    let root = memory()?;
    let (_, older) = save_step(&root, 1, "dp=2", 1)?;
    let session = session(&root, spec(2, "dp=2", 1)?.with_objects(objects(2)), 2)?;
    write_rank(&session, 0, 2)?;
    if !on {
        write_rank(&session, 1, 2)?;
        return Ok(format!("committed as {:?}", session.commit()?.sequence));
    }
    let part = "parts/r00001-0000.json";
    let bytes = root.get(&object_path(&format!("{older}/{part}"))?)?;
    root.put_same(&object_path(&format!("{}/{part}", session.attempt()))?, bytes)?;
    refused(session.commit(), ErrorKind::Corrupt, &[part, "another plan"])
}

fn tensor(name: &str, role: Role, dtype: Dtype, shape: &[u64], rule: &str) -> Outcome<Entry> {
    let mut entry = Entry::new(Fqn::new(name)?, role, dtype, Shape::new(shape));
    entry.placement = Some(rule.parse()?);
    Ok(entry)
}

fn another_plan(on: bool) -> Outcome<String> {
    let root = memory()?;
    let ours = session(&root, spec(1, "dp=2", 1)?, 1)?;
    let mut more = registry(1)?;
    if on {
        more.push(tensor("layers.1.w", Role::Param, Dtype::F32, &[4, 4], "dp:0")?)?;
    }
    let theirs = session(&root, SaveSpec::new(run()?, more, "dp=2".parse()?, 1), 2)?;
    write_rank(&ours, 0, 1)?;
    write_rank(&theirs, 1, 1)?;
    must((ours.plan().digest() != theirs.plan().digest()) == on, || "the digests do not tell".to_owned())?;
    if on {
        return refused(ours.commit(), ErrorKind::Conflict, &["rank 1"]);
    }
    Ok(format!("committed as {:?}", ours.commit()?.sequence))
}

fn grown_tensor(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = session(&root, spec(1, "dp=2", 1)?, 1)?;
    let writer = session.writer(0)?;
    let (at, cut) = session.plan().boxes_of(0).next().ok_or("nothing to write")?;
    let entry = session.plan().tensor(at).ok_or("no such tensor")?;
    let mut bytes = region(entry, &whole(entry, 1), cut)?;
    if on {
        bytes.extend([1; 96]);
        return refused(
            writer.put(at, cut, &bytes),
            ErrorKind::Incompatible,
            &["embed.weight", "bytes were given"],
        );
    }
    writer.put(at, cut, &bytes)?;
    Ok("a box of the right size is taken".to_owned())
}

fn removed_tensor(on: bool) -> Outcome<String> {
    let root = memory()?;
    let session = session(&root, spec(1, "dp=1", 1)?, 1)?;
    let writer = session.writer(0)?;
    for (at, cut) in session.plan().boxes_of(0) {
        let entry = session.plan().tensor(at).ok_or("no such tensor")?;
        if !(on && entry.fqn.as_str() == "layers.0.norm") {
            writer.put(at, cut, &region(entry, &whole(entry, 1), cut)?)?;
        }
    }
    if on {
        return refused(writer.finish(), ErrorKind::Incompatible, &["layers.0.norm", "was not written"]);
    }
    Ok(format!("{} files", writer.finish()?.files))
}

fn rotten_original(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = Root::create(location(folder.path())?, &Stores::new())?;
    let first = session(&root, spec(1, "dp=2", 1)?, 1)?;
    write_rank(&first, 0, 1)?;
    if on {
        let (path, mut bytes) =
            files(folder.path())?.into_iter().find(|it| it.0.contains("/data/")).ok_or("no blob")?;
        let at = bytes.len() - 9;
        bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 16);
        std::fs::write(folder.path().join(path), bytes)?;
    }
    let again = session(&root, spec(1, "dp=2", 1)?, 2)?;
    write_rank(&again, 1, 1)?;
    let kept = product(write_rank(&again, 0, 1));
    if on {
        return refused(
            kept,
            ErrorKind::Corrupt,
            &["finished by an earlier writer and damaged since", "/data/r00000"],
        );
    }
    kept?;
    Ok(format!("kept, and committed as {:?}", again.commit()?.sequence))
}

/// Saves tensors of this module's own, and loads them whole.
fn round_trip(tensors: &[Entry], mesh: &str) -> Outcome<String> {
    let root = memory()?;
    let mut registry = Registry::new();
    tensors.iter().try_for_each(|entry| registry.push(entry.clone()).map(drop))?;
    let plan = SavePlan::new(SaveSpec::new(run()?, registry, mesh.parse()?, 1))?;
    let (seq, _) = save(&root, &plan, 1)?;
    let loaded = load(&root, seq, 1);
    must(loaded == Load::Right, || format!("{loaded:?}"))?;
    let report =
        verify(Loader::newest(&root, &run()?)?.source(), &VerifyOptions::default(), &Silent, &Cancel::new())?;
    must(report.is_sound(), || format!("{:?}", report.findings))?;
    Ok(format!(
        "{} boxes on {mesh}, loaded as saved",
        (0..plan.ranks()).map(|rank| plan.boxes_of(rank).count()).sum::<usize>()
    ))
}

fn empty_chunk(on: bool) -> Outcome<String> {
    let rows = if on { 0 } else { 4 };
    let entries = [
        tensor("hollow", Role::Param, Dtype::F32, &[rows, 4], "dp:0")?,
        tensor("hollow.deep", Role::Param, Dtype::BF16, &[4, rows, 2], "tp:0")?,
    ];
    round_trip(&entries, "dp=2,tp=2")
}

fn more_ranks_than_rows(on: bool) -> Outcome<String> {
    let entries = [
        tensor("short", Role::Param, Dtype::F32, &[2, 6], "dp:0")?,
        tensor("narrow", Role::Param, Dtype::F32, &[5, 3], "dp:0,tp:1")?,
    ];
    round_trip(&entries, if on { "dp=8,tp=2" } else { "dp=1,tp=1" })
}

fn wrong_offset(on: bool) -> Outcome<String> {
    let (folder, moved) = (scratch()?, scratch()?);
    let root = Root::create(location(folder.path())?, &Stores::new())?;
    let (_, dir) = save_step(&root, 1, "dp=3,tp=2", 1)?;
    let target = Root::create(location(moved.path())?, &Stores::new())?;
    let mut manifest = None;
    for (path, bytes) in files(folder.path())? {
        if path.contains("/manifest-") {
            manifest = Some(Manifest::decode_unnamed(&bytes)?);
        } else if !path.starts_with("commits/") {
            target.put_same(&object_path(&path)?, bytes.into())?;
        }
    }
    let mut manifest = manifest.ok_or("no manifest")?;
    let at = manifest.catalog.registry.position(&TensorId::param("layers.0.w")?).ok_or("no such tensor")?;
    let list = manifest.catalog.tensors.get_mut(at).ok_or("no chunks")?;
    let mut chunks: Vec<dcp::Chunk> = list.chunks.iter().collect();
    if let Some(chunk) = chunks.first_mut().filter(|_| on) {
        let mut offsets = chunk.region.offsets().to_vec();
        offsets.iter_mut().take(1).for_each(|row| *row += 1);
        chunk.region = Region::new(&offsets, chunk.region.extents())?;
    }
    list.chunks = chunks.into();
    let encoded = manifest.encode()?;
    let reference = ManifestRef { sha256: encoded.digest, size: encoded.bytes.len() as u64 };
    target.put_same(&reference.path(&dir), encoded.bytes)?;
    let mut log = Log::open_with(&target, log_options(9))?;
    let commit = Commit {
        step: 1,
        attempt: dir.clone(),
        manifest: reference,
        directories: [dir].into(),
        metrics: Metrics::new(),
    };
    log.append(&log.draft(&run()?, Action::Commit(commit))?)?;
    let loader = Loader::newest(&target, &run()?)?;
    let report = verify(loader.source(), &VerifyOptions::default(), &Silent, &Cancel::new())?;
    let told = |code| {
        let mut findings = report.findings.iter().filter(|it| it.code == code && it.range.is_some());
        findings.find(|it| it.tensor.as_ref().is_some_and(|id| id.fqn.as_str() == "layers.0.w"))
    };
    if !on {
        must(report.is_sound() && compare(&loader, 1) == Load::Right, || format!("{:?}", report.findings))?;
        return Ok("whole".to_owned());
    }
    let (gap, overlap) = (told(FindingCode::Gap), told(FindingCode::Overlap));
    let (Some(gap), Some(_)) = (gap, overlap) else { return Err(format!("{:?}", report.findings).into()) };
    match compare(&loader, 1) {
        Load::Refused(_) => {
            Ok(format!("layers.0.w {}: {}", gap.range.as_deref().unwrap_or_default(), gap.message))
        }
        other => Err(format!("it loads as {other:?}").into()),
    }
}

fn failed_save(on: bool) -> Outcome<String> {
    let store = Rigged::new(Trouble::Refused, "/data/", u64::from(on));
    let root = Rigged::root(&store);
    let first = session(&root, spec(1, "dp=2", 1)?, 1)?;
    let outcome = product(write_rank(&first, 0, 1));
    store.heal();
    let (seq, _) = save(&root, &SavePlan::new(spec(2, "dp=2", 1)?)?, 2)?;
    let loaded = load(&root, seq, 2);
    must(loaded == Load::Right, || format!("the next save loads as {loaded:?}"))?;
    if on {
        return refused(outcome, ErrorKind::Io, &["data"]);
    }
    outcome?;
    Ok("written".to_owned())
}

fn unreadable_manifest(on: bool) -> Outcome<String> {
    let root = memory()?;
    let mut registry = Registry::new();
    registry.push(tensor(
        "deep",
        Role::Param,
        Dtype::F32,
        &vec![1; if on { 65 } else { 64 }],
        "replicate",
    )?)?;
    let plan = SavePlan::new(SaveSpec::new(run()?, registry, "dp=1".parse()?, 1))?;
    let session = Session::open(&root, &plan, SaveOptions::default())?;
    write_rank(&session, 0, 1)?;
    let outcome = session.commit();
    must(Log::open(&root)?.head().is_none() == on, || "a record was written".to_owned())?;
    if on {
        return refused(outcome, ErrorKind::Incompatible, &["deep", "dimensions"]);
    }
    Ok(format!("committed as {:?}, and loads as {:?}", outcome?.sequence, load(&root, Seq::FIRST, 1)))
}

fn per_rank_state(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = Root::create(location(folder.path())?, &Stores::new())?;
    let mut state = objects(1);
    let rule = if on { ReshardRule::PerRank } else { ReshardRule::Global };
    state.iter_mut().take(1).for_each(|object| object.reshard = rule);
    save(&root, &SavePlan::new(spec(1, "dp=2", 1)?.with_objects(state))?, 1)?;
    let source = open(location(folder.path())?, None)?;
    let request = Request { to: Some("dp=4".parse()?), ..Request::new(Format::Native) };
    let prepared = prepare(source.catalog(), &request).map(|it| it.copy.spec.objects.len());
    if on {
        return refused(prepared, ErrorKind::Incompatible, &["cursor"]);
    }
    Ok(format!("{} objects go along", prepared?))
}

fn unknown_key(on: bool) -> Outcome<String> {
    let folder = scratch()?;
    let root = Root::create(location(folder.path())?, &Stores::new())?;
    save_step(&root, 1, "dp=2", 1)?;
    let bytes =
        files(folder.path())?.into_iter().find(|it| it.0.contains("/manifest-")).ok_or("no manifest")?.1;
    let mut manifest = Manifest::decode_unnamed(&bytes)?;
    if on {
        manifest.later.insert("x-curriculum".to_owned(), serde_json::json!({ "stage": 3 }));
    }
    let again = Manifest::decode_unnamed(&manifest.encode()?.bytes)?.encode()?;
    let kept = Manifest::decode_unnamed(&again.bytes)?.later;
    must(kept == manifest.later && kept.is_empty() != on, || format!("{kept:?}"))?;
    Ok(format!("after two rounds there are the unknown keys {:?}", kept.keys().collect::<Vec<_>>()))
}
