//! What can be wrong between an index, its shards and the folder, without reading a payload.

use std::collections::{HashMap, HashSet};

use super::{Folder, index::Index, source::name_set};
use crate::{Finding, FindingCode, Severity, formats::safetensors::FileHeader};

/// A shard, and the names and bytes of the tensors that it holds by its own account.
pub(super) type Held = (String, Vec<(String, u64)>);

/// What the headers of safetensors shards say that they hold.
pub(super) fn held(headers: &[FileHeader]) -> Vec<Held> {
    let tensors = |file: &FileHeader| {
        file.header.tensors.iter().map(|tensor| (tensor.name.as_str().to_owned(), tensor.len)).collect()
    };
    headers.iter().map(|file| (file.path.clone(), tensors(file))).collect()
}

/// Compares the index with what the shards themselves say.
pub(super) fn index_against_shards(index: &Index, shards: &[Held]) -> Vec<Finding> {
    let error = |text: String| Finding::new(Severity::Error, FindingCode::IndexMismatch, text);
    let mut held: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (path, tensors) in shards {
        held.insert(path, tensors.iter().map(|(name, _)| name.as_str()).collect());
    }
    let (mut findings, mut indexed) = (Vec::new(), HashSet::new());
    for (name, file) in &index.weight_map.0 {
        indexed.insert((name.as_str(), file.as_str()));
        let Some(names) = held.get(file.as_str()) else { continue };
        if names.contains(name.as_str()) {
            continue;
        }
        let elsewhere = held.iter().find(|(_, names)| names.contains(name.as_str())).map(|(file, _)| *file);
        let found = elsewhere.map_or_else(|| "no shard has it".to_owned(), |other| format!("{other} has it"));
        findings.push(error(format!("the index says that {name} is in {file}; {found}")).file(file));
    }
    for (path, tensors) in shards {
        let names = tensors.iter().map(|(name, _)| name.as_str());
        let extra: Vec<&str> = names.filter(|name| !indexed.contains(&(*name, path.as_str()))).collect();
        if let Some(first) = extra.first() {
            let text = format!("{} tensors are in {path} but not in the index: {first}, …", extra.len());
            findings.push(Finding::new(Severity::Warning, FindingCode::IndexMismatch, text).file(path));
        }
    }
    findings.extend(total_size(index, shards));
    findings
}

fn total_size(index: &Index, shards: &[Held]) -> Option<Finding> {
    let complete = index.files().len() == shards.len();
    let stated = index.total_size().filter(|_| complete)?;
    let lens = shards.iter().flat_map(|(_, tensors)| tensors).map(|(_, bytes)| *bytes);
    let held = lens.fold(0_u64, u64::saturating_add);
    let text = format!("the index states a total_size of {stated} bytes, the shards hold {held}");
    (stated != held).then(|| Finding::new(Severity::Warning, FindingCode::SizeMismatch, text))
}

/// Weight files that the index does not name.
pub(super) fn orphans(folder: &Folder, files: &[String]) -> Vec<Finding> {
    let named = name_set(files);
    let orphan = |name: &&String| !named.contains(name.as_str());
    let finding = |name: &String| {
        let text = format!("{name} is a safetensors file that the index does not name");
        Finding::new(Severity::Warning, FindingCode::OrphanFile, text)
            .file(name)
            .hint("left over from another save, or the index is of another generation")
    };
    folder.safetensors.iter().filter(orphan).map(finding).collect()
}

/// Whether a name is that of the token embedding.
pub(super) fn is_embedding(name: &str) -> bool {
    ["embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight"]
        .iter()
        .any(|end| name == *end || name.strip_suffix(end).is_some_and(|before| before.ends_with('.')))
}

/// Whether a name is that of the output head.
pub(super) fn is_head(name: &str) -> bool {
    ["lm_head.weight", "output.weight", "embed_out.weight"].contains(&name)
}
