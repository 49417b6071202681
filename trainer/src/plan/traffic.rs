//! Bytes on the links: per rank and step for groups, per link and step between stages.
//!
//! Invariant: ring algorithms are assumed, so that a collective over N ranks moves (N−1)/N of its data through each rank
//! (twice that for an all-reduce); this grows towards a limit with N, only the sum over all ranks grows with their number.

use serde::Serialize;

use super::{Cut, ModelFacts, Policy, Strategy};

/// Bytes that one rank sends for its data-parallel groups in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    /// The strategy.
    pub strategy: Strategy,
    /// Gathering weights.
    pub gather: f64,
    /// Reducing gradients within a shard group, or over all where nothing is sharded.
    pub reduce: f64,
    /// Reducing shards over copies (`HYBRID_SHARD`).
    pub across: f64,
    /// The whole as a multiple of the slice's bytes times (N−1)/N, where all is in one width and there is one microbatch:
    /// 2 or 3.
    pub multiple: f64,
    /// How often weights are gathered in a step: twice for each microbatch, or once where they are kept.
    pub gathers: f64,
}

impl Traffic {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.gather + self.reduce + self.across
    }
}

fn ring(ranks: u64) -> f64 {
    let ranks = ranks.max(1) as f64;
    (ranks - 1.0) / ranks
}

/// The data-parallel traffic of a rank with `params` parameters, under `cut`'s groups but with `strategy`.
#[must_use]
pub fn data_parallel(
    cut: &Cut,
    strategy: Strategy,
    params: f64,
    policy: &Policy,
    microbatches: u64,
) -> Traffic {
    let (weights, grads) = (policy.compute * params, policy.reduce * params);
    // Kept weights are gathered once a step, whatever the strategy; else once for each use and microbatch.
    let times = microbatches.max(1) as f64;
    let gathers = if policy.keep { 1.0 } else { 2.0 * times };
    let shard = match strategy {
        Strategy::HybridShard => cut.shard,
        _ => cut.dp,
    };
    let n = ring(shard);
    match strategy {
        Strategy::NoShard => Traffic {
            strategy,
            gather: 0.0,
            reduce: 2.0 * grads * n,
            across: 0.0,
            multiple: 2.0,
            gathers: 0.0,
        },
        Strategy::ShardGradOp => Traffic {
            strategy,
            gather: weights * n,
            reduce: grads * n,
            across: 0.0,
            multiple: 2.0,
            gathers: 1.0,
        },
        Strategy::FullShard => Traffic {
            strategy,
            gather: weights * n * gathers,
            reduce: grads * n,
            across: 0.0,
            multiple: 3.0,
            gathers,
        },
        Strategy::HybridShard => Traffic {
            strategy,
            gather: weights * n * gathers,
            reduce: grads * n,
            across: 2.0 * (grads / shard.max(1) as f64) * ring(cut.dp / shard.max(1)),
            multiple: 3.0,
            gathers,
        },
    }
}

/// Bytes that one rank sends for tensor parallelism in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TensorTraffic {
    /// In forwards.
    pub forward: f64,
    /// For gradients of inputs, without what is computed again there.
    pub input: f64,
    /// For gradients of weights.
    pub weight: f64,
}

impl TensorTraffic {
    /// The sum.
    #[must_use]
    pub fn total(self) -> f64 {
        self.forward + self.input + self.weight
    }
}

/// Bytes that one rank sends for tensor parallelism in a step: four all-reduces of a microbatch's hidden state for each
/// layer, two forward and two back. With sequence parallelism they are pairs of a reduce-scatter and an all-gather, which is the
/// same bytes; and two inputs of linears are gathered again for weight gradients, as a rank keeps its own tokens of them alone. (Not
/// counted: what a split backward puts off to its W, two gradients of outputs a layer, is gathered once more there.)
#[must_use]
pub fn tensor_parallel(
    model: &ModelFacts,
    cut: &Cut,
    policy: &Policy,
    layers: u64,
    tokens: u64,
    microbatches: u64,
) -> TensorTraffic {
    let hidden = tokens as f64 * model.sizes.dim as f64 * policy.compute;
    // A gather, or a sum that leaves each rank its share.
    let one = layers as f64 * microbatches as f64 * hidden * ring(cut.tp);
    TensorTraffic {
        forward: 4.0 * one,
        input: 4.0 * one,
        weight: if policy.sequence { 2.0 * one } else { 0.0 },
    }
}

/// Bytes that cross one boundary between stages in a step, each way: activations forward, their gradients back, of all tokens or, where
/// they are cut over tensor ranks, of one's own. `boundaries`: how many stage boundaries lie on this link (the stages of a rank, for schedules with several).
#[must_use]
pub fn pipeline_link(
    model: &ModelFacts,
    cut: &Cut,
    policy: &Policy,
    boundaries: u64,
    tokens: u64,
    microbatches: u64,
) -> f64 {
    if cut.pp < 2 {
        return 0.0;
    }
    let share = if policy.sequence { cut.tp as f64 } else { 1.0 };
    tokens as f64 / share * model.sizes.dim as f64 * policy.compute * microbatches as f64 * boundaries as f64
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Order, Recompute, presets},
        *,
    };

    fn cut(mesh: &str, strategy: Strategy) -> Cut {
        let cluster = crate::plan::cluster::a100s(64);
        Cut::new(mesh.parse().unwrap(), strategy, Order::DpPpTp, &cluster)
    }

    fn policy() -> Policy {
        Policy {
            compute: 2.0,
            reduce: 2.0,
            prefetch: 1,
            exact: false,
            scores: false,
            recompute: Recompute::None,
            keep: false,
            sequence: false,
        }
    }

    fn gb(value: f64) -> String {
        format!("{:.1}", value / 1e9)
    }

    #[test]
    fn the_ledger_of_7b_on_64_ranks_is_twice_for_ddp_and_zero_2_and_three_times_for_zero_3() {
        let total =
            |strategy| gb(data_parallel(&cut("64x1x1", strategy), strategy, 7e9, &policy(), 1).total());
        assert_eq!(total(Strategy::NoShard), "27.6");
        assert_eq!(total(Strategy::ShardGradOp), "27.6");
        assert_eq!(total(Strategy::FullShard), "41.3");
    }

    #[test]
    fn traffic_of_a_rank_saturates_and_only_the_sum_over_ranks_grows() {
        let of = |dp: u64| {
            data_parallel(
                &cut(&format!("{dp}x1x1"), Strategy::FullShard),
                Strategy::FullShard,
                7e9,
                &policy(),
                1,
            )
            .total()
        };
        assert!(of(128) < 1.02 * of(64) && of(1024) < 3.0 * 14e9);
        assert!(128.0 * of(128) > 1.9 * 64.0 * of(64));
    }

    #[test]
    fn gathers_are_multiplied_by_microbatches_unless_weights_are_kept() {
        let full = cut("8x1x1", Strategy::FullShard);
        let once = data_parallel(&full, Strategy::FullShard, 7e9, &policy(), 1);
        let often = data_parallel(&full, Strategy::FullShard, 7e9, &policy(), 16);
        assert!((often.gather - 16.0 * once.gather).abs() < 1.0 && (often.reduce - once.reduce).abs() < 1.0);
        let kept = data_parallel(&full, Strategy::FullShard, 7e9, &Policy { keep: true, ..policy() }, 16);
        assert!((2.0 * kept.gather - once.gather).abs() < 1.0, "once a step instead of twice");
    }

    #[test]
    fn hybrid_gathers_within_a_node_and_sums_one_shard_across() {
        let hybrid = cut("64x1x1", Strategy::HybridShard);
        let traffic = data_parallel(&hybrid, Strategy::HybridShard, 7e9, &policy(), 1);
        assert_eq!((gb(traffic.gather), gb(traffic.reduce)), ("24.5".to_owned(), "12.2".to_owned()));
        assert_eq!(gb(traffic.across), gb(2.0 * 14e9 / 8.0 * 7.0 / 8.0));
    }

    #[test]
    fn tensor_and_pipeline_traffic_follow_hidden_states() {
        let model = presets::model("llama2-70b").unwrap();
        let both = cut("4x2x8", Strategy::FullShard);
        let hidden = 4096.0 * 8192.0 * 2.0;
        let tensor = tensor_parallel(&model, &both, &policy(), 40, 4096, 16);
        assert!((tensor.total() - 4.0 * 40.0 * 16.0 * 2.0 * hidden * 7.0 / 8.0).abs() < 1.0);
        assert!((pipeline_link(&model, &both, &policy(), 1, 4096, 16) - 16.0 * hidden).abs() < 1.0);
        let sequence = Policy { sequence: true, ..policy() };
        let pairs = tensor_parallel(&model, &both, &sequence, 40, 4096, 16);
        let same = [(pairs.forward, tensor.forward), (pairs.input, tensor.input)];
        assert!(same.iter().all(|(a, b)| (a - b).abs() < 1.0), "pairs instead of all-reduces");
        assert!((pairs.weight - 0.25 * tensor.total()).abs() < 1.0, "two inputs are gathered again");
        assert!((pipeline_link(&model, &both, &sequence, 1, 4096, 16) - 2.0 * hidden).abs() < 1.0);
        assert_eq!(
            pipeline_link(&model, &cut("8x1x8", Strategy::FullShard), &policy(), 1, 4096, 16).to_bits(),
            0
        );
    }
}
