//! Which tensors of the source are wanted, under which names, and from which of its rows each is made.
//!
//! Invariant: [`Chosen`] has a position in the source for every entry, in the same order.

use std::collections::HashSet;

use fqn::{Entry, RegionMap, Registry, TensorId, dialect};

use super::{Names, Request};
use crate::{
    Catalog, Error, ErrorKind, Format, Result,
    engine::{RowMap, RowRun, SourceRef},
    ops::naming::{self, Named, NamingRequest},
};

/// The tensors that are wanted and their positions in the source.
pub(super) struct Chosen {
    pub(super) registry: Registry,
    pub(super) positions: Vec<usize>,
}

pub(super) fn choose(
    catalog: &Catalog,
    request: &Request,
    gone: &HashSet<usize>,
    notes: &mut Vec<String>,
) -> Result<Chosen> {
    let mut chosen = Chosen { registry: Registry::new(), positions: Vec::new() };
    let wanted = |(at, entry): &(usize, &Entry)| request.select.wants(entry) && !gone.contains(at);
    let (mut left, mut bytes) = (0_usize, 0_u64);
    for (at, entry) in catalog.registry.entries().iter().enumerate().filter(wanted) {
        if request.format == Format::Hf && !entry.role.is_model() {
            left += 1;
            bytes = bytes.saturating_add(entry.bytes().unwrap_or(0));
            continue;
        }
        chosen.registry.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
        chosen.positions.push(at);
    }
    if left > 0 {
        notes.push(format!(
            "{left} tensors ({bytes} bytes) of optimizer and other state left out: a Hugging Face folder holds the model"
        ));
    }
    if chosen.positions.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "no tensor of the checkpoint is selected")
            .hint("`ckpt inspect` lists what there is; --only and #GLOB select"));
    }
    Ok(chosen)
}

/// Names and placement of the target, and the region map of each tensor that has one.
pub(super) fn translate(
    chosen: &mut Chosen,
    request: &Request,
    notes: &mut Vec<String>,
) -> Result<(Named, Vec<RegionMap>)> {
    let named = naming::name(&chosen.registry, &request.naming)?;
    let (to, must) = match &request.names {
        Names::Keep => return Ok((named, Vec::new())),
        Names::Dialect(to) => (to, true),
        Names::Preferred(to) => (to, false),
    };
    let family = dialect::llama();
    if must {
        family.dialect(to).map_err(|e| Error::incompatible(e.to_string()).caused_by(e))?;
    }
    let found = match family.detect(&named.registry) {
        Some(found) if found.dialect == *to => return Ok((named, Vec::new())),
        Some(found) => found,
        None if must => {
            return Err(Error::incompatible(format!(
                "names cannot be written as {to}: they are of no known dialect"
            ))
            .hint("leave --names out, or select the model's part with #GLOB"));
        }
        None => {
            notes.push(format!("names kept as they are: they are of no dialect that translates to {to}"));
            return Ok((named, Vec::new()));
        }
    };
    let translated = family.translate(&named.registry, &found.dialect, to, &named.facts).map_err(|e| {
        let hint = "head counts come from --config DIR or --heads and --kv-heads; #GLOB selects tensors";
        Error::incompatible(e.to_string()).caused_by(e).hint(hint)
    })?;
    notes.push(format!("names translated from {} to {to}", found.dialect));
    if !translated.derived.is_empty() {
        notes.push(format!("{} tensors left out that {to} computes itself", translated.derived.len()));
    }
    let position = |id: &TensorId| {
        let at = chosen.registry.position(id).and_then(|at| chosen.positions.get(at)).copied();
        at.ok_or_else(|| Error::internal(format!("{id} was translated from nothing")))
    };
    let positions =
        translated.translations.iter().map(|it| position(&it.from)).collect::<Result<Vec<_>>>()?;
    let maps = translated.translations.into_iter().map(|translation| translation.map).collect();
    let naming = NamingRequest { facts: named.facts, ..NamingRequest::default() };
    let mut renamed = naming::name(&translated.registry, &naming)?;
    renamed.origin = named.origin;
    *chosen = Chosen { registry: translated.registry, positions };
    Ok((renamed, maps))
}

pub(super) fn sources(
    chosen: &Chosen,
    registry: &Registry,
    maps: &[RegionMap],
    request: &Request,
) -> Result<Vec<SourceRef>> {
    let each = chosen.positions.iter().zip(registry.entries()).enumerate();
    each.map(|(at, (&tensor, entry))| {
        let cast =
            request.cast.filter(|to| entry.role.is_model() && entry.dtype.is_float() && *to != entry.dtype);
        Ok(SourceRef { tensor, map: row_map(entry, maps.get(at))?, cast })
    })
    .collect()
}

fn row_map(entry: &Entry, map: Option<&RegionMap>) -> Result<RowMap> {
    let Some(map) = map.filter(|map| !map.is_identity()) else { return Ok(RowMap::identity()) };
    let rows = entry.shape.first().copied().unwrap_or(0);
    let runs = map.row_runs(0..rows).ok_or_else(|| {
        Error::unsupported(format!(
            "{}: its elements would be reordered within rows, which is not written yet",
            entry.id()
        ))
    })?;
    RowMap::new(runs.map(|run| RowRun { target: run.target, source: run.source, rows: run.count }))
}
