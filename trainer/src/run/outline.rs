//! [`Outline`]: what a configuration says of a model on a mesh, without data and before any rank: parameters and their
//! places, stages, the program.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use fqn::{Registry, baseline};
use reshard::{Mesh, StageSplit, Stages};
use schedule::{Program, Shape, Step};

use super::job::positive;
use crate::{
    Error, Place, Result,
    config::{self, Resolved},
    mesh::{Coordinates, MeshShape},
    model::{Family, Model},
    placement,
    stage::{self, Account, Recompute, Which},
};

/// A model on a mesh.
#[derive(Debug)]
pub struct Outline {
    pub(super) family: Family,
    pub(super) model: Arc<dyn Model>,
    /// Its parameters, with placements.
    pub(super) registry: Registry,
    pub(super) mesh: MeshShape,
    /// The mesh as the geometry has it.
    pub(super) geometry: Mesh,
    /// Where layers lie on the mesh, as checkpoints tell it.
    pub(super) split: StageSplit,
    /// The stage of each layer.
    layers: Stages,
    /// Parts of each stage.
    pub(super) stages: Vec<Range<usize>>,
    pub(super) program: Program,
    /// What stays of each part's forward.
    pub(super) recompute: Recompute,
}

impl Outline {
    /// Decides it.
    ///
    /// # Errors
    /// `Config` for what does not fit together.
    pub fn new(config: &Resolved) -> Result<Self> {
        let values = &config.config;
        let family: Family = values.model.kind.parse()?;
        let model = family.build(values.model.keys.clone())?;
        let registry = placement::registry(family, &*model)?;
        let (mesh, parallelism) = (values.parallelism.mesh, &values.parallelism);
        let microbatches = positive(config.batches.microbatches, "training.microbatches")?;
        let written = super::program::written(parallelism, microbatches, config.sharding.gather)?;
        let count = match &written {
            Some(program) => program.table().stages(),
            None => mesh.pp * positive(parallelism.stages_per_rank, "parallelism.stages_per_rank")?,
        };
        let sizes = sizes(&parallelism.stage_split, &registry, count)?;
        let layers = resolved(&StageSplit::Explicit(sizes.clone()), &registry, count)?;
        let stages = (0..count).map(|index| stage::parts_of_stage(&*model, &layers, index));
        let stages: Vec<Range<usize>> = stages.collect::<Result<_>>().place("stages")?;
        let again = &values.activation_checkpoint;
        let recompute = Recompute::new(&*model, which(again)?, again.queue);
        let accounts: Vec<Account> =
            stages.iter().map(|parts| Account::of(&*model, parts, &recompute)).collect();
        let shape = Shape { stages: count, ranks: mesh.pp, microbatches };
        let program = match written {
            Some(program) => program,
            None => super::program::program(parallelism, shape, config.sharding.gather, &accounts)?,
        };
        check_ties(&*model, &stages, &program, parallelism.ties)?;
        let split = placed(parallelism, sizes, &program);
        let geometry = config.sharding.data.geometry(mesh)?;
        Ok(Self { family, model, registry, mesh, geometry, split, layers, stages, program, recompute })
    }

    /// The names on each stage, and that together they are all of the model's.
    ///
    /// # Errors
    /// `Config` for names that no stage has.
    pub fn inventory(&self) -> Result<stage::Inventory> {
        stage::inventory(&*self.model, &self.layers)
    }

    /// The baseline of the unsplit model: what `ckpt fqn check` holds a checkpoint to.
    ///
    /// # Errors
    /// Never for a model that was built.
    pub fn baseline(&self) -> Result<String> {
        baseline::write(&self.registry).map_err(|error| Error::internal(error.to_string()).caused_by(error))
    }

    /// What each pipeline rank does in a step, communication included.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// What each stage has before it ran: the elements of its parameters, and how many of their gradients a split backward
    /// can put off.
    #[must_use]
    pub fn accounts(&self) -> Vec<Account> {
        let account = |parts: &Range<usize>| Account::of(&*self.model, parts, &self.recompute);
        self.stages.iter().map(account).collect()
    }

    /// What people should know if the schedule splits backwards of stages that can't put off all of their weight gradients.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let splits = self.program.table().ranks.iter().flatten().any(|cell| matches!(cell.step, Step::W(_)));
        let accounts = self.accounts();
        if !splits || accounts.iter().all(|account| account.splittable == account.elements) {
            return None;
        }
        let shares = accounts.iter().enumerate();
        let shares =
            shares.map(|(stage, it)| format!("stage {stage}: {:.0} %", 100.0 * it.splittable_share()));
        Some(format!(
            "the schedule puts off weight gradients to its W, but layers that are computed again keep nothing to make them \
             of: their I does the work of both. Of the parameters can be put off, {}. For more, set \
             activation_checkpoint.queue=true, which keeps the inputs of linear layers from I to W, or checkpoint fewer layers",
            shares.collect::<Vec<_>>().join(", ")
        ))
    }

    /// The pairs of ranks that exchange messages in a step, in order: the same on every rank.
    pub(super) fn neighbours(&self) -> Vec<(usize, usize)> {
        let table = self.program.table();
        let rank_of = |stage: usize| table.placement.rank_of(stage);
        let on_pp = (1..table.stages()).filter_map(|stage| Some((rank_of(stage - 1)?, rank_of(stage)?)));
        let on_pp: BTreeSet<_> = on_pp.filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect();
        let MeshShape { dp, tp, .. } = self.mesh;
        let places = (0..dp).flat_map(|dp| (0..tp).map(move |tp| (dp, tp)));
        let rank = |pp, (dp, tp): (usize, usize)| self.mesh.rank(Coordinates { dp, pp, tp });
        let pairs = places.flat_map(|at| on_pp.iter().map(move |(a, b)| (rank(*a, at), rank(*b, at))));
        pairs.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The parts that each pipeline rank runs.
    pub(super) fn parts_of_ranks(&self) -> Vec<Vec<usize>> {
        let placement = &self.program.table().placement;
        let parts =
            |rank| placement.stages_of(rank).into_iter().filter_map(|stage| self.stages.get(stage).cloned());
        (0..self.mesh.pp).map(|rank| parts(rank).flatten().collect()).collect()
    }
}

/// A parameter on two pipeline ranks is two copies, which stay equal only because their gradients are added: whoever ties knows that it
/// costs a message between the ends of the pipeline, so it is asked for.
fn check_ties(
    model: &dyn Model,
    stages: &[Range<usize>],
    program: &Program,
    ties: config::Ties,
) -> Result<()> {
    if ties == config::Ties::Sync {
        return Ok(());
    }
    let placement = &program.table().placement;
    let mut first: BTreeMap<usize, usize> = BTreeMap::new();
    for (stage, parts) in stages.iter().enumerate() {
        let rank = placement.rank_of(stage).unwrap_or(0);
        for index in model.parts().get(parts.clone()).unwrap_or_default().iter().flat_map(|part| &part.params)
        {
            let before = *first.entry(*index).or_insert(rank);
            let Some(spec) = model.params().get(*index).filter(|_| before != rank) else { continue };
            let megabytes = spec.shape.iter().product::<i64>() as f64 * 4e-6;
            return Err(Error::config(format!(
                "{} is tied: pipeline ranks {before} and {rank} (stage {stage}) both use it, and parallelism.ties is \"reject\"",
                spec.fqn
            ))
            .hint(format!(
                "parallelism.ties = \"sync\" lets both hold it, with the bits of one process: they exchange its gradient of {megabytes:.1} MB once a \
                 step, and checkpoints hold it once; or untie it (model.tie_embeddings = false); or take a schedule in a V, whose ends are on one rank"
            )));
        }
    }
    Ok(())
}

fn resolved(split: &StageSplit, registry: &Registry, count: usize) -> Result<Stages> {
    split.resolve(registry, count as u64).map_err(|error| Error::config(error.to_string()).caused_by(error))
}

/// Layers of each of `count` stages. Evenly, as long as there are enough; else embedding and head count as a layer each, and
/// the stages that have them get one less: maybe none (`TorchTitan`'s rule).
fn sizes(split: &config::StageSplit, registry: &Registry, count: usize) -> Result<Vec<u64>> {
    if let config::StageSplit::Layers(layers) = split {
        return Ok(layers.clone());
    }
    let layers =
        registry.entries().iter().filter_map(|entry| entry.layer).max().map_or(0, |last| last as usize + 1);
    if layers >= count {
        return Ok(resolved(&StageSplit::Auto, registry, count)?.sizes());
    }
    let all = layers + 2;
    if all < count {
        return Err(Error::config(format!("{layers} layers, embedding and head do not fill {count} stages"))
            .hint("choose fewer pipeline ranks or stages per rank"));
    }
    let size = |stage: usize| {
        let own = all / count + usize::from(stage < all % count);
        (own - usize::from(stage == 0 || stage + 1 == count)) as u64
    };
    Ok((0..count).map(size).collect())
}

/// Where layers lie on the mesh: in order, unless ranks run several stages or they lie otherwise.
fn placed(parallelism: &config::Parallelism, sizes: Vec<u64>, program: &Program) -> StageSplit {
    let placement = &program.table().placement;
    let rank = |stage: usize| placement.rank_of(stage).unwrap_or(0);
    if placement.stages() == placement.ranks() && (0..placement.stages()).all(|stage| rank(stage) == stage) {
        let even = parallelism.stage_split == config::StageSplit::Auto && !sizes.contains(&0);
        return if even { StageSplit::Auto } else { StageSplit::Explicit(sizes) };
    }
    StageSplit::Placed(
        sizes.into_iter().enumerate().map(|(stage, size)| (size, rank(stage) as u64)).collect(),
    )
}

/// Which layers are computed again.
fn which(values: &config::ActivationCheckpoint) -> Result<Which> {
    use config::Recomputed;
    Ok(match (values.mode, values.selective.as_str()) {
        (Recomputed::None, _) => Which::None,
        (Recomputed::Full, _) => Which::Full,
        (Recomputed::Selective, "op") => Which::ByOperation,
        (Recomputed::Selective, every) => {
            let every = every.parse::<u64>().ok().filter(|every| *every > 0);
            Which::Every(every.ok_or_else(|| {
                Error::config(format!(
                    "activation_checkpoint.selective = {:?} is neither op nor a number",
                    values.selective
                ))
            })?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(layers: i64) -> Registry {
        let sizes = format!("dim=32\nlayers={layers}\nheads=4\nffn=64\nvocab=48\nmax_length=16");
        let model = Family::Llama.build(toml::from_str(&sizes).unwrap()).unwrap();
        placement::registry(Family::Llama, &*model).unwrap()
    }

    #[test]
    fn stages_are_even_and_with_too_few_layers_embedding_and_head_count_as_one_each() {
        let auto = |layers, count| {
            sizes(&config::StageSplit::Auto, &registry(layers), count).map_err(|it| it.to_string())
        };
        assert_eq!(auto(6, 4).unwrap(), [2, 2, 1, 1]);
        assert_eq!(auto(6, 6).unwrap(), [1; 6]);
        assert_eq!(auto(6, 7).unwrap(), [1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(auto(6, 8).unwrap(), [0, 1, 1, 1, 1, 1, 1, 0]);
        for (layers, count) in (1..9).flat_map(|layers| (1..=layers + 2).map(move |count| (layers, count))) {
            let planned = crate::plan::split_as_trained(layers, count).unwrap();
            let found = auto(i64::try_from(layers).unwrap(), usize::try_from(count).unwrap()).unwrap();
            assert_eq!(
                planned, found,
                "plans are made for what is trained: {layers} layers on {count} stages"
            );
        }
        assert_eq!(auto(6, 9).unwrap_err(), "6 layers, embedding and head do not fill 9 stages");
        assert_eq!(sizes(&config::StageSplit::Layers(vec![0, 6]), &registry(6), 2).unwrap(), [0, 6]);
    }
}
