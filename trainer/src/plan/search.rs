//! [`search`]: every mesh of the ranks there are, the fastest first, and why the others are out.

use serde::Serialize;

use super::{
    Batch, Cluster, Cut, Ledger, Misfit, ModelFacts, Order, Policy, Prediction, Strategy, fits, memory,
    predict::{self, Timed},
};
use crate::{Result, mesh::MeshShape};

/// A cut that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The cut.
    pub cut: Cut,
    /// How its batch is shared out.
    pub batch: Batch,
    /// What each pipeline rank holds.
    pub memory: Vec<Ledger>,
    /// How fast it is.
    pub prediction: Prediction,
}

impl Candidate {
    /// The rank that holds the most.
    #[must_use]
    pub fn fullest(&self) -> Option<&Ledger> {
        self.memory.iter().max_by(|a, b| a.total().total_cmp(&b.total()))
    }

    /// Why it does not fit into memory, if it does not.
    #[must_use]
    pub fn misfit(&self, cluster: &Cluster) -> Option<Misfit> {
        let fullest = self.fullest()?;
        let have = cluster.memory - cluster.reserve;
        (fullest.total() > have).then(|| Misfit::Memory {
            pp: fullest.pp,
            need: fullest.total(),
            have,
            largest: fullest.largest().map_or("nothing", |line| line.what).to_owned(),
        })
    }
}

/// What is the same for all cuts that are compared.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The model.
    pub model: &'a ModelFacts,
    /// The machines.
    pub cluster: &'a Cluster,
    /// How numbers are held.
    pub policy: &'a Policy,
    /// The schedule.
    pub schedule: &'a str,
    /// Sequences of a step, of a microbatch, and tokens of a sequence.
    pub batch: (u64, u64, u64),
    /// How coordinates become ranks.
    pub order: Order,
    /// Layers of each stage, where they are given; meshes of another number of stages are split by the trainer's rule.
    pub split: Option<&'a [u64]>,
}

impl Terms<'_> {
    /// One mesh under some strategies; those that do not fit into memory are there too.
    ///
    /// # Errors
    /// What is in the way of all of them.
    pub fn candidates(&self, mesh: MeshShape, strategies: &[Strategy]) -> Result<Vec<Candidate>, Misfit> {
        let (global, micro, seq) = self.batch;
        let plain = Cut::new(mesh, Strategy::FullShard, self.order, self.cluster);
        let said = |error: &crate::Error| Misfit::Schedule { said: error.to_string() };
        let per_rank = schedule::named(self.schedule)
            .map(|it| *it.stages_per_rank().start() as u64)
            .map_err(|error| said(&error.into()))?;
        let batch = fits::check(
            self.model,
            self.cluster,
            &plain,
            plain.pp * per_rank,
            (global, micro, self.policy.sequence.then_some(seq)),
        )?;
        let timed = predict::timed(
            self.model,
            self.cluster,
            &plain,
            self.policy,
            (batch, seq),
            self.schedule,
            self.split,
        )
        .map_err(|error| said(&error))?;
        let cuts = strategies.iter().map(|strategy| Cut::new(mesh, *strategy, self.order, self.cluster));
        Ok(cuts.map(|cut| self.candidate(cut, batch, &timed)).collect())
    }

    fn candidate(&self, cut: Cut, batch: Batch, timed: &Timed) -> Candidate {
        let (_, micro, seq) = self.batch;
        let each = |share: &memory::Share| {
            memory::ledger(self.model, &cut, self.policy, *share, (micro, seq, batch.microbatches))
        };
        let prediction = predict::predict(self.model, self.cluster, &cut, self.policy, (batch, seq), timed);
        Candidate { cut, batch, memory: timed.shares.iter().map(each).collect(), prediction }
    }
}

/// All meshes of `ranks`, each with its fastest strategy of `strategies` that fits, fastest first; and the others.
#[must_use]
pub fn search(terms: &Terms<'_>, strategies: &[Strategy]) -> (Vec<Candidate>, Vec<(MeshShape, Misfit)>) {
    let (mut found, mut out) = (Vec::new(), Vec::new());
    for mesh in meshes(terms.cluster.ranks) {
        match best(terms, mesh, strategies) {
            Ok(candidate) => found.push(candidate),
            Err(misfit) => out.push((mesh, misfit)),
        }
    }
    found.sort_by(|a, b| b.prediction.tokens_per_second.total_cmp(&a.prediction.tokens_per_second));
    (found, out)
}

fn best(terms: &Terms<'_>, mesh: MeshShape, strategies: &[Strategy]) -> Result<Candidate, Misfit> {
    let one = [Strategy::NoShard];
    let strategies = if mesh.dp == 1 { &one } else { strategies };
    let mut candidates = terms.candidates(mesh, strategies)?;
    // With one shard group over all replicas, hybrid is the same as full.
    candidates.retain(|it| {
        it.cut.strategy != Strategy::HybridShard
            || (it.cut.shard > 1 && it.cut.replicas() > 1)
            || strategies.len() == 1
    });
    let least = candidates
        .iter()
        .filter_map(|it| it.misfit(terms.cluster))
        .min_by(|a, b| need(a).total_cmp(&need(b)));
    let fitting = candidates.into_iter().filter(|it| it.misfit(terms.cluster).is_none());
    let speed = |it: &Candidate| it.prediction.tokens_per_second;
    // Of equally fast ones the first: strategies are listed from the least traffic on.
    let fastest =
        fitting.reduce(|best, next| if speed(&next) > speed(&best) * (1.0 + 1e-9) { next } else { best });
    fastest.ok_or_else(|| least.unwrap_or(Misfit::Schedule { said: "no strategy was asked for".to_owned() }))
}

const fn need(misfit: &Misfit) -> f64 {
    match misfit {
        Misfit::Memory { need, .. } => *need,
        _ => f64::INFINITY,
    }
}

/// All (dp, pp, tp) whose product is `ranks`.
fn meshes(ranks: u64) -> Vec<MeshShape> {
    let ranks = usize::try_from(ranks).unwrap_or(usize::MAX);
    let divisors = |of: usize| {
        let small: Vec<usize> = (1..).take_while(|d| d * d <= of).filter(|d| of.is_multiple_of(*d)).collect();
        let large: Vec<usize> = small.iter().rev().map(|d| of / d).filter(|d| d * d > of).collect();
        small.into_iter().chain(large).collect::<Vec<_>>()
    };
    let with_tp =
        |tp: usize| divisors(ranks / tp).into_iter().map(move |pp| MeshShape { dp: ranks / tp / pp, pp, tp });
    divisors(ranks).into_iter().flat_map(with_tp).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Recompute, presets},
        *,
    };

    fn cluster(ranks: u64, memory: f64) -> Cluster {
        Cluster {
            ranks,
            per_node: 8,
            memory,
            reserve: 2e9,
            flops: 312e12,
            efficiency: 0.5,
            intra: 300e9,
            inter: 25e9,
            overlap: 0.5,
        }
    }

    const POLICY: Policy = Policy {
        compute: 2.0,
        reduce: 4.0,
        prefetch: 1,
        exact: false,
        scores: false,
        recompute: Recompute::Full,
        keep: false,
        sequence: false,
    };

    fn found(name: &str, cluster: &Cluster, global: u64) -> (Vec<Candidate>, Vec<(MeshShape, Misfit)>) {
        let model = presets::model(name).unwrap();
        let terms = Terms {
            model: &model,
            cluster,
            policy: &POLICY,
            schedule: "1F1B",
            batch: (global, 1, 4096),
            order: Order::DpPpTp,
            split: None,
        };
        search(&terms, &Strategy::ALL)
    }

    #[test]
    fn every_mesh_is_either_ranked_or_out_for_a_reason_and_the_fastest_is_first() {
        let (ranked, out) = found("llama2-70b", &cluster(64, 80e9), 512);
        assert_eq!(ranked.len() + out.len(), 28, "the ordered factorisations of 64 into three");
        assert!(ranked.is_sorted_by(|a, b| a.prediction.tokens_per_second >= b.prediction.tokens_per_second));
        assert!(ranked.iter().all(|it| it.misfit(&cluster(64, 80e9)).is_none() && it.cut.ranks() == 64));
        assert!(out.iter().any(|(mesh, why)| mesh.tp == 16 && matches!(why, Misfit::Tensor { .. })));
        let best = &ranked[0].prediction;
        assert!(best.mfu > 0.1 && best.mfu < 0.5, "{best:?}: below the efficiency that is assumed");
    }

    #[test]
    fn a_70b_does_not_fit_where_its_state_does_not() {
        let (ranked, out) = found("llama2-70b", &cluster(8, 80e9), 64);
        assert!(ranked.is_empty());
        assert!(out.iter().any(|(_, why)| matches!(why, Misfit::Memory { .. })));
    }

    #[test]
    fn more_memory_never_excludes_a_mesh() {
        let names = |memory| -> std::collections::BTreeSet<String> {
            found("llama2-7b", &cluster(8, memory), 64).0.iter().map(|it| it.cut.to_string()).collect()
        };
        let (small, large) = (names(40e9), names(80e9));
        assert!(small.is_subset(&large) && large.len() > small.len(), "{small:?} {large:?}");
    }

    #[test]
    fn a_slower_network_between_nodes_never_makes_a_cut_faster() {
        let speeds = |inter| -> std::collections::BTreeMap<String, f64> {
            let cluster = Cluster { inter, ..cluster(64, 80e9) };
            let each = found("llama2-70b", &cluster, 512).0;
            each.into_iter().map(|it| (it.cut.to_string(), it.prediction.tokens_per_second)).collect()
        };
        let (fast, slow) = (speeds(50e9), speeds(3e9));
        assert_eq!(fast.len(), slow.len());
        assert!(fast.iter().all(|(mesh, speed)| slow[mesh] <= speed * (1.0 + 1e-9)));
    }
}
