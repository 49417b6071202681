//! The mesh that a target is laid out for, and the one that it records.

use fqn::Registry;
use reshard::Mesh;
use serde_json::Value;

use super::Request;
use crate::{
    Catalog, Error, Format, ReshardRule, Result,
    ops::objects::{Objects, has_tensors_of_ranks},
};

/// The target mesh, once what the user says of the source's mesh is checked.
pub(super) fn meshes(catalog: &Catalog, request: &Request) -> Result<Mesh> {
    if let (Some(said), Some(recorded)) = (&request.from, &catalog.mesh)
        && said != recorded
    {
        return Err(Error::incompatible(format!(
            "--from {} was read as {said}, but the checkpoint was laid out for {recorded}",
            said.short()
        ))
        .hint(format!("leave --from out, or give {}", recorded.short())));
    }
    if let (Some(said), None) = (&request.from, &catalog.mesh) {
        check_ranks(catalog, said)?;
    }
    match &request.to {
        Some(to) if request.is_whole() => {
            let (to, format) = (to.short(), request.format.name());
            return Err(Error::incompatible(format!(
                "--to {to}: {format} holds whole tensors, whatever the mesh"
            ))
            .hint("leave --to out, or write native or torch-dcp, which a mesh cuts"));
        }
        None if request.is_whole() => return one_rank(),
        _ => {}
    }
    request.to.clone().or_else(|| catalog.mesh.clone()).map_or_else(one_rank, Ok)
}

/// A mesh that the user names must have as many ranks as saved the checkpoint, where its format tells.
fn check_ranks(catalog: &Catalog, said: &Mesh) -> Result<()> {
    let wrote = catalog.extra.get(Catalog::RANKS).and_then(Value::as_u64);
    let Some(wrote) = wrote.filter(|wrote| *wrote != said.ranks()) else { return Ok(()) };
    let (short, ranks) = (said.short(), said.ranks());
    Err(Error::incompatible(format!(
        "--from {short} was read as {said}: {ranks} ranks, but {wrote} saved the checkpoint"
    ))
    .hint("give the mesh that wrote it, or leave --from out"))
}

pub(super) fn one_rank() -> Result<Mesh> {
    "1x1x1".parse().map_err(|e: reshard::MeshError| Error::internal(e.to_string()))
}

/// The mesh to record. What belongs to single ranks stays as it is where no mesh is asked for; one that was not its own would then
/// be taken for its own later, so none is recorded.
pub(super) fn recorded(
    catalog: &Catalog,
    request: &Request,
    (registry, objects): (&Registry, &Objects),
    mesh: &Mesh,
    notes: &mut Vec<String>,
) -> Option<Mesh> {
    let own = request.to.is_some() || catalog.mesh.as_ref() == Some(mesh);
    let bound = objects.all.iter().any(|object| object.reshard != ReshardRule::Global)
        || has_tensors_of_ranks(registry.entries().iter());
    if own || !bound {
        return Some(mesh.clone());
    }
    if request.format == Format::Native {
        notes.push(
            "no mesh is recorded: values of single ranks are kept as they are, and tensors are laid out for one rank; a later \
             --from says on which mesh they were written"
                .to_owned(),
        );
    }
    None
}
