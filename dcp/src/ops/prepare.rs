//! From a source and a request to a plan: which tensors, under which names, cut into which boxes, and what that costs.
//!
//! ```text
//!  catalog ─► select ─► name (placement) ─► translate (dialect, region maps) ─► lay out on the mesh ─► Prepared
//! ```
//!
//! The same source and request give the same plan, and the plan's digest covers everything that it depends on: a
//! rerun recognises its own unfinished work by it.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use fqn::{Dtype, Entry, Fqn, RegionMap, Registry, TensorId, dialect, pattern::Pattern, preset::Rules};
use reshard::{
    Cost, Layout, Mesh, Plan, Region, StageSplit,
    plan::{PLAN_VERSION, TensorRule},
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    naming::{self, Named, NamingRequest},
    objects::{Objects, has_tensors_of_ranks, objects, tensors_left},
};
use crate::{
    Catalog, Error, ErrorKind, Format, Recorded, ReshardRule, Result, TargetSpec, TargetTensor,
    codec::Codecs,
    digest::{Sha256Digest, Sha256Hasher},
    engine::{CopyPlan, Forecast, RowMap, RowRun, RunOptions, SourceRef},
    formats::{fit, native},
    rank_state::{self, ObjectCounts, RankScheme},
};

/// What a conversion, a reshard or an export shall do.
#[derive(Debug, Clone)]
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
    /// Names to write.
    pub names: Names,
    /// Cast of floating-point model tensors.
    pub cast: Option<Dtype>,
    /// Step to record where the source does not say.
    pub step: Option<u64>,
    /// Leave out state of single ranks that can't follow, instead of refusing it.
    pub drop_per_rank: bool,
    /// What becomes of state that every data rank has of its own; before the rules file's and what the checkpoint records.
    pub rank_state: RankScheme,
    /// Format of the target.
    pub format: Format,
    /// Facts to keep beside the source's own, see [`Catalog::extra`].
    pub extra: Map<String, Value>,
    /// Which roles are stored compressed; the native store alone can.
    pub codecs: Codecs,
    /// What tells that a source without digests is still the same, see [`crate::Source::stamp`]: part of the plan's digest.
    pub stamp: Option<String>,
    /// Options of the target beyond the format, as text: part of the plan's digest.
    pub target: String,
    /// With what it will be run: the cost says what that takes.
    pub run: RunOptions,
}

/// Which names to write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Names {
    /// As they are.
    #[default]
    Keep,
    /// Those of a dialect, or nothing.
    Dialect(String),
    /// Those of a dialect where the names are of another one that is known, as they are otherwise.
    Preferred(String),
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
    /// Layers on each pipeline stage.
    pub stages: Vec<u64>,
    /// What becomes of non-tensor values.
    pub objects: ObjectCounts,
    /// What was left out or assumed, in sentences.
    pub notes: Vec<String>,
}

impl Request {
    /// Everything, as it is, as a target of `format`.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            select: Select::default(),
            from: None,
            to: None,
            split: None,
            naming: NamingRequest::default(),
            names: Names::default(),
            cast: None,
            step: None,
            drop_per_rank: false,
            rank_state: RankScheme::default(),
            format,
            extra: Map::new(),
            codecs: Codecs::NONE,
            stamp: None,
            target: String::new(),
            run: RunOptions::default(),
        }
    }

    /// Whether the target holds whole tensors, whatever the mesh.
    const fn is_whole(&self) -> bool {
        matches!(self.format, Format::Hf | Format::Safetensors | Format::Pt)
    }
}

impl Select {
    /// Whether a tensor is.
    pub(super) fn wants(&self, entry: &Entry) -> bool {
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
    if !request.codecs.is_none() && request.format != Format::Native {
        let text = format!(
            "{} has no compressed blocks, and {} is asked for",
            request.format.name(),
            request.codecs
        );
        return Err(Error::incompatible(text).hint("compress into a native store, or leave the codec out"));
    }
    if !request.codecs.is_none() {
        notes.push(format!("compressed where it gains 1/32 or more: {}", request.codecs));
    }
    let mut mesh = meshes(catalog, request)?;
    let scheme = scheme(catalog, request)?;
    let left = tensors_left(catalog, request, &scheme, &mut notes)?;
    let mut chosen = choose(catalog, request, &left, &mut notes)?;
    let (named, maps) = translate(&mut chosen, request, &mut notes)?;
    if request.to.is_none() && named.check_mesh(&mesh).is_err() {
        notes.push(format!("laid out for one rank: not every tensor says how it lies on {mesh}"));
        mesh = one_rank()?;
    }
    named.check_mesh(&mesh)?;
    notes.extend(named.unchecked(&mesh));
    let split = request.split.clone().or_else(|| catalog.split.clone()).unwrap_or_default();
    let written = as_written(&named.registry, request)?;
    let layout = Layout::new(&written, &mesh, &split);
    let layout = layout.map_err(|e| Error::incompatible(e.to_string()).caused_by(e))?;
    let mut plan = Plan {
        version: PLAN_VERSION,
        source: source_of(catalog, request)?,
        attempt: String::new(),
        from: request.from.clone().or_else(|| catalog.mesh.clone()),
        to: mesh.clone(),
        stage_split: split.clone(),
        rules: rules_of(&named.registry),
        cost: cost(catalog, request, &chosen, &named, &layout)?,
    };
    let objects = objects(catalog, request, &scheme, &mut notes)?;
    let recorded = recorded(catalog, request, (&chosen.registry, &objects), &mesh, &mut notes);
    let digest = digest(&plan, request, &named.registry, (&scheme, &objects))?.to_string();
    plan.attempt = digest.chars().take(16).collect();
    let spec = TargetSpec {
        tensors: targets(&written, &layout, request)?,
        objects: objects.all,
        step: catalog.step.or(request.step),
        split: recorded.as_ref().map(|_| split),
        mesh: recorded,
        plan_digest: digest,
        extra: extra(catalog, request, &scheme)?,
        codecs: request.codecs.clone(),
    };
    let mut counts = objects.counts;
    let sources = sources(&chosen, &named.registry, &maps, request)?;
    let copy = fitted(catalog, spec, sources, request.format, &mut notes);
    if copy.spec.objects.is_empty() {
        counts = ObjectCounts { dropped: counts.total(), ..ObjectCounts::default() };
    }
    forecast(&mut plan.cost, &copy, catalog, request)?;
    Ok(Prepared { plan, copy, named, stages: layout.stages().sizes(), objects: counts, notes })
}

/// What is said of state that every data rank has of its own: on the command line, then in the rules file, then in the checkpoint.
fn scheme(catalog: &Catalog, request: &Request) -> Result<RankScheme> {
    let file = request.naming.rules.as_deref().map(Rules::from_toml).transpose();
    let file = file.map_err(|e| Error::incompatible(format!("rules file: {e}")).caused_by(e))?;
    let given = request.rank_state.clone().before(file.map(|rules| rules.rank_state).unwrap_or_default());
    // Without any value that rules could be about, what is recorded by that name is of no interest.
    Ok(if catalog.objects.is_empty() { given } else { given.before(catalog.rank_scheme()?) })
}

/// The mesh to record. What belongs to single ranks stays as it is where no mesh is asked for; one that was not its own would then
/// be taken for its own later, so none is recorded.
fn recorded(
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

/// What a target keeps beside tensors and objects. Rules for rank state are kept, so that they need not be said again.
fn extra(catalog: &Catalog, request: &Request, scheme: &RankScheme) -> Result<Map<String, Value>> {
    let mut extra: Map<String, Value> =
        catalog.extra.clone().into_iter().chain(request.extra.clone()).collect();
    rank_state::record(scheme.clone(), &mut extra)?;
    Ok(extra)
}

/// The tensors that are wanted and their positions in the source.
struct Chosen {
    registry: Registry,
    positions: Vec<usize>,
}

fn choose(
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

/// The target mesh, once what the user says of the source's mesh is checked.
fn meshes(catalog: &Catalog, request: &Request) -> Result<Mesh> {
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

fn one_rank() -> Result<Mesh> {
    "1x1x1".parse().map_err(|e: reshard::MeshError| Error::internal(e.to_string()))
}

/// Names and placement of the target, and the region map of each tensor that has one.
fn translate(
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

/// Takes out what the format does not hold, from the spec and from its sources alike, and says so.
fn fitted(
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

fn sources(
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

/// The tensors as the target has them: cast, where that is asked for.
fn as_written<'r>(registry: &'r Registry, request: &Request) -> Result<Cow<'r, Registry>> {
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

fn targets(registry: &Registry, layout: &Layout, request: &Request) -> Result<Vec<TargetTensor>> {
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

fn cost(
    catalog: &Catalog,
    request: &Request,
    chosen: &Chosen,
    named: &Named,
    layout: &Layout,
) -> Result<Cost> {
    let chunks = |at: usize| -> Cow<'_, [Region]> {
        let source = chosen.positions.get(at).and_then(|&at| catalog.tensors.get(at));
        Cow::Owned(source.map(|s| s.chunks.regions().collect()).unwrap_or_default())
    };
    let from = request.from.as_ref().or(catalog.mesh.as_ref());
    Cost::count(&named.registry, from, layout, chunks).map_err(|e| {
        Error::new(ErrorKind::Corrupt, e.to_string())
            .caused_by(e)
            .hint("the checkpoint does not hold every element exactly once; `ckpt verify` lists all gaps and overlaps")
    })
}

/// What the engine will take for it.
fn forecast(cost: &mut Cost, copy: &CopyPlan, catalog: &Catalog, request: &Request) -> Result<()> {
    let file_bytes = if request.format == Format::Native { native::BLOB } else { u64::MAX };
    let forecast = Forecast::of(copy, catalog, &request.run, file_bytes)?;
    cost.passes = forecast.passes;
    cost.peak_memory = forecast.peak_memory;
    cost.read_amplification = forecast.read_amplification;
    cost.enough_memory = forecast.enough_memory;
    Ok(())
}

fn rules_of(registry: &Registry) -> Vec<TensorRule> {
    let of = |entry: &Entry| Some(TensorRule { tensor: entry.id(), rule: entry.placement.clone()? });
    registry.entries().iter().filter_map(of).collect()
}

/// The source as the plan names it.
fn source_of(catalog: &Catalog, request: &Request) -> Result<String> {
    let identity = identity(catalog)?;
    Ok(match &request.stamp {
        None => identity.to_string(),
        Some(stamp) => Sha256Digest::of(format!("{identity} {stamp}").as_bytes()).to_string(),
    })
}

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

fn digest(
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
