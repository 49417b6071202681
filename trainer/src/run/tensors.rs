//! Weights and gradients of one step in a file of each rank, as `debug.tensors_step` asks for them: what other software is
//! held against.
//!
//! A file is a safetensors file, `rank_00000.safetensors`. Names are `param|FQN|OFFSETS` and `grad|FQN|OFFSETS`: weights
//! before the update, gradients as they were reduced over the mesh, before clipping; `OFFSETS` says where the rank's box
//! begins in the whole tensor, a number for each dimension. A rank without elements of a tensor leaves it out.

use std::{fs, path::Path};

use fqn::{Fqn, Role};
use reshard::Region;
use tch::Tensor;

use crate::{
    Error, ErrorKind, Place, Result,
    config::Debug,
    fsdp::{Gradients, State},
};

/// Writes the tensors of `rank` if `step` is the one that is asked for.
///
/// # Errors
/// `Io`, with the file.
pub(super) fn write(
    wanted: &Debug,
    step: u64,
    rank: usize,
    state: &State,
    gradients: &Gradients,
) -> Result<()> {
    if wanted.tensors_step != step {
        return Ok(());
    }
    let _untracked = tch::no_grad_guard();
    let mut named: Vec<(String, Tensor)> = Vec::new();
    for held in state.tensors()?.into_iter().filter(|held| held.id.role == Role::Param) {
        push(&mut named, "param", &held.id.fqn, &held.region, &held.tensor)?;
    }
    for (fqn, region, gradient) in state.named(gradients)? {
        push(&mut named, "grad", &fqn, &region, &gradient)?;
    }
    let path = Path::new(&wanted.tensors_folder).join(format!("rank_{rank:05}.safetensors"));
    store(&path, &named).place(format!("debug.tensors_step={step}"))
}

fn push(
    named: &mut Vec<(String, Tensor)>,
    what: &str,
    fqn: &Fqn,
    region: &Region,
    tensor: &Tensor,
) -> Result<()> {
    if !region.is_empty() {
        let offsets: Vec<_> = region.offsets().iter().map(ToString::to_string).collect();
        named.push((format!("{what}|{fqn}|{}", offsets.join(",")), tensor.f_contiguous()?));
    }
    Ok(())
}

fn store(path: &Path, named: &[(String, Tensor)]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| Error::from(error).at(folder.display()))?;
    }
    Tensor::write_safetensors(named, path).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
    })
}
