//! What a rank sends, by kind, beside what planning counts for it.
//!
//! Planning counts by formula, from sizes; the rank was counted while it ran. They differ by what formulas leave out: padding of
//! shards, norms that every tensor rank holds whole, the few numbers of the loss.

use std::fmt;

use serde::Serialize;

use super::Job;
use crate::{
    Result,
    config::{Mode, Numbers},
    mesh::Coordinates,
    plan::{self, Cut, Order, Policy},
    stage::Keep,
    transport::fake::{Flow, Flows},
};

/// One kind of traffic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// What.
    pub what: &'static str,
    /// Calls.
    pub count: u64,
    /// Bytes that were counted.
    pub bytes: u64,
    /// Bytes by planning's formulas; none where it has none.
    pub planned: Option<f64>,
}

impl Line {
    const fn new(what: &'static str, flow: Flow, planned: Option<f64>) -> Self {
        Self { what, count: flow.count, bytes: flow.bytes, planned }
    }
}

/// All kinds, of the rank at `at`.
pub(super) fn lines(job: &Job, at: Coordinates, flows: &Flows) -> Result<Vec<Line>> {
    let planned = Planned::new(job, at)?;
    let group = |name| flows.of_group(name, None);
    let gathers = flows.of_group("dp_shard", Some("all_gather"));
    let mut reduced = flows.of_group("dp_shard", Some("exchange"));
    let mut across = group("dp_replicate");
    if job.config.sharding.data.shard == 1 {
        (reduced, across) = (across, reduced);
    }
    let none = Some(0.0);
    let own = if planned.pp > 1 { (planned.forward, planned.backward) } else { (none, none) };
    Ok(vec![
        Line::new("weights gathered (dp)", gathers, Some(planned.data.gather)),
        Line::new("gradients reduced (dp)", reduced, Some(planned.data.reduce)),
        Line::new("gradients across replicas (dp)", across, Some(planned.data.across)),
        Line::new("tensor parallelism (tp)", group("tp"), Some(planned.tensor)),
        Line::new("activations (pp)", flows.forward, own.0),
        Line::new("gradients of activations (pp)", flows.backward, own.1),
        Line::new("tied weights (pp)", group("pp"), None),
        Line::new("words of all ranks", group("world"), None),
    ])
}

struct Planned {
    data: plan::Traffic,
    tensor: f64,
    pp: u64,
    forward: Option<f64>,
    backward: Option<f64>,
}

impl Planned {
    #[expect(clippy::cast_precision_loss, reason = "planning counts in floating point")]
    fn new(job: &Job, at: Coordinates) -> Result<Self> {
        let values = &job.config.config;
        let (model, strategy) = (plan::facts(&values.model)?, plan::strategy(values));
        let (mesh, data) = (values.parallelism.mesh, job.config.sharding.data);
        let (dp, pp, tp) = (mesh.dp as u64, mesh.pp as u64, mesh.tp as u64);
        let cut = Cut { dp, pp, tp, shard: data.shard as u64, strategy, order: Order::DpPpTp };
        let width = |numbers| if numbers == Numbers::Bfloat16 { 2.0 } else { 4.0 };
        let weights = Policy {
            compute: width(values.training.mixed_precision_param),
            reduce: width(values.training.mixed_precision_reduce),
            ..plan::policy(values)
        };
        let microbatches = job.config.batches.microbatches;
        let own = Own::new(job, at.pp);
        let traffic = |params: u64| {
            plan::data_parallel(&cut, strategy, params as f64 / tp as f64, &weights, microbatches)
        };
        let (mut both, once) = (traffic(own.both), traffic(own.forward));
        // What backward does not ask for is gathered for forward alone.
        both.gather += if once.gathers > 1.0 { once.gather / 2.0 } else { once.gather };
        both.reduce += once.reduce;
        both.across += once.across;
        let tokens = values.training.micro_batch * values.training.seq_len;
        let carried = Policy { compute: 4.0, ..weights };
        let sums = |layers| plan::tensor_parallel(&model, &cut, &carried, layers, tokens, microbatches);
        // In gathers, or sums that leave each rank its share, of a hidden state: a sum of all is two. The embedding has one sum, and so has
        // the way back through the head; where tokens are cut, each is a pair of those, and the head's input is gathered again.
        let one = sums(1).forward / 4.0;
        let head = if carried.sequence { 3.0 } else { 2.0 };
        let ends = one * (if own.first { 2.0 } else { 0.0 } + if own.last { head } else { 0.0 });
        // A sum that is a tree over gathered parts moves N - 1 parts, where one in a ring moves 2 (N - 1) / N.
        let trees = values.training.mode == Mode::Exact && !carried.sequence;
        let tree = if trees { tp as f64 / 2.0 } else { 1.0 };
        let table = job.outline.program.table();
        let stages = table.placement.stages_of(at.pp);
        let sends = |to: fn(usize) -> Option<usize>| {
            let other = |stage: &usize| {
                to(*stage).and_then(|next| table.placement.rank_of(next)).is_some_and(|rank| rank != at.pp)
            };
            let count = stages.iter().filter(|stage| other(stage)).count() as u64;
            plan::pipeline_link(&model, &cut, &weights, count, tokens, microbatches)
        };
        Ok(Self {
            data: both,
            tensor: (sums(own.layers).total() + ends) * tree,
            pp,
            forward: Some(sends(|stage| stage.checked_add(1))),
            backward: Some(sends(|stage| stage.checked_sub(1))),
        })
    }
}

/// What a pipeline rank holds.
#[derive(Default)]
struct Own {
    layers: u64,
    first: bool,
    last: bool,
    /// Parameters of parts whose weights forward and backward ask for.
    both: u64,
    /// Of those that forward alone does.
    forward: u64,
}

impl Own {
    fn new(job: &Job, pp: usize) -> Self {
        let (model, parts) = (&job.outline.model, job.outline.parts_of_ranks());
        let mut own = Self::default();
        for part in parts.get(pp).into_iter().flatten().copied() {
            let Some(spec) = model.parts().get(part) else { continue };
            own.layers += u64::from(spec.layer.is_some());
            own.first |= part == 0;
            own.last |= part + 1 == model.parts().len();
            let extents = spec.params.iter().filter_map(|index| model.params().get(*index));
            let elements: u64 =
                extents.map(|it| it.shape.iter().map(|extent| extent.unsigned_abs()).product::<u64>()).sum();
            let back = model.backward_needs_weights(part) || job.outline.recompute.of(part) != Keep::All;
            *(if back { &mut own.both } else { &mut own.forward }) += elements;
        }
        own
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "bytes for people")]
        let counted = self.bytes as f64;
        write!(f, "{:<31}{:>6} x  {:>10}", self.what, self.count, plan::bytes(counted))?;
        match self.planned {
            None => Ok(()),
            Some(planned) if planned > 0.0 => {
                let by = 100.0 * (counted / planned - 1.0);
                write!(f, "   plan {:>10} ({by:+.1} %)", plan::bytes(planned))
            }
            Some(planned) => write!(f, "   plan {:>10}", plan::bytes(planned)),
        }
    }
}
