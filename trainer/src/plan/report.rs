//! [`Question`] and [`Report`]: what planning is asked, and what it answers, as data. `answer` makes the one of the other, `text` writes it for
//! people.

use serde::Serialize;

use super::{
    Article, Balance, Bubble, Candidate, Cluster, Misfit, ModelFacts, Order, Policy, Strategy, Traffic,
};
use crate::mesh::MeshShape;

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The model.
    pub model: ModelFacts,
    /// The machines.
    pub cluster: Cluster,
    /// How numbers are held.
    pub policy: Policy,
    /// One mesh, to look at closely; `None` ranks all.
    pub mesh: Option<MeshShape>,
    /// One strategy; `None` takes the fastest that fits.
    pub strategy: Option<Strategy>,
    /// How coordinates become ranks.
    pub order: Order,
    /// The schedule.
    pub schedule: String,
    /// Sequences of a step.
    pub global: u64,
    /// Sequences of a microbatch.
    pub micro: u64,
    /// Tokens of a sequence.
    pub seq: u64,
    /// Microbatches as the user says; checked against the identity.
    pub microbatches: Option<u64>,
    /// Layers and seconds of each stage of a run, to balance by.
    pub measured: Option<Vec<(u64, f64)>>,
    /// Layers of each stage, where they are given.
    pub split: Option<Vec<u64>>,
    /// How many meshes are listed.
    pub top: usize,
}

/// A ranked mesh.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranked {
    /// `4x2x8`.
    pub mesh: String,
    /// The cut and its figures.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Bytes of the fullest rank.
    pub peak: f64,
}

/// A mesh that is out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Excluded {
    /// `4x2x8`.
    pub mesh: String,
    /// In words.
    pub said: String,
    /// What to do.
    pub remedy: String,
    /// Why.
    pub misfit: Misfit,
}

/// One mesh, closely.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Closely {
    /// The cut and its figures.
    pub candidate: Candidate,
    /// Why it does not fit into memory, if it does not.
    pub misfit: Option<Misfit>,
    /// The articles' figures, as they are.
    pub article: Article,
    /// The same with the pipeline forgotten, as one article prints them.
    pub article_without_pipeline: Article,
    /// Data-parallel traffic of the fullest slice, under each strategy.
    pub data: Vec<Traffic>,
    /// Bytes a rank sends for tensor parallelism in a step.
    pub tensor: f64,
    /// Bytes over a boundary between stages in a step, each way.
    pub pipeline: f64,
    /// The schedule in units, F = I = W: what can be compared with tables.
    pub unit_bubble: Bubble,
    /// Layers of each stage as they will be, counted in parameters.
    pub even: Balance,
    /// Why so: configured, or the trainer's rule.
    pub even_by: &'static str,
    /// And by cost: counted operations, or what was measured.
    pub balanced: Balance,
    /// What `balanced` went by.
    pub balanced_by: &'static str,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model.
    pub model: ModelFacts,
    /// Its parameters.
    pub params: u64,
    /// The machines.
    pub cluster: Cluster,
    /// How numbers are held.
    pub policy: Policy,
    /// The schedule.
    pub schedule: String,
    /// Sequences of a step, of a microbatch, tokens of a sequence.
    pub batch: (u64, u64, u64),
    /// 16 bytes a parameter.
    pub state: f64,
    /// Fewest cards that hold it.
    pub cards: u64,
    /// Tensor degrees that divide the model.
    pub tensor_degrees: Vec<u64>,
    /// Layers whose state fits on one card, and the stages that follow.
    pub layers_on_one: u64,
    /// Stages: as many as needed, no more.
    pub stages: u64,
    /// Microbatches to begin with for so many stages: 4·P, and at least 2·P.
    pub microbatches: (u64, u64),
    /// The mesh that was asked for.
    pub asked: Option<Closely>,
    /// Meshes that fit, fastest first.
    pub ranked: Vec<Ranked>,
    /// How many fit.
    pub fitting: usize,
    /// Meshes that do not.
    pub excluded: Vec<Excluded>,
}

impl Report {
    /// Whether what was asked for can be: the mesh, or any.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.asked.as_ref().map_or(self.fitting > 0, |asked| asked.misfit.is_none())
    }
}
