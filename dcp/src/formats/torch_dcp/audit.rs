//! What can be wrong in a folder without reading a payload: files that nothing names, bytes that no entry claims,
//! entries that claim the same bytes, metadata that contradicts itself.

use std::collections::{BTreeMap, HashSet};

use super::{
    Listing, Metadata,
    folder::METADATA,
    metadata::{Item, StorageInfo, StorageKey},
    resolve::end,
};
use crate::{Catalog, Finding, FindingCode, Severity, formats::Depth};

/// Collects everything; pieces themselves were judged when they were resolved.
pub(super) fn audit(listing: &Listing, metadata: &Metadata, catalog: &Catalog, depth: Depth) -> Vec<Finding> {
    let mut findings = tiling(listing, metadata);
    findings.extend(unnamed_files(listing, metadata));
    findings.extend(contradictions(metadata));
    findings.extend(checksums(catalog, depth));
    findings
}

/// Every stored piece, second copies included.
fn stored(metadata: &Metadata) -> impl Iterator<Item = (&StorageKey, &StorageInfo)> {
    metadata.storage.iter().chain(metadata.replicas.iter().map(|(key, info)| (key, info)))
}

/// Entries must follow each other from the first byte of their file to its last.
fn tiling(listing: &Listing, metadata: &Metadata) -> Vec<Finding> {
    let mut by_file: BTreeMap<&str, Vec<(&StorageInfo, &StorageKey)>> = BTreeMap::new();
    for (key, info) in stored(metadata) {
        by_file.entry(&info.path).or_default().push((info, key));
    }
    let mut findings = Vec::new();
    for (path, mut entries) in by_file {
        let Some(&size) = listing.sizes.get(path) else { continue };
        // A safetensors blob has the offset 0 for every entry: nothing to compare.
        if entries.len() > 1 && entries.iter().all(|(info, _)| info.offset == 0) {
            continue;
        }
        entries.sort_by_key(|(info, _)| (info.offset, info.length));
        tile(path, size, &entries, &mut findings);
    }
    findings
}

fn tile(path: &str, size: u64, entries: &[(&StorageInfo, &StorageKey)], findings: &mut Vec<Finding>) {
    let (mut at, mut before) = (0_u64, "");
    for (info, key) in entries {
        if info.offset > at {
            findings.push(orphan_bytes(path, at, info.offset));
        } else if info.offset < at && info.length > 0 {
            let text =
                format!("{} begins at byte {}, inside {before}, which ends at {at}", key.key, info.offset);
            let hint = "two entries can't share bytes: the metadata was edited or is of another save";
            findings.push(
                Finding::new(Severity::Error, FindingCode::MetadataMismatch, text).file(path).hint(hint),
            );
        }
        if end(info) > at {
            (at, before) = (end(info), &key.key);
        }
    }
    if at > size {
        let text = format!(
            "the metadata places data up to byte {at}, the file has {size}: cut short, or of another save"
        );
        findings.push(Finding::new(Severity::Error, FindingCode::SizeMismatch, text).file(path));
    } else if at < size {
        findings.push(orphan_bytes(path, at, size));
    }
}

fn orphan_bytes(path: &str, from: u64, to: u64) -> Finding {
    let text = format!("bytes {from}..{to} belong to no entry of the metadata");
    Finding::new(Severity::Warning, FindingCode::OrphanBytes, text)
        .file(path)
        .hint("the file may be of another save than the metadata")
}

/// Blobs that the metadata does not name: torch never removes those of an earlier save with more ranks.
fn unnamed_files(listing: &Listing, metadata: &Metadata) -> Vec<Finding> {
    let named: HashSet<&str> = stored(metadata).map(|(_, info)| info.path.as_str()).collect();
    let mut findings = Vec::new();
    for (name, size) in &listing.sizes {
        let blob = name.ends_with(".distcp") && !named.contains(name.as_str()) && *size > 0;
        let rank_metadata =
            listing.rank_metadata.values().any(|other| other == name) && !listing.is_per_rank();
        let temporary = name.ends_with(".metadata.tmp");
        let (what, hint) = if blob {
            (
                "a blob that the metadata does not name",
                "left by an earlier save into the same folder; it may be deleted",
            )
        } else if rank_metadata {
            (
                "metadata of one rank beside the global one",
                "left by an earlier save with use_collectives=False",
            )
        } else if temporary {
            (
                "a temporary of a save that never finished",
                "a later save may have been torn: compare the times of the files",
            )
        } else {
            continue;
        };
        let text = format!("{name} ({size} bytes) is {what}");
        findings.push(Finding::new(Severity::Warning, FindingCode::StaleFile, text).file(name).hint(hint));
    }
    findings.extend(missing_ranks(listing));
    findings
}

/// Without a global metadata, nothing but the numbers says that a rank is missing.
fn missing_ranks(listing: &Listing) -> Option<Finding> {
    let last = listing.rank_metadata.keys().next_back().filter(|_| listing.is_per_rank())?;
    let absent: Vec<u64> =
        (0..*last).filter(|rank| !listing.rank_metadata.contains_key(rank)).take(8).collect();
    let text = format!("metadata of rank {absent:?} is missing, though rank {last} has written its own");
    let note =
        format!("each rank wrote its own {METADATA}; whether ranks above {last} are missing can't be seen");
    Some(if absent.is_empty() {
        Finding::new(Severity::Note, FindingCode::Other, note)
    } else {
        Finding::new(Severity::Error, FindingCode::MissingFile, text)
    })
}

fn contradictions(metadata: &Metadata) -> Vec<Finding> {
    let warning = |code, text: String| Finding::new(Severity::Warning, code, text);
    let mut findings = Vec::new();
    for name in &metadata.unknown_globals {
        let text = format!("the metadata names {name}, which torch does not write there; nothing was run");
        findings.push(
            warning(FindingCode::UnknownGlobal, text)
                .hint("torch itself would import it when it opens the checkpoint"),
        );
    }
    findings
        .extend(metadata.oddities.iter().map(|text| warning(FindingCode::MetadataMismatch, text.clone())));
    let mut expected: HashSet<StorageKey> = HashSet::new();
    for (key, item) in &metadata.items {
        match item {
            Item::Bytes => drop(expected.insert(StorageKey { key: key.clone(), offsets: None })),
            Item::Tensor { chunks, .. } => expected.extend(
                chunks
                    .iter()
                    .map(|chunk| StorageKey { key: key.clone(), offsets: Some(chunk.offsets().into()) }),
            ),
        }
        if !metadata.paths.is_empty() && !metadata.paths.contains_key(key) {
            let text =
                format!("{key} has no path in planner_data: torch can't rebuild the nesting around it");
            findings.push(warning(FindingCode::MetadataMismatch, text));
        }
    }
    let mut strays: Vec<&StorageKey> =
        metadata.storage.keys().filter(|key| !expected.contains(key)).collect();
    strays.sort_by(|a, b| (&a.key, &a.offsets).cmp(&(&b.key, &b.offsets)));
    for key in strays {
        let place = key.offsets.as_ref().map_or_else(String::new, |offsets| format!(" at {offsets:?}"));
        let text = format!("{}{place} is stored, but is no chunk of the metadata", key.key);
        findings.push(warning(FindingCode::MetadataMismatch, text));
    }
    let items: HashSet<&str> = metadata.items.iter().map(|(key, _)| key.as_str()).collect();
    let mut paths: Vec<&String> = metadata.paths.keys().filter(|key| !items.contains(key.as_str())).collect();
    paths.sort();
    findings.extend(paths.iter().map(|key| {
        warning(
            FindingCode::MetadataMismatch,
            format!("planner_data has a path for {key}, which is not in the checkpoint"),
        )
    }));
    findings
}

fn checksums(catalog: &Catalog, depth: Depth) -> Option<Finding> {
    let chunks = || catalog.tensors.iter().flat_map(|chunks| &chunks.chunks);
    let off = chunks().filter(|chunk| chunk.record.is_none() && !chunk.region.is_empty()).count();
    let text = format!("{off} chunks have no checksum: their bytes can't be verified");
    (depth == Depth::Data && off > 0).then(|| {
        Finding::new(Severity::Note, FindingCode::ChecksumsOff, text)
            .hint("written with set_crc32_options(False), or as safetensors; `ckpt seal` gives them hashes from now on")
    })
}
