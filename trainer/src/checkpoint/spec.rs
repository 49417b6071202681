//! What a checkpoint of a run holds: parameters and both moments of each, where they lie, and what else is kept.

use dcp::{
    codec::Codecs,
    commit::{Finite, Label, Metrics, Seq},
    save::{Replicas, SavePlan, SaveSpec, Sharing},
};
use fqn::{Dtype, Entry, PlacementRule, Registry, Role, Shape, TensorId};
use reshard::{Mesh, Region, StageSplit};
use serde_json::{Map, Value};
use tch::Tensor;

use super::RunState;
use crate::{Error, Place, Result, fsdp::StateTensor};

/// The parts of a checkpoint that do not change from save to save.
#[derive(Debug, Clone)]
pub struct Described {
    run: Label,
    registry: Registry,
    mesh: Mesh,
    split: StageSplit,
    extra: Map<String, Value>,
    codecs: Codecs,
    share: bool,
    epoch: u64,
    parent: Option<Seq>,
}

impl Described {
    /// From the registry of the model's parameters, with their placement.
    ///
    /// # Errors
    /// `Internal` for a name that appears twice.
    pub fn new(run: Label, params: &Registry, mesh: Mesh, split: StageSplit) -> Result<Self> {
        Ok(Self {
            run,
            registry: with_moments(params)?,
            mesh,
            split,
            extra: Map::new(),
            codecs: Codecs::NONE,
            share: false,
            epoch: 0,
            parent: None,
        })
    }

    /// What readers of the checkpoint may want to know: the model's own configuration for `transformers`, the run's.
    #[must_use]
    pub fn with_extra(mut self, key: &str, value: Value) -> Self {
        self.extra.insert(key.to_owned(), value);
        self
    }

    /// How tensors are compressed, and whether unchanged ones refer to the checkpoint before.
    #[must_use]
    pub fn stored(mut self, codecs: Codecs, share: bool) -> Self {
        (self.codecs, self.share) = (codecs, share);
        self
    }

    /// The incarnation that saves, and the checkpoint that it went on from.
    #[must_use]
    pub const fn in_epoch(mut self, epoch: u64, parent: Option<Seq>) -> Self {
        (self.epoch, self.parent) = (epoch, parent);
        self
    }

    /// All tensors of a checkpoint.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The plan of a save after `state.step` steps; `attempt` tells attempts at it apart; `newest` is the run's newest
    /// checkpoint, to which what is unchanged may refer: all ranks give the same.
    ///
    /// # Errors
    /// `Incompatible` for tensors that do not fit the mesh.
    pub fn plan(&self, state: &RunState, attempt: u32, newest: Option<Seq>) -> Result<SavePlan> {
        let spec = SaveSpec {
            run: self.run.clone(),
            registry: self.registry.clone(),
            mesh: self.mesh.clone(),
            split: self.split.clone(),
            objects: vec![state.object()?],
            step: state.step,
            extra: self.extra.clone(),
            codecs: self.codecs.clone(),
            epoch: Some(self.epoch),
            parent: self.parent,
            // What is held in copies is small (norms, ties), and copies that drift apart would go unseen.
            replicas: Replicas::ALL,
            metrics: metrics(state),
            sharing: newest.filter(|_| self.share).map(Sharing::with),
            salt: format!("{}.{attempt}", self.epoch),
        };
        SavePlan::new(spec).place(format!("save of step {}", state.step))
    }
}

/// What retention can choose by: the loss of the last step. One that is not finite is no measure.
fn metrics(state: &RunState) -> Metrics {
    let last = state.losses.last().and_then(|(_, loss)| Finite::new(f64::from(*loss)).ok());
    let named = "loss".parse::<Label>().ok().zip(last);
    named.into_iter().collect()
}

/// Key of the run's configuration in the facts of a checkpoint.
pub const CONFIG: &str = "trainer.config";

/// Name of the slot that counts a parameter's updates, as torch's optimizers name it.
pub(crate) const STEP: &str = "step";

/// Every parameter, then both of its moments, then its count of updates.
fn with_moments(params: &Registry) -> Result<Registry> {
    let mut registry = Registry::new();
    for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq, Role::of_slot(STEP)] {
        for param in params.entries() {
            registry
                .push(slot(param, role.clone()))
                .map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
        }
    }
    Ok(registry)
}

/// The entry of a parameter's slot: moments lie as the parameter does, the count is on every rank of its stages.
fn slot(param: &Entry, role: Role) -> Entry {
    if role == Role::Param {
        return param.clone();
    }
    let counts = role == Role::of_slot(STEP);
    let shape = if counts { Shape::new(&[]) } else { param.shape.clone() };
    let mut entry = Entry::new(param.fqn.clone(), role, Dtype::F32, shape);
    entry.placement = param.placement.as_ref().map(|rule| {
        let mut whole = PlacementRule::default();
        whole.stage = rule.stage;
        if counts { whole } else { rule.clone() }
    });
    entry.layer = param.layer;
    entry
}

/// The counts of updates of the parameters that a rank holds something of.
pub(super) fn counts(held: &[StateTensor], step: u64) -> Result<Vec<StateTensor>> {
    let region = Region::new(&[], &[]).map_err(|error| Error::internal(error.to_string()))?;
    #[expect(clippy::cast_precision_loss, reason = "optimizers of others count in f32 too")]
    let value = step as f32;
    let count = |held: &StateTensor| {
        let id = TensorId { fqn: held.id.fqn.clone(), role: Role::of_slot(STEP) };
        let tensor = Tensor::f_from_slice(&[value])?.f_reshape([0_i64; 0])?;
        Ok(StateTensor { id, region: region.clone(), tensor, primary: held.primary })
    };
    held.iter().filter(|held| held.id.role == Role::Param).map(count).collect()
}
