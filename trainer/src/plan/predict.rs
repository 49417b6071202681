//! [`Prediction`]: tokens a second of a cut, from counted operations, link speeds and the simulated schedule.
//!
//! Assumptions, which reports print: computations reach `efficiency` of the card's rate; forward, input gradients and
//! weight gradients cost 2 operations for each parameter and token each, attention's scores 4·s·h·q forward and twice that
//! back; collectives of tensor ranks are never hidden, those of data ranks as far as `overlap` of the computing time goes;
//! all stages are as slow as the slowest. The optimizer, data loading and saves are left out.

use serde::Serialize;

use super::{
    Axis, Batch, Bubble, Cluster, Costs, Cut, ModelFacts, Pipeline, Policy, Strategy, memory::Share,
    pipeline::stages_of_ranks, split_or_given, traffic,
};
use crate::Result;

/// Where a step's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Seconds {
    /// Computing, on the slowest rank.
    pub compute: f64,
    /// Collectives of tensor ranks, on the slowest rank.
    pub tensor: f64,
    /// Waiting in the pipeline: fill, drain and transfers.
    pub bubble: f64,
    /// Data-parallel traffic.
    pub data: f64,
    /// Of that, what nothing hides.
    pub exposed: f64,
    /// The whole step.
    pub step: f64,
}

/// What a cut is expected to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Tokens a second, of all ranks.
    pub tokens_per_second: f64,
    /// The model's own operations over those that the cards could do.
    pub mfu: f64,
    /// Time.
    pub seconds: Seconds,
    /// Share of the step that is communication that nothing hides.
    pub communication: f64,
    /// Idle time of the pipeline.
    pub bubble: Bubble,
}

/// A mesh's pipeline: shares of its ranks and their times; the same for every strategy.
#[derive(Debug, Clone)]
pub(super) struct Timed {
    pub(super) shares: Vec<Share>,
    pub(super) pipeline: Pipeline,
    compute: f64,
    tensor: f64,
}

/// Layers of every rank, and the schedule in time.
pub(super) fn timed(
    model: &ModelFacts,
    cluster: &Cluster,
    cut: &Cut,
    policy: &Policy,
    (batch, seq): (Batch, u64),
    schedule: &str,
    split: Option<&[u64]>,
) -> Result<Timed> {
    let stages = stages_of_ranks(schedule, cut.pp, batch.microbatches)?;
    let mut shares = shares(model, &stages, split)?;
    let tokens = batch.micro * seq;
    let of = |share: &Share| Work::of(model, cluster, cut, policy, share, (tokens, seq));
    let slowest = shares.iter().map(of).max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default();
    let pipe = cut.groups(Axis::Pp, cluster);
    let rate = if pipe.within_node == pipe.groups.len() { cluster.intra } else { cluster.inter };
    let transfer = traffic::pipeline_link(model, cut, policy, 1, tokens, 1) / rate;
    let times = (slowest.forward, slowest.input, slowest.weight, transfer);
    let pipeline = Pipeline::new(schedule, (cut.pp, batch.microbatches), times)?;
    for (share, live) in shares.iter_mut().zip(&pipeline.live) {
        share.live = *live;
    }
    let microbatches = batch.microbatches as f64;
    let tensor = slowest.tensor * microbatches;
    Ok(Timed { shares, pipeline, compute: slowest.total() * microbatches - tensor, tensor })
}

/// One microbatch on one rank.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    forward: f64,
    input: f64,
    weight: f64,
    /// Of these, collectives of tensor ranks.
    tensor: f64,
}

impl Work {
    fn of(
        model: &ModelFacts,
        cluster: &Cluster,
        cut: &Cut,
        policy: &Policy,
        share: &Share,
        (tokens, seq): (u64, u64),
    ) -> Self {
        let costs = Costs::operations(model, seq);
        let linear = 2.0 * model.layer as f64;
        let rate = cluster.flops * cluster.efficiency * cut.tp as f64 / tokens as f64;
        let (layers, head) = (share.layers as f64, if share.last { costs.head } else { 0.0 });
        let forward = (layers * costs.layer + head) / rate;
        let input = (layers * (2.0 * costs.layer - linear) + head) / rate;
        let weight = (layers * linear + head) / rate;
        let group: Vec<u64> = (0..cut.tp).map(|tp| cut.rank([0, 0, tp])).collect();
        let tensor = traffic::tensor_parallel(model, cut, policy, share.layers, tokens, 1);
        let seconds = |bytes: f64| bytes / cluster.rate(&group);
        let (there, back, late) = (seconds(tensor.forward), seconds(tensor.input), seconds(tensor.weight));
        let share_again = policy.recompute.layers_again();
        let (again, again_there) = (share_again * forward, share_again * there);
        Self {
            forward: forward + there,
            input: input + back + again + again_there,
            weight: weight + late,
            tensor: there + back + late + again_there,
        }
    }

    fn total(&self) -> f64 {
        self.forward + self.input + self.weight
    }
}

/// Layers of each pipeline rank: those that are given, or by the rule that the trainer splits by.
fn shares(model: &ModelFacts, ranks: &[Vec<usize>], given: Option<&[u64]>) -> Result<Vec<Share>> {
    let stages = ranks.iter().map(Vec::len).sum::<usize>() as u64;
    let split = split_or_given(model.sizes.layers, stages, given)?;
    let share = |(pp, own): (usize, &Vec<usize>)| Share {
        pp: pp as u64,
        layers: own.iter().filter_map(|stage| split.get(*stage)).sum(),
        first: own.contains(&0),
        last: own.iter().any(|stage| *stage as u64 + 1 == stages),
        live: 0,
        stages: own.len() as u64,
    };
    Ok(ranks.iter().enumerate().map(share).collect())
}

/// The speed of a cut, whose pipeline is known.
pub(super) fn predict(
    model: &ModelFacts,
    cluster: &Cluster,
    cut: &Cut,
    policy: &Policy,
    (batch, seq): (Batch, u64),
    timed: &Timed,
) -> Prediction {
    let params = |share: &Share| model.stage(share.layers, share.first, share.last) as f64 / cut.tp as f64;
    let most = timed.shares.iter().map(params).fold(0.0, f64::max);
    let data = data_seconds(cluster, cut, policy, most, batch.microbatches);
    let exposed = (data - cluster.overlap * timed.compute).max(0.0);
    let step = timed.pipeline.makespan + exposed;
    let tokens = (batch.global * seq) as f64;
    let sizes = &model.sizes;
    let table = if sizes.tied { 0 } else { model.embedding };
    let own = 6.0 * (model.params() - table) as f64
        + 12.0 * (sizes.layers * sizes.heads * sizes.head_dim * seq) as f64;
    let seconds = Seconds {
        compute: timed.compute,
        tensor: timed.tensor,
        bubble: (timed.pipeline.makespan - timed.compute - timed.tensor).max(0.0),
        data,
        exposed,
        step,
    };
    Prediction {
        tokens_per_second: tokens / step,
        mfu: own * tokens / step / (cluster.flops * cut.ranks() as f64),
        communication: (timed.tensor + exposed) / step,
        seconds,
        bubble: timed.pipeline.bubble,
    }
}

fn data_seconds(cluster: &Cluster, cut: &Cut, policy: &Policy, params: f64, microbatches: u64) -> f64 {
    let traffic = traffic::data_parallel(cut, cut.strategy, params, policy, microbatches);
    let shard = match cut.strategy {
        Strategy::NoShard => (0..cut.dp).map(|dp| cut.rank([dp, 0, 0])).collect(),
        _ => cut.shard_group(),
    };
    (traffic.gather + traffic.reduce) / cluster.rate(&shard)
        + traffic.across / cluster.rate(&cut.replica_group())
}
