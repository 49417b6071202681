//! Values of a state dict: kept as the archives that they are, decoded only to be shown.

use bytes::Bytes;
use serde_json::Value;

use super::archive::{self, of_archive};
use crate::{
    Encoding, Error, Finding, FindingCode, ObjectEntry, PathPart, ReshardRule, Result, Severity,
    pickle::{Arena, NodeId, PickleError, Protocol, write},
    torch::ArchiveLayout,
};

/// The entry of the value under `key`, and what is suspicious about it.
pub(super) fn object(
    key: &str,
    path: Option<&Vec<PathPart>>,
    archive: Vec<u8>,
) -> (ObjectEntry, Option<Finding>) {
    let bytes = Bytes::from(archive);
    let (preview, finding) = match archive::value(&bytes) {
        Ok(value) => (Some(value), None),
        Err(error) => {
            let finding =
                Finding::new(Severity::Warning, FindingCode::UnknownGlobal, format!("{key}: {error}"));
            (
                None,
                Some(
                    finding.hint("the value is carried along unread; don't load it with weights_only=False"),
                ),
            )
        }
    };
    let path = path.cloned().unwrap_or_else(|| vec![PathPart::Key(key.to_owned())]);
    let reshard = rule(&path);
    (
        ObjectEntry { key: key.to_owned(), path, encoding: Encoding::TorchSave, bytes, preview, reshard },
        finding,
    )
}

/// The archive that torch loads as the value of `object`: its own bytes, or a new one around them.
///
/// # Errors
/// `Corrupt` for JSON that is none.
pub(super) fn archived(object: &ObjectEntry) -> Result<Bytes> {
    let pickle = match object.encoding {
        Encoding::TorchSave => return Ok(object.bytes.clone()),
        Encoding::Pickle => object.bytes.clone(),
        Encoding::Json => {
            let value: Value = serde_json::from_slice(&object.bytes).map_err(|error| {
                Error::corrupt(format!("{}: no JSON: {error}", object.key)).caused_by(error)
            })?;
            let mut arena = Arena::new();
            let root = from_json(&mut arena, &value);
            let failed =
                |error: PickleError| Error::incompatible(format!("{}: {error}: {}", object.key, error.kind));
            Bytes::from(write(&arena.finish(root).map_err(failed)?, Protocol::V2).map_err(failed)?)
        }
    };
    archive_of(pickle)
}

/// The archive that torch loads as the value of a pickle.
///
/// # Errors
/// `Incompatible` for one beyond memory.
pub(crate) fn archive_of(pickle: Bytes) -> Result<Bytes> {
    let layout = ArchiveLayout::new("archive", pickle, &[]).map_err(of_archive)?;
    let mut archive = vec![
        0;
        usize::try_from(layout.total_len())
            .map_err(|_| Error::incompatible("a value beyond memory"))?
    ];
    for (offset, bytes) in layout.head().into_iter().chain(layout.tail(&[]).map_err(of_archive)?) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let place = archive.get_mut(from..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or_else(|| Error::internal("a record outside its archive"))?.copy_from_slice(&bytes);
    }
    Ok(Bytes::from(archive))
}

/// Makes the Python value that JSON stands for.
pub(crate) fn from_json(arena: &mut Arena, value: &Value) -> NodeId {
    match value {
        Value::Null => arena.none(),
        Value::Bool(value) => arena.bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => arena.int(int),
            // Little-endian two's complement, with a byte for the sign.
            (None, Some(large)) => arena.big_int(&[&large.to_le_bytes()[..], &[0]].concat()),
            _ => arena.float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => arena.str(text),
        Value::Array(items) => {
            let items: Vec<NodeId> = items.iter().map(|item| from_json(arena, item)).collect();
            arena.list(&items)
        }
        Value::Object(map) => {
            let pairs: Vec<(NodeId, NodeId)> =
                map.iter().map(|(key, value)| (arena.str(key), from_json(arena, value))).collect();
            arena.dict(&pairs)
        }
    }
}

/// TorchTitan keeps one data-loader state per data rank; a key that names a rank otherwise belongs to that rank alone.
pub(crate) fn rule(path: &[PathPart]) -> ReshardRule {
    let is = |prefix: &str, segment: &str| {
        segment.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u64>().is_ok())
    };
    let named = |prefix: &str| {
        path.iter().any(|part| match part {
            // A flat key has several.
            PathPart::Key(key) => key.split('.').any(|segment| is(prefix, segment)),
            PathPart::Index(_) => false,
        })
    };
    if named("dp_rank_") {
        ReshardRule::PerDataRank
    } else if named("rank_") || named("rank") {
        ReshardRule::PerRank
    } else {
        ReshardRule::Global
    }
}

/// The training step, where a value under a usual name tells it.
pub(crate) fn step(objects: &[ObjectEntry]) -> Option<u64> {
    const NAMES: [&str; 4] = ["train_state.step", "step", "global_step", "train_state.global_step"];
    let at = |name: &&str| {
        objects.iter().find(|object| object.key == **name)?.preview.as_ref().and_then(Value::as_u64)
    };
    NAMES.iter().find_map(at)
}

/// The step in the name of a folder: `step-120`, `step_120`, `checkpoint-120`.
pub(crate) fn step_of_folder(name: &str) -> Option<u64> {
    let digits = name.rsplit(['-', '_']).next().filter(|digits| digits.len() < name.len())?;
    let word = name.get(..name.len().saturating_sub(digits.len()).saturating_sub(1))?;
    ["step", "checkpoint", "iter", "global_step"].contains(&word).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_rank_values_are_told_apart() {
        let rule_of = |keys: &[&str]| {
            rule(&keys.iter().map(|key| PathPart::Key((*key).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(rule_of(&["dataloader", "dp_rank_3"]), ReshardRule::PerDataRank);
        assert_eq!(rule_of(&["rng", "rank_3"]), ReshardRule::PerRank);
        assert_eq!(rule_of(&["optim", "param_groups", "lr"]), ReshardRule::Global);
        assert_eq!(rule_of(&["ranking"]), ReshardRule::Global);
        // Keys that a flat state dict has.
        assert_eq!(rule_of(&["dataloader.dp_rank_0"]), ReshardRule::PerDataRank);
        assert_eq!(rule_of(&["rng", "torch.rank_0.state"]), ReshardRule::PerRank);
        assert_eq!(rule_of(&["dataloader.dp_rank_x"]), ReshardRule::Global);
    }

    #[test]
    fn a_folder_named_after_a_step_tells_it() {
        assert_eq!(step_of_folder("step-120"), Some(120));
        assert_eq!(step_of_folder("step-100.bak"), None);
        assert_eq!(step_of_folder("120"), None);
        assert_eq!(step_of_folder("my-120"), None);
    }
}
