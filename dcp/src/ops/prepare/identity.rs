//! What tells one source, and one plan, from another: digests over all that the result depends on.

use fqn::{Entry, Registry};
use reshard::Plan;
use serde::Serialize;

use super::Request;
use crate::{
    Catalog, Error, Recorded, Result,
    digest::{Sha256Digest, Sha256Hasher},
    ops::objects::Objects,
    rank_state::RankScheme,
};

#[derive(Serialize)]
struct Essence<'a> {
    tensors: &'a [Entry],
    files: Vec<(&'a str, u64)>,
    fingerprints: Vec<Option<String>>,
    #[serde(skip_serializing_if = "<[Recorded]>::is_empty")]
    recorded: &'a [Recorded],
}

/// Identity of a checkpoint: a digest of what it holds, where its bytes lie and what is known of their content.
///
/// # Errors
/// `Internal` where it has no text form.
pub fn identity(catalog: &Catalog) -> Result<Sha256Digest> {
    let essence = Essence {
        tensors: catalog.registry.entries(),
        files: catalog.files.iter().map(|file| (file.path.as_str(), file.size)).collect(),
        fingerprints: catalog
            .tensors
            .iter()
            .map(|t| t.fingerprint.as_ref().map(ToString::to_string))
            .collect(),
        recorded: catalog.lineage.recorded(),
    };
    let mut hasher = Sha256Hasher::new();
    hasher.update(&serde_json::to_vec(&essence).map_err(|e| Error::internal(e.to_string()))?);
    for tensor in &catalog.tensors {
        let packed = tensor.chunks.packed().ok_or_else(|| Error::internal("chunks of different ranks"))?;
        hasher.update(&packed);
    }
    Ok(hasher.finish())
}

/// The source as the plan names it.
pub(super) fn source_of(catalog: &Catalog, request: &Request) -> Result<String> {
    let identity = identity(catalog)?;
    Ok(match &request.stamp {
        None => identity.to_string(),
        Some(stamp) => Sha256Digest::of(format!("{identity} {stamp}").as_bytes()).to_string(),
    })
}

pub(super) fn digest(
    plan: &Plan,
    request: &Request,
    registry: &Registry,
    (scheme, objects): (&RankScheme, &Objects),
) -> Result<Sha256Digest> {
    let internal = |e: serde_json::Error| Error::internal(e.to_string());
    let plan = plan.digest_text().map_err(internal)?;
    let names = serde_json::to_string(registry).map_err(internal)?;
    let Request { cast, step, drop_per_rank, format, target, .. } = request;
    let extra = serde_json::to_string(&request.extra).map_err(internal)?;
    let mut rest = format!("{cast:?} {step:?} {drop_per_rank} {} {target} {extra}", format.name());
    if !request.codecs.is_none() {
        rest.push_str(&format!(" {}", request.codecs));
    }
    if !scheme.is_empty() {
        rest.push_str(&serde_json::to_string(scheme).map_err(internal)?);
    }
    if !objects.are_as_before() {
        rest.push_str(&format!(" {}", objects.digest()));
    }
    Ok(Sha256Digest::of(format!("{plan}\n{names}\n{rest}").as_bytes()))
}
