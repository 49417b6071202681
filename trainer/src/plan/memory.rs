//! [`Ledger`]: what one rank holds, line by line.
//!
//! Invariants: a line says what it is and how it was counted; the total is the sum of the lines. Activations follow
//! Korthikanti et al. 2022 (arXiv 2205.05198): 34·s·b·h bytes a layer in 16 bits, 5·a·s²·b more where the scores are
//! stored; of these 32·s·b·h are what weight gradients need (arXiv 2401.10241). Tensor ranks divide what lies between their linears,
//! 24·s·b·h and the scores; of norms, residuals and inputs of linears, 10·s·b·h, each has all, unless tokens are cut over them
//! (sequence parallelism).

use serde::Serialize;

use super::{Cut, ModelFacts, Recompute, Strategy, quantity};

/// How a run holds numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Policy {
    /// Bytes of a weight as computations take it: 2 (bf16) or 4 (f32, the master itself).
    pub compute: f64,
    /// Bytes of a gradient as it is reduced.
    pub reduce: f64,
    /// Units gathered ahead of the one in use.
    pub prefetch: u64,
    /// Whether sums are trees (exact mode): a sum of M has up to 1 + log2 M parts at once.
    pub exact: bool,
    /// Whether attention's scores are stored for the way back.
    pub scores: bool,
    /// What is computed again on the way back.
    pub recompute: Recompute,
    /// Whether weights stay gathered from the first to the last use in a step, or are gathered for each microbatch.
    pub keep: bool,
    /// Whether tokens are cut over tensor ranks between their linears.
    pub sequence: bool,
}

/// A stage of a rank, as far as its memory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Its pipeline rank.
    pub(super) pp: u64,
    /// Layers of all its stages.
    pub(super) layers: u64,
    /// Whether it has the embedding.
    pub(super) first: bool,
    /// Whether it has the head.
    pub(super) last: bool,
    /// Most stage-microbatches alive at once, and stages that it has: their quotient counts whole shares.
    pub(super) live: u64,
    /// Stages of the rank.
    pub(super) stages: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// What.
    pub what: &'static str,
    /// Bytes.
    pub bytes: f64,
    /// How it was counted.
    pub how: String,
}

/// What one rank holds at its peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ledger {
    /// Its pipeline rank.
    pub pp: u64,
    /// Its parameters, before sharding over replicas.
    pub params: f64,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Ledger {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.lines.iter().map(|line| line.bytes).sum()
    }

    /// The largest line.
    #[must_use]
    pub fn largest(&self) -> Option<&Line> {
        self.lines.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes))
    }
}

/// The ledger of the rank that has `share`; `micro` sequences of `seq` tokens are a microbatch, `microbatches` a step.
#[must_use]
pub(super) fn ledger(
    model: &ModelFacts,
    cut: &Cut,
    policy: &Policy,
    share: Share,
    (micro, seq, microbatches): (u64, u64, u64),
) -> Ledger {
    let params = model.stage(share.layers, share.first, share.last) as f64 / cut.tp as f64;
    let shard = cut.shard as f64;
    let mut lines = vec![Line {
        what: "master weights and Adam's moments",
        bytes: 12.0 * params / shard,
        how: format!("(4 + 4 + 4) B x {} / {} shards", quantity::count(params), cut.shard),
    }];
    lines.push(gradients(params, policy, microbatches));
    lines.extend(gathered(model, cut, policy, share, params));
    let (activations, working) = activations(model, cut, policy, share, micro * seq, seq);
    lines.push(activations);
    lines.extend(working);
    lines.extend(logits(model, cut, share, micro * seq));
    Ledger { pp: share.pp, params, lines }
}

fn gradients(params: f64, policy: &Policy, microbatches: u64) -> Line {
    let parts = if policy.exact { 1.0 + (microbatches.max(1) as f64).log2().floor() } else { 1.0 };
    let tree = if policy.exact {
        format!(" x {parts:.0} parts of a tree over {microbatches} microbatches")
    } else {
        String::new()
    };
    Line {
        what: "gradients, summed over microbatches",
        bytes: 4.0 * params * parts,
        how: format!("4 B x {}{tree}, whole until they are reduced", quantity::count(params)),
    }
}

/// Weights as computations take them, beside the shards.
fn gathered(model: &ModelFacts, cut: &Cut, policy: &Policy, share: Share, params: f64) -> Option<Line> {
    let units = 1 + policy.prefetch;
    let tp = cut.tp as f64;
    let unit = [
        (share.layers > 0).then_some(model.layer),
        share.first.then_some(model.embedding),
        share.last.then_some(if model.sizes.tied { model.embedding } else { model.head }),
    ];
    let unit = unit.into_iter().flatten().max().unwrap_or(0) as f64 / tp;
    let (bytes, how) = match cut.strategy {
        // In f32 the master itself is computed with.
        Strategy::NoShard if policy.compute >= 4.0 => return None,
        _ if cut.shard == 1 && policy.compute >= 4.0 => return None,
        Strategy::NoShard => {
            (policy.compute * params, format!("{} B x {}", policy.compute, quantity::count(params)))
        }
        Strategy::ShardGradOp => (
            policy.compute * params,
            format!("{} B x {}, whole from forward to backward", policy.compute, quantity::count(params)),
        ),
        Strategy::FullShard | Strategy::HybridShard if policy.keep => (
            policy.compute * params,
            format!("{} B x {}, kept gathered over a step", policy.compute, quantity::count(params)),
        ),
        Strategy::FullShard | Strategy::HybridShard => (
            (policy.compute * unit * units as f64).min(policy.compute * params),
            format!("{} B x {units} units of at most {}", policy.compute, quantity::count(unit)),
        ),
    };
    Some(Line { what: "weights gathered for use", bytes, how })
}

/// Bytes of a layer's activations for one microbatch, as a share of one tensor-parallel rank.
fn layer_activations(
    model: &ModelFacts,
    cut: &Cut,
    policy: &Policy,
    tokens: u64,
    seq: u64,
    recompute: Recompute,
) -> f64 {
    let (dim, width, tp) = (model.sizes.dim as f64, policy.compute / 2.0, cut.tp as f64);
    let linear = tokens as f64 * dim;
    let scores = 5.0 * model.sizes.heads as f64 * seq as f64 * tokens as f64;
    // What every tensor rank has of all tokens, or of its own where they are cut; and what is of its own heads and neurons.
    let all = (10.0 * linear, if policy.scores { 24.0 * linear + scores } else { 24.0 * linear });
    let part = |share: f64, (tokenwise, divided): (f64, f64)| (share * tokenwise, share * divided);
    let (tokenwise, divided) = match recompute {
        Recompute::None => all,
        Recompute::Selective => (10.0 * linear, 24.0 * linear),
        Recompute::Products => part(Recompute::OF_PRODUCTS, (10.0 * linear, 24.0 * linear)),
        Recompute::Full => (2.0 * linear, 0.0),
        Recompute::Every(_) => {
            let again = recompute.layers_again();
            let (tokenwise, divided) = part(1.0 - again, all);
            (tokenwise + again * 2.0 * linear, divided)
        }
    };
    let tokenwise = if policy.sequence { tokenwise / tp } else { tokenwise };
    (tokenwise + divided / tp) * width
}

fn activations(
    model: &ModelFacts,
    cut: &Cut,
    policy: &Policy,
    share: Share,
    tokens: u64,
    seq: u64,
) -> (Line, Option<Line>) {
    let live = share.live as f64 / share.stages.max(1) as f64;
    let of_layer = layer_activations(model, cut, policy, tokens, seq, policy.recompute);
    let line = Line {
        what: "activations that wait for their backward",
        bytes: of_layer * share.layers as f64 * live,
        how: format!(
            "{} a layer and microbatch x {} layers x {live} microbatches alive",
            quantity::bytes(of_layer),
            share.layers
        ),
    };
    let whole = matches!(policy.recompute, Recompute::Full | Recompute::Every(_) | Recompute::Products);
    let again = (whole && share.layers > 0).then(|| Line {
        what: "a layer computed again",
        bytes: layer_activations(model, cut, policy, tokens, seq, Recompute::None),
        how: "one layer's activations while it goes back".to_owned(),
    });
    (line, again)
}

fn logits(model: &ModelFacts, cut: &Cut, share: Share, tokens: u64) -> Option<Line> {
    share.last.then(|| Line {
        what: "logits and their gradient",
        bytes: 8.0 * tokens as f64 * model.sizes.vocab as f64 / cut.tp as f64,
        how: format!("2 x 4 B x {tokens} tokens x {} entries / {} tensor ranks", model.sizes.vocab, cut.tp),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Order, cluster::Cluster, presets},
        *,
    };

    fn cluster() -> Cluster {
        Cluster {
            ranks: 8,
            per_node: 8,
            memory: 80e9,
            reserve: 0.0,
            flops: 312e12,
            efficiency: 0.5,
            intra: 300e9,
            inter: 25e9,
            overlap: 0.5,
        }
    }

    fn policy() -> Policy {
        Policy {
            compute: 2.0,
            reduce: 4.0,
            prefetch: 1,
            exact: false,
            scores: false,
            recompute: Recompute::None,
            keep: false,
            sequence: false,
        }
    }

    fn of(mesh: &str, strategy: Strategy, policy: &Policy, share: Share) -> Ledger {
        let model = presets::model("llama2-7b").unwrap().with_total(7_000_000_000).unwrap();
        let cut = Cut::new(mesh.parse().unwrap(), strategy, Order::DpPpTp, &cluster());
        ledger(&model, &cut, policy, share, (1, 4096, 8))
    }

    const ALONE: Share = Share { pp: 0, layers: 32, first: true, last: true, live: 1, stages: 1 };

    fn line<'a>(ledger: &'a Ledger, what: &str) -> &'a Line {
        ledger.lines.iter().find(|line| line.what.contains(what)).unwrap()
    }

    #[test]
    fn sharding_divides_the_state_and_full_shard_gathers_units_only() {
        let whole = of("1x1x1", Strategy::NoShard, &policy(), ALONE);
        assert!((line(&whole, "master").bytes - 84e9).abs() < 1.0);
        assert!((line(&whole, "gathered").bytes - 14e9).abs() < 1.0);
        let full = of("8x1x1", Strategy::FullShard, &policy(), ALONE);
        assert!((line(&full, "master").bytes - 10.5e9).abs() < 1.0);
        let unit = presets::model("llama2-7b").unwrap().with_total(7_000_000_000).unwrap().layer as f64;
        assert!((line(&full, "gathered").bytes - 2.0 * 2.0 * unit).abs() < 1.0);
        let grads = of("8x1x1", Strategy::ShardGradOp, &policy(), ALONE);
        assert!((line(&grads, "gathered").bytes - 14e9).abs() < 1.0);
    }

    #[test]
    fn activations_are_the_papers_and_grow_with_what_is_alive() {
        let one = of("8x1x1", Strategy::FullShard, &policy(), ALONE);
        let bytes = line(&one, "activations").bytes;
        assert!((bytes - 34.0 * 4096.0 * 4096.0 * 32.0).abs() < 1.0, "{bytes}");
        let four = of("8x1x1", Strategy::FullShard, &policy(), Share { live: 4, ..ALONE });
        assert!((line(&four, "activations").bytes - 4.0 * bytes).abs() < 1.0);
        let full = Policy { recompute: Recompute::Full, ..policy() };
        let again = of("8x1x1", Strategy::FullShard, &full, ALONE);
        assert!((line(&again, "activations").bytes - bytes / 17.0).abs() < 1.0);
        assert!((line(&again, "computed again").bytes - bytes / 32.0).abs() < 1.0);
        let plain = of("8x1x1", Strategy::FullShard, &Policy { scores: true, ..policy() }, ALONE);
        let scores = 5.0 * 32.0 * 4096.0 * 4096.0 * 32.0;
        assert!((line(&plain, "activations").bytes - bytes - scores).abs() < 1.0);
    }

    #[test]
    fn tensor_ranks_divide_all_activations_only_where_they_cut_tokens() {
        let bytes = |mesh, recompute, sequence| {
            let policy = Policy { recompute, sequence, ..policy() };
            line(&of(mesh, Strategy::FullShard, &policy, ALONE), "activations").bytes
        };
        // s b h of 32 layers.
        let unit = 4096.0 * 4096.0 * 32.0;
        for (recompute, sequence, expected) in [
            (Recompute::None, false, 10.0 + 24.0 / 8.0),
            (Recompute::None, true, 34.0 / 8.0),
            (Recompute::Full, false, 2.0),
            (Recompute::Full, true, 2.0 / 8.0),
        ] {
            let found = bytes("1x1x8", recompute, sequence);
            assert!((found - expected * unit).abs() < 1.0, "{recompute:?} {sequence}: {found}");
            let alone = bytes("8x1x1", recompute, sequence);
            assert!((alone - bytes("8x1x1", recompute, false)).abs() < 1.0, "one rank has all tokens");
        }
    }

    #[test]
    fn twice_the_layers_are_twice_the_parameters_and_activations_of_layers() {
        let with = |layers| {
            of("1x1x1", Strategy::NoShard, &policy(), Share { layers, first: false, last: false, ..ALONE })
        };
        let (one, two) = (with(16), with(32));
        assert!((two.params - 2.0 * one.params).abs() < 1.0);
        assert!((line(&two, "activations").bytes - 2.0 * line(&one, "activations").bytes).abs() < 1.0);
        assert!((line(&two, "master").bytes - 2.0 * line(&one, "master").bytes).abs() < 1.0);
    }

    #[test]
    fn what_is_computed_again_is_not_stored_and_half_of_a_layer_is_what_its_products_give() {
        let stored = |recompute| {
            let ledger = of("1x1x1", Strategy::NoShard, &Policy { recompute, ..policy() }, ALONE);
            line(&ledger, "activations").bytes
        };
        let (all, none) = (stored(Recompute::None), stored(Recompute::Full));
        assert!((stored(Recompute::Products) - all / 2.0).abs() < 1.0);
        assert!((stored(Recompute::Every(2)) - (all + none) / 2.0).abs() < 1.0);
        assert!((stored(Recompute::Every(1)) - none).abs() < 1.0);
    }

    #[test]
    fn exact_sums_hold_a_part_for_each_level_of_their_tree() {
        let fast = line(&of("1x1x1", Strategy::NoShard, &policy(), ALONE), "gradients").bytes;
        let exact = Policy { exact: true, ..policy() };
        let tree = line(&of("1x1x1", Strategy::NoShard, &exact, ALONE), "gradients").bytes;
        assert!((tree - 4.0 * fast).abs() < 1.0, "8 microbatches: 3 levels and the one that comes");
    }

    #[test]
    fn in_f32_without_shards_the_master_itself_is_computed_with() {
        let f32 = Policy { compute: 4.0, ..policy() };
        let ledger = of("1x1x1", Strategy::NoShard, &f32, ALONE);
        assert!(ledger.lines.iter().all(|line| !line.what.contains("gathered")));
        assert!((ledger.total() - ledger.lines.iter().map(|line| line.bytes).sum::<f64>()).abs() < 1e-6);
    }
}
