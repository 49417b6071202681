//! [`Outline`]: what a configuration says of a model on a mesh, without data and before any rank: parameters and their
//! places, stages, the program.

use std::{ops::Range, sync::Arc};

use fqn::{Registry, baseline};
use reshard::{Mesh, StageSplit};
use schedule::{Program, Shape};

use super::job::positive;
use crate::{
    Error, Place, Result,
    config::{self, Resolved},
    mesh::MeshShape,
    model::{Family, Model},
    placement, stage,
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
    pub(super) split: StageSplit,
    /// Parts of each stage.
    pub(super) stages: Vec<Range<usize>>,
    pub(super) program: Program,
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
        let mesh = values.parallelism.mesh;
        let split = match &values.parallelism.stage_split {
            config::StageSplit::Auto => StageSplit::Auto,
            config::StageSplit::Layers(layers) => StageSplit::Explicit(layers.clone()),
        };
        let count = mesh.pp * positive(values.parallelism.stages_per_rank, "parallelism.stages_per_rank")?;
        let layers =
            split.resolve(&registry, count as u64).map_err(|error| Error::config(error.to_string()))?;
        let stages = (0..count).map(|index| stage::parts_of_stage(&*model, &layers, index));
        let stages = stages.collect::<Result<_>>().place("stages")?;
        let microbatches = positive(config.batches.microbatches, "training.microbatches")?;
        let shape = Shape { stages: count, ranks: mesh.pp, microbatches };
        let table = schedule::generate(schedule::named(&values.parallelism.schedule)?, shape)?;
        let program = schedule::lower(&table, config.sharding.gather)?;
        let geometry = config.sharding.data.geometry(mesh)?;
        Ok(Self { family, model, registry, mesh, geometry, split, stages, program })
    }

    /// The names on each stage, and that together they are all of the model's.
    ///
    /// # Errors
    /// `Config` for names that no stage has.
    pub fn inventory(&self) -> Result<stage::Inventory> {
        let layers = self
            .split
            .resolve(&self.registry, self.stages.len() as u64)
            .map_err(|error| Error::config(error.to_string()))?;
        stage::inventory(&*self.model, &layers)
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

    /// The parts that each pipeline rank runs.
    pub(super) fn parts_of_ranks(&self) -> Vec<Vec<usize>> {
        let placement = &self.program.table().placement;
        let parts =
            |rank| placement.stages_of(rank).into_iter().filter_map(|stage| self.stages.get(stage).cloned());
        (0..self.mesh.pp).map(|rank| parts(rank).flatten().collect()).collect()
    }
}
