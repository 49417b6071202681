//! The tensors as the target holds them: cast, cut, without what its format has no place for, ties only where bytes are equal.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use fqn::{Entry, Fqn, Registry, TensorId};
use reshard::Layout;

use super::Request;
use crate::{
    Catalog, Error, Format, Result, TargetSpec, TargetTensor,
    engine::{CopyPlan, SourceRef},
    formats::fit,
};

/// The tensors as the target has them: cast, where that is asked for.
pub(super) fn as_written<'r>(registry: &'r Registry, request: &Request) -> Result<Cow<'r, Registry>> {
    let Some(to) = request.cast else { return Ok(Cow::Borrowed(registry)) };
    let mut written = Registry::new();
    for mut entry in registry.entries().iter().cloned() {
        if entry.role.is_model() && entry.dtype.is_float() {
            entry.dtype = to;
        }
        written.push(entry).map_err(|e| Error::internal(e.to_string()))?;
    }
    Ok(Cow::Owned(written))
}

pub(super) fn targets(registry: &Registry, layout: &Layout, request: &Request) -> Result<Vec<TargetTensor>> {
    let each = registry.entries().iter().enumerate();
    each.map(|(at, entry)| {
        let entry = entry.clone();
        if request.is_whole() {
            let regions = vec![(TargetTensor::whole(&entry)?, 0)];
            return Ok(TargetTensor { entry, regions });
        }
        TargetTensor::laid_out(entry, layout, at)
    })
    .collect()
}

/// Takes out what the format does not hold, from the spec and from its sources alike, and says so.
pub(super) fn fitted(
    catalog: &Catalog,
    mut spec: TargetSpec,
    sources: Vec<SourceRef>,
    format: Format,
    notes: &mut Vec<String>,
) -> CopyPlan {
    let ids: Vec<TensorId> = spec.tensors.iter().map(|tensor| tensor.entry.id()).collect();
    let of: HashMap<&TensorId, SourceRef> = ids.iter().zip(sources).collect();
    untie_what_differs(catalog, &mut spec, &of);
    let left = fit(&mut spec, format);
    for (kept, dropped) in &left.ties {
        notes.push(format!("{dropped} left out: it is tied to {kept} and has the same bytes"));
    }
    if !left.objects.is_empty() {
        notes.push(format!(
            "{} non-tensor values left out: {} holds tensors",
            left.objects.len(),
            format.name()
        ));
    }
    // Nothing is added to a spec, so every tensor of it has its source.
    let sources = spec.tensors.iter().filter_map(|tensor| of.get(&tensor.entry.id()).cloned()).collect();
    CopyPlan { spec, sources }
}

/// Storing tied tensors once is right only where they are known to be equal: the same bytes of a file, or the same
/// fingerprint. Others are written one by one.
fn untie_what_differs(catalog: &Catalog, spec: &mut TargetSpec, of: &HashMap<&TensorId, SourceRef>) {
    let content = |entry: &Entry| {
        let tensor = catalog.tensors.get(of.get(&entry.id())?.tensor)?;
        let places: Vec<_> = tensor.chunks.iter().map(|chunk| (chunk.file, chunk.offset)).collect();
        Some((places, tensor.fingerprint))
    };
    let mut first: HashMap<Fqn, _> = HashMap::new();
    let mut apart: HashSet<Fqn> = HashSet::new();
    for entry in spec.tensors.iter().map(|tensor| &tensor.entry) {
        let (Some(group), Some((places, print))) = (entry.tie.clone(), content(entry)) else { continue };
        let (known, known_print) = first.entry(group.clone()).or_insert_with(|| (places.clone(), print));
        let same = *known == places || (print.is_some() && *known_print == print);
        if !same {
            apart.insert(group);
        }
    }
    for tensor in &mut spec.tensors {
        if tensor.entry.tie.as_ref().is_some_and(|group| apart.contains(group)) {
            tensor.entry.tie = None;
        }
    }
}
