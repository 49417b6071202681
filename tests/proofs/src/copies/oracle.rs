//! What must be said of a state: worked out from the objects that are there, by the rules of FORMAT.md, with nothing of the code under
//! test but SHA-256.

use std::collections::{BTreeMap, BTreeSet};

use dcp::digest::Sha256Digest;
use dcp::ops::standing::Standing;
use serde_json::Value;

use super::scene::{Bundle, Scene, State};

/// What the log of a root says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Log {
    /// There is none.
    Nothing,
    /// The first thing that is wrong with it.
    Wrong(Standing),
    /// The checkpoints that live: number of the record, folder, path of the manifest.
    Whole(BTreeMap<u64, (String, String)>),
}

const ENDING: usize = 77;

/// Reads the log.
pub(super) fn log(state: &State) -> Log {
    let numbers: BTreeSet<u64> = state.keys().filter_map(|path| number(path)).collect();
    let Some(last) = numbers.last().copied() else { return Log::Nothing };
    let mut live: BTreeMap<u64, (String, String)> = BTreeMap::new();
    let mut before: Option<(&[u8], Value)> = None;
    for number in 1..=last {
        let Some(bytes) = state.get(&format!("commits/{number:020}.json")) else {
            return Log::Wrong(Standing::Incomplete);
        };
        let record = match record(bytes) {
            Ok(record) => record,
            Err(wrong) => return Log::Wrong(wrong),
        };
        let fits = match &before {
            None => record.get("prev").is_none_or(Value::is_null),
            Some((bytes, earlier)) => {
                let digest = Sha256Digest::of(bytes).to_string();
                record.get("root") == earlier.get("root")
                    && record.get("prev").and_then(Value::as_str) == Some(digest.as_str())
            }
        };
        if !fits || record.get("seq").and_then(Value::as_u64) != Some(number) {
            return Log::Wrong(Standing::Mixed);
        }
        fold(number, &record, &mut live);
        before = Some((bytes, record));
    }
    Log::Whole(live)
}

fn number(path: &str) -> Option<u64> {
    let digits = path.strip_prefix("commits/")?.strip_suffix(".json")?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// A record whose bytes fit their check.
fn record(bytes: &[u8]) -> Result<Value, Standing> {
    let at = bytes.len().checked_sub(ENDING).ok_or(Standing::Incomplete)?;
    let (body, ending) = bytes.split_at(at);
    if !ending.starts_with(b",\"check\":\"") || !ending.ends_with(b"\"}\n") {
        return Err(Standing::Incomplete);
    }
    let check = Sha256Digest::of(body).to_string();
    if ending.get(10..74) != Some(check.as_bytes()) {
        return Err(Standing::Damaged);
    }
    let json = [body, b"}"].concat();
    serde_json::from_slice(&json).map_err(|_| Standing::Damaged)
}

/// The head hint, if there is one that can be read: the record that it names, and its root.
fn hint(state: &State) -> Option<(u64, Value)> {
    const HEAD: usize = 20;
    let bytes = state.get("commits/head")?;
    let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    if Sha256Digest::of(body).as_bytes().as_slice() != digest || !body.starts_with(b"CKPTHEAD\x01\0\0\0") {
        return None;
    }
    let json = zstd::bulk::decompress(body.get(HEAD..)?, 16 << 20).ok()?;
    let hint: Value = serde_json::from_slice(&json).ok()?;
    Some((hint.get("seq")?.as_u64()?, hint.get("root")?.clone()))
}

/// Whether records are missing that a head hint tells of.
pub(super) fn is_cut(state: &State) -> bool {
    let Some((named, root)) = hint(state) else { return false };
    let last = state.keys().filter_map(|path| number(path)).max();
    let first = state.get("commits/00000000000000000001.json").map(|bytes| record(bytes));
    let same = match first {
        None => true,
        Some(first) => first.is_ok_and(|first| first.get("root") == Some(&root)),
    };
    same && last.is_none_or(|last| last < named)
}

fn fold(number: u64, record: &Value, live: &mut BTreeMap<u64, (String, String)>) {
    let text = |pointer: &str| record.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    if let (Some(dir), Some(sha)) = (text("/action/commit/attempt"), text("/action/commit/manifest/sha256")) {
        let manifest = format!("{dir}/manifest-{sha}.sqlite");
        live.insert(number, (dir, manifest));
    }
    if let Some(gone) = record.pointer("/action/retire/checkpoint").and_then(Value::as_u64) {
        live.remove(&gone);
    }
}

/// What an object is to what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Whole,
    /// Missing, or cut short.
    Lacking,
    /// As long, other bytes.
    Other,
}

fn object(state: &State, bundle: &Bundle, path: &str) -> Object {
    let (Some(found), Some(wanted)) = (state.get(path), bundle.objects.get(path)) else {
        return Object::Lacking;
    };
    if found == wanted {
        Object::Whole
    } else if found.len() < wanted.len() {
        Object::Lacking
    } else {
        Object::Other
    }
}

/// A checkpoint; `whole` is what it is if nothing is wrong.
pub(super) fn checkpoint(state: &State, bundle: &Bundle, whole: Standing) -> Standing {
    match object(state, bundle, &bundle.manifest) {
        Object::Whole => {}
        Object::Lacking => return Standing::Incomplete,
        Object::Other => return Standing::Damaged,
    }
    let each = bundle.blobs.iter().flat_map(|blob| {
        let (data, table) = (object(state, bundle, &blob.path), object(state, bundle, &blob.table));
        // Without its table nobody can tell other bytes from right ones; that the table lacks is told anyway.
        let data = if data == Object::Other && table != Object::Whole { Object::Whole } else { data };
        [data, table]
    });
    let standing = |object| match object {
        Object::Whole => whole,
        Object::Lacking => Standing::Incomplete,
        Object::Other => Standing::Damaged,
    };
    each.map(standing).fold(whole, Standing::max)
}

/// A root; nothing where nothing is there.
pub(super) fn root(state: &State, scene: &Scene) -> Option<Standing> {
    match log(state) {
        Log::Nothing => state.keys().any(|path| path.starts_with("step-")).then_some(Standing::Incomplete),
        Log::Wrong(standing) => Some(standing),
        Log::Whole(live) => Some(live.last_key_value().map_or(Standing::Incomplete, |(_, (_, manifest))| {
            bundle(scene, manifest)
                .map_or(Standing::Incomplete, |it| checkpoint(state, it, Standing::Committed))
        })),
    }
}

/// A step's folder; `dir` is empty where the place is that folder.
pub(super) fn step(state: &State, scene: &Scene, dir: &str) -> Option<Standing> {
    let below = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    let inside: Vec<&str> = state.keys().filter_map(|path| path.strip_prefix(&below)).collect();
    let manifests: Vec<&str> = inside.iter().copied().filter(|name| is_manifest(name)).collect();
    if !manifests.is_empty() && state.contains_key("commits/00000000000000000001.json") {
        match log(state) {
            Log::Wrong(standing) => return Some(standing),
            Log::Whole(live) => {
                let named = live.values().find(|(named, _)| named == dir);
                if let Some(bundle) = named.and_then(|(_, manifest)| bundle(scene, manifest)) {
                    return Some(checkpoint(state, bundle, Standing::Committed));
                }
            }
            Log::Nothing => {}
        }
    }
    match manifests.as_slice() {
        [one] => {
            let bundle = bundle(scene, &format!("{below}{one}"));
            Some(bundle.map_or(Standing::Incomplete, |it| checkpoint(state, it, Standing::Sealed)))
        }
        [] => inside.iter().any(|name| is_piece(name)).then_some(Standing::Incomplete),
        _ => Some(Standing::Mixed),
    }
}

/// The checkpoint of a manifest.
pub(super) fn bundle<'s>(scene: &'s Scene, manifest: &str) -> Option<&'s Bundle> {
    scene.bundles.iter().find(|it| it.manifest == manifest)
}

fn is_manifest(name: &str) -> bool {
    name.strip_prefix("manifest-").is_some_and(|rest| rest.len() == 64 + 7 && rest.ends_with(".sqlite"))
}

/// Names that a tool's temporary files don't have.
fn is_piece(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    let end = [".safetensors", ".blocks", ".json"].iter().any(|end| file.ends_with(end));
    name.contains('/') && end && !file.starts_with('.')
}
