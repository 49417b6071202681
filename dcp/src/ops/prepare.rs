//! From a source and a request to a plan: which tensors, under which names, cut into which boxes, and what that costs.
//!
//! ```text
//!  catalog ─► select ─► name (placement) ─► translate (dialect, region maps) ─► lay out on the mesh ─► Prepared
//! ```
//!
//! The same source and request give the same plan, and the plan's digest covers everything that it depends on: a
//! rerun recognises its own unfinished work by it.

use std::borrow::Cow;

use fqn::{Dtype, Entry, RegionMap, Registry, dialect, pattern::Pattern};
use reshard::{Budget, Cost, Layout, Mesh, Plan, Region, StageSplit, plan::{PLAN_VERSION, TensorRule}};
use serde::Serialize;

use super::naming::{self, Named, NamingRequest};
use crate::{
    Catalog, Error, ErrorKind, ObjectEntry, ReshardRule, Result, TargetSpec, TargetTensor,
    digest::Sha256Digest,
    engine::{CopyPlan, RowMap, RowRun, SourceRef},
};

/// What a conversion, a reshard or an export shall do.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Which tensors.
    pub select: Select,
    /// Mesh that the user says the source was written on.
    pub from: Option<Mesh>,
    /// Mesh to lay out for; the source's, or one rank, where `None`.
    pub to: Option<Mesh>,
    /// How layers are split over `pp`.
    pub split: Option<StageSplit>,
    /// Placement.
    pub naming: NamingRequest,
    /// Dialect to write names of.
    pub names: Option<String>,
    /// Cast of floating-point model tensors.
    pub cast: Option<Dtype>,
    /// Step to record where the source does not say.
    pub step: Option<u64>,
    /// Leave out opaque per-rank state instead of refusing it.
    pub drop_per_rank: bool,
    /// The target holds whole tensors, whatever the mesh.
    pub whole: bool,
    /// The target holds no non-tensor state.
    pub no_objects: bool,
    /// Target format and options, as text: part of the plan's digest.
    pub target: String,
    /// Memory bound, for the cost.
    pub max_memory: u64,
}

/// Which tensors are wanted.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// Parameters and buffers only, optimizer state only, or everything.
    pub part: Part,
    /// Names.
    pub glob: Option<Pattern>,
}

/// A part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// Everything.
    #[default]
    All,
    /// Parameters and buffers.
    Model,
    /// Optimizer state.
    Optimizer,
}

/// A plan, ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// For people and `--plan`.
    pub plan: Plan,
    /// For the engine.
    pub copy: CopyPlan,
    /// What placement and names came to.
    pub named: Named,
    /// What was left out or assumed, in sentences.
    pub notes: Vec<String>,
}

impl Select {
    fn wants(&self, entry: &Entry) -> bool {
        let part = match self.part {
            Part::All => true,
            Part::Model => entry.role.is_model(),
            Part::Optimizer => entry.role.is_optimizer(),
        };
        part && self.glob.as_ref().is_none_or(|glob| glob.matches(entry.fqn.as_str()))
    }
}

/// Plans what `request` asks of the checkpoint that `catalog` describes.
///
/// # Errors
/// `Incompatible` where the request does not fit, saying why and what would; `Corrupt` where chunks leave gaps.
pub fn prepare(catalog: &Catalog, request: &Request) -> Result<Prepared> {
    let mut notes = Vec::new();
    let mesh = meshes(catalog, request)?;
    let chosen = choose(catalog, &request.select)?;
    let (named, maps) = translate(&chosen.registry, request, &mut notes)?;
    named.check_mesh(&mesh)?;
    let split = request.split.clone().or_else(|| catalog.split.clone()).unwrap_or_default();
    let layout = Layout::new(&named.registry, &mesh, &split).map_err(|e| Error::incompatible(e.to_string()).caused_by(e))?;
    let cost = cost(catalog, request, &chosen, &named, &layout)?;
    let plan = Plan {
        version: PLAN_VERSION,
        source: identity(catalog)?.to_string(),
        attempt: String::new(),
        from: request.from.clone().or_else(|| catalog.mesh.clone()),
        to: mesh.clone(),
        stage_split: split.clone(),
        rules: rules_of(&named.registry),
        workers: 1,
        cost,
    };
    let sources = sources(&chosen, &named.registry, &maps, request)?;
    let digest = digest(&plan, request, &named.registry)?;
    let spec = TargetSpec {
        tensors: targets(&named.registry, &layout, request)?,
        objects: objects(catalog, request, &mut notes)?,
        step: catalog.step.or(request.step),
        mesh: Some(mesh),
        split: Some(split),
        plan_digest: digest.to_string(),
        extra: catalog.extra.clone(),
    };
    let plan = Plan { attempt: digest.to_string().chars().take(16).collect(), ..plan };
    Ok(Prepared { plan, copy: CopyPlan { spec, sources }, named, notes })
}

/// The tensors that are wanted and their positions in the source.
struct Chosen {
    registry: Registry,
    positions: Vec<usize>,
}

fn choose(catalog: &Catalog, select: &Select) -> Result<Chosen> {
    let mut chosen = Chosen { registry: Registry::new(), positions: Vec::new() };
    for (at, entry) in catalog.registry.entries().iter().enumerate().filter(|(_, entry)| select.wants(entry)) {
        chosen.registry.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
        chosen.positions.push(at);
    }
    if chosen.positions.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "no tensor of the checkpoint is selected")
            .hint("`ckpt inspect` lists what there is; --only and #GLOB select"));
    }
    Ok(chosen)
}

/// The target mesh, once what the user says of the source's mesh is checked.
fn meshes(catalog: &Catalog, request: &Request) -> Result<Mesh> {
    if let (Some(said), Some(recorded)) = (&request.from, &catalog.mesh) {
        if said != recorded {
            return Err(Error::incompatible(format!(
                "--from {} was read as {said}, but the checkpoint was laid out for {recorded}",
                said.short()
            ))
            .hint(format!("leave --from out, or give {}", recorded.short())));
        }
    }
    if request.whole {
        return one_rank();
    }
    request.to.clone().or_else(|| catalog.mesh.clone()).map_or_else(one_rank, Ok)
}

fn one_rank() -> Result<Mesh> {
    "1x1x1".parse().map_err(|e: reshard::MeshError| Error::internal(e.to_string()))
}

/// Names and placement of the target, and the region map of each tensor that has one.
fn translate(registry: &Registry, request: &Request, notes: &mut Vec<String>) -> Result<(Named, Vec<RegionMap>)> {
    let named = naming::name(registry, &request.naming)?;
    let family = dialect::llama();
    let (Some(to), Some(found)) = (&request.names, family.detect(&named.registry)) else {
        if let Some(to) = &request.names {
            return Err(Error::incompatible(format!("names cannot be written as {to:?}: they are of no known dialect"))
                .hint("rename rules in a --rules file translate names that no dialect knows"));
        }
        return Ok((named, Vec::new()));
    };
    if found.dialect == *to {
        return Ok((named, Vec::new()));
    }
    let translated = family
        .translate(&named.registry, &found.dialect, to, &named.facts)
        .map_err(|e| Error::incompatible(e.to_string()).caused_by(e).hint("head counts come from --config DIR or --heads/--kv-heads"))?;
    notes.push(format!("names translated from {} to {to}", found.dialect));
    if !translated.derived.is_empty() {
        notes.push(format!("{} tensors left out: {to} computes them itself", translated.derived.len()));
        return Err(Error::unsupported(format!("{} derived tensors cannot be left out here", translated.derived.len()))
            .hint("select the others with #GLOB"));
    }
    let maps = translated.translations.into_iter().map(|translation| translation.map).collect();
    let naming = NamingRequest { facts: named.facts, ..NamingRequest::default() };
    let renamed = naming::name(&translated.registry, &naming)?;
    Ok((renamed, maps))
}

fn sources(chosen: &Chosen, registry: &Registry, maps: &[RegionMap], request: &Request) -> Result<Vec<SourceRef>> {
    let each = chosen.positions.iter().zip(registry.entries()).enumerate();
    each.map(|(at, (&tensor, entry))| {
        let cast = request.cast.filter(|to| entry.role.is_model() && entry.dtype.is_float() && *to != entry.dtype);
        Ok(SourceRef { tensor, map: row_map(entry, maps.get(at))?, cast })
    })
    .collect()
}

fn row_map(entry: &Entry, map: Option<&RegionMap>) -> Result<RowMap> {
    let Some(map) = map.filter(|map| !map.is_identity()) else { return Ok(RowMap::identity()) };
    let rows = entry.shape.first().copied().unwrap_or(0);
    let runs = map.row_runs(0..rows).ok_or_else(|| {
        Error::unsupported(format!("{}: its elements would be reordered within rows, which is not written yet", entry.id()))
    })?;
    RowMap::new(runs.map(|run| RowRun { target: run.target, source: run.source, rows: run.count }))
}

fn targets(registry: &Registry, layout: &Layout, request: &Request) -> Result<Vec<TargetTensor>> {
    let each = registry.entries().iter().enumerate();
    each.map(|(at, entry)| {
        let mut entry = entry.clone();
        if let Some(to) = request.cast.filter(|_| entry.role.is_model() && entry.dtype.is_float()) {
            entry.dtype = to;
        }
        let regions = regions(&entry, at, layout, request)?;
        Ok(TargetTensor { entry, regions })
    })
    .collect()
}

fn regions(entry: &Entry, at: usize, layout: &Layout, request: &Request) -> Result<Vec<(Region, u32)>> {
    if request.whole {
        return Ok(vec![(whole(entry)?, 0)]);
    }
    let shards = layout.shards(at).map(|(shard, rank)| Ok((shard.region, rank_u32(rank)?)));
    let mut regions = shards.collect::<Result<Vec<_>>>()?;
    if regions.is_empty() {
        // An empty tensor has no shard that holds anything, and still has to be there.
        regions.push((whole(entry)?, 0));
    }
    Ok(regions)
}

fn whole(entry: &Entry) -> Result<Region> {
    Region::whole(&entry.shape).map_err(|e| Error::corrupt(format!("{}: {e}", entry.id())))
}

fn rank_u32(rank: u64) -> Result<u32> {
    u32::try_from(rank).map_err(|_| Error::internal(format!("rank {rank}")))
}

fn cost(catalog: &Catalog, request: &Request, chosen: &Chosen, named: &Named, layout: &Layout) -> Result<Cost> {
    let chunks = |at: usize| -> Cow<'_, [Region]> {
        let source = chosen.positions.get(at).and_then(|&at| catalog.tensors.get(at));
        Cow::Owned(source.map(|s| s.chunks.iter().map(|chunk| chunk.region.clone()).collect()).unwrap_or_default())
    };
    let budget = Budget { max_memory: request.max_memory.max(1), part_bytes: 8 << 20 };
    let from = request.from.as_ref().or(catalog.mesh.as_ref());
    Cost::count(&named.registry, from, layout, chunks, budget).map_err(|e| {
        Error::new(ErrorKind::Corrupt, e.to_string())
            .caused_by(e)
            .hint("the checkpoint does not hold every element exactly once; `ckpt verify` lists all gaps and overlaps")
    })
}

fn objects(catalog: &Catalog, request: &Request, notes: &mut Vec<String>) -> Result<Vec<ObjectEntry>> {
    if request.no_objects || request.select.part == Part::Model {
        if !catalog.objects.is_empty() {
            notes.push(format!("{} non-tensor values left out", catalog.objects.len()));
        }
        return Ok(Vec::new());
    }
    let changes = request.to.is_some() && request.to != catalog.mesh;
    let (stay, bound): (Vec<_>, Vec<_>) =
        catalog.objects.iter().cloned().partition(|object| !changes || object.reshard == ReshardRule::Global);
    match bound.first() {
        None => Ok(stay),
        Some(first) if !request.drop_per_rank => Err(Error::incompatible(format!(
            "{} belongs to single ranks of the old mesh ({} such values)",
            first.key,
            bound.len()
        ))
        .hint("--drop-per-rank leaves them out")),
        Some(_) => {
            notes.push(format!("{} per-rank values left out", bound.len()));
            Ok(stay)
        }
    }
}

fn rules_of(registry: &Registry) -> Vec<TensorRule> {
    let of = |entry: &Entry| Some(TensorRule { tensor: entry.id(), rule: entry.placement.clone()? });
    registry.entries().iter().filter_map(of).collect()
}

#[derive(Serialize)]
struct Essence<'a> {
    tensors: &'a [Entry],
    places: Vec<(&'a Region, u32, u64)>,
    files: Vec<(&'a str, u64)>,
    fingerprints: Vec<Option<String>>,
}

/// Identity of a checkpoint: a digest of what it holds, where its bytes lie and what is known of their content.
///
/// # Errors
/// `Internal` where it has no text form.
pub fn identity(catalog: &Catalog) -> Result<Sha256Digest> {
    let chunks = catalog.tensors.iter().flat_map(|tensor| &tensor.chunks);
    let essence = Essence {
        tensors: catalog.registry.entries(),
        places: chunks.map(|chunk| (&chunk.region, chunk.file.0, chunk.offset)).collect(),
        files: catalog.files.iter().map(|file| (file.path.as_str(), file.size)).collect(),
        fingerprints: catalog.tensors.iter().map(|t| t.fingerprint.as_ref().map(ToString::to_string)).collect(),
    };
    let text = serde_json::to_vec(&essence).map_err(|e| Error::internal(e.to_string()))?;
    Ok(Sha256Digest::of(&text))
}

fn digest(plan: &Plan, request: &Request, registry: &Registry) -> Result<Sha256Digest> {
    let internal = |e: serde_json::Error| Error::internal(e.to_string());
    let plan = plan.digest_text().map_err(internal)?;
    let names = serde_json::to_string(registry).map_err(internal)?;
    let rest = format!("{:?} {:?} {:?} {}", request.cast, request.step, request.drop_per_rank, request.target);
    Ok(Sha256Digest::of(format!("{plan}\n{names}\n{rest}").as_bytes()))
}
