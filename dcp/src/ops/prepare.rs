//! From a source and a request to a plan: which tensors, under which names, cut into which boxes, and what that costs.
//!
//! ```text
//!  catalog ─► select ─► name (placement) ─► translate (dialect, region maps) ─► lay out on the mesh ─► Prepared
//! ```
//!
//! The same source and request give the same plan, and the plan's digest covers everything that it depends on: a
//! rerun recognises its own unfinished work by it.
//!
//! | module | what |
//! |---|---|
//! | `request` | what a user asks for |
//! | `meshes` | the mesh to lay out for, and the one to record |
//! | `choice` | the tensors that are wanted, their names, and where in the source each lies |
//! | `target` | the tensors as the format holds them |
//! | `identity` | what tells one source, and one plan, from another |

mod choice;
mod identity;
mod meshes;
mod request;
mod target;

use std::borrow::Cow;

use fqn::{Entry, Registry, preset::Rules};
use reshard::{
    Cost, Layout, Plan, Region,
    plan::{PLAN_VERSION, TensorRule},
};
use serde_json::{Map, Value};

pub use identity::identity;
pub use request::{Names, Part, Request, Select};

use super::{
    naming::Named,
    objects::{objects, tensors_left},
};
use crate::{
    Catalog, Error, ErrorKind, Format, Result, TargetSpec,
    engine::{CopyPlan, Forecast},
    formats::native,
    rank_state::{self, ObjectCounts, RankScheme},
};
use choice::{Chosen, choose, sources, translate};
use identity::{digest, source_of};
use meshes::{meshes, one_rank, recorded};
use target::{as_written, fitted, targets};

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

/// What a target keeps beside tensors and objects. Rules for rank state are kept, so that they need not be said again.
fn extra(catalog: &Catalog, request: &Request, scheme: &RankScheme) -> Result<Map<String, Value>> {
    let mut extra: Map<String, Value> =
        catalog.extra.clone().into_iter().chain(request.extra.clone()).collect();
    rank_state::record(scheme.clone(), &mut extra)?;
    Ok(extra)
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
