//! [`plan`]: from a question to a report.

use super::{
    ARTICLE_BYTES, Article, Balance, Candidate, Closely, Costs, Cut, Excluded, Misfit, ModelFacts, Pipeline,
    Question, Ranked, Report, Strategy, article, batch,
    search::{Terms, search},
    split_by_costs, split_or_given, traffic,
};
use crate::{Error, Result, mesh::MeshShape};

/// Answers.
///
/// # Errors
/// `Config` for numbers that can't be, and for a mesh that is asked for and is out for another reason than memory; the
/// hint names the nearest that can.
pub fn plan(question: &Question) -> Result<Report> {
    question.cluster.check()?;
    if question.seq == 0 {
        return Err(Error::config("sequences of 0 tokens").hint("give --seq-len"));
    }
    let terms = Terms {
        model: &question.model,
        cluster: &question.cluster,
        policy: &question.policy,
        schedule: &question.schedule,
        batch: (question.global, question.micro, question.seq),
        order: question.order,
        split: question.split.as_deref(),
    };
    let params = question.model.params() as f64;
    let state = article::state_bytes(params);
    let memory = question.cluster.memory - question.cluster.reserve;
    let layers_on_one = fit_on_one(&question.model, memory);
    let stages = batch::choose_stages(question.model.sizes.layers, layers_on_one);
    let asked = question.mesh.map(|mesh| closely(question, &terms, mesh)).transpose()?;
    let (mut fitting, mut out) = (Vec::new(), Vec::new());
    if asked.is_none() {
        let one = question.strategy.map(|strategy| [strategy]);
        (fitting, out) = search(&terms, one.as_ref().map_or(&Strategy::ALL[..], |one| &one[..]));
    }
    Ok(Report {
        params: question.model.params(),
        state,
        cards: article::cards_at_least(state, question.cluster.memory),
        tensor_degrees: super::tensor_degrees(&question.model),
        layers_on_one,
        stages,
        microbatches: batch::choose_microbatches(stages),
        asked,
        fitting: fitting.len(),
        ranked: fitting.into_iter().take(question.top).map(ranked).collect(),
        excluded: out.into_iter().map(|(mesh, misfit)| excluded(mesh, misfit)).collect(),
        model: question.model.clone(),
        cluster: question.cluster,
        policy: question.policy,
        schedule: question.schedule.clone(),
        batch: terms.batch,
    })
}

/// Layers whose 16 bytes a parameter leave half of a card to activations.
fn fit_on_one(model: &ModelFacts, memory: f64) -> u64 {
    let of_layer = ARTICLE_BYTES * model.layer as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small whole number; saturates"
    )]
    let layers = (memory / 2.0 / of_layer).floor() as u64;
    layers.clamp(1, model.sizes.layers.max(1))
}

fn ranked(candidate: Candidate) -> Ranked {
    let peak = candidate.fullest().map_or(0.0, super::Ledger::total);
    Ranked { mesh: candidate.cut.to_string(), peak, candidate }
}

fn excluded(mesh: MeshShape, misfit: Misfit) -> Excluded {
    Excluded { mesh: mesh.to_string(), said: misfit.to_string(), remedy: misfit.remedy(), misfit }
}

fn closely(question: &Question, terms: &Terms<'_>, mesh: MeshShape) -> Result<Closely> {
    let plain = Cut::new(mesh, Strategy::FullShard, question.order, &question.cluster);
    plain.check_ranks(question.cluster.ranks)?;
    let refused = |misfit: Misfit| Error::config(format!("mesh {mesh}: {misfit}")).hint(misfit.remedy());
    let strategies = question.strategy.map_or_else(|| Strategy::ALL.to_vec(), |one| vec![one]);
    let mut candidates = terms.candidates(mesh, &strategies).map_err(refused)?;
    candidates.sort_by(|a, b| b.prediction.tokens_per_second.total_cmp(&a.prediction.tokens_per_second));
    let fits = candidates.iter().position(|it| it.misfit(terms.cluster).is_none());
    // Where none fits, the one that is nearest to it.
    let need = |it: &Candidate| it.fullest().map_or(0.0, super::Ledger::total);
    let least = (0..candidates.len()).min_by(|a, b| {
        let need = |at: usize| candidates.get(at).map_or(f64::INFINITY, need);
        need(*a).total_cmp(&need(*b))
    });
    let chosen = fits.or(least).filter(|at| *at < candidates.len()).map(|at| candidates.swap_remove(at));
    let candidate = chosen.ok_or_else(|| Error::internal("a mesh without a candidate"))?;
    identity(question, &candidate)?;
    figures(question, terms, candidate)
}

/// Global = M × micro × dp, where the user gives all of them.
fn identity(question: &Question, candidate: &Candidate) -> Result<()> {
    let found = candidate.batch.microbatches;
    match question.microbatches {
        Some(given) if given != found => {
            let (micro, dp) = (question.micro, candidate.cut.dp);
            Err(Error::config(format!(
                "{given} microbatches x micro-batch {micro} x dp {dp} = {}, but the global batch is {}",
                given.saturating_mul(micro).saturating_mul(dp),
                question.global
            ))
            .hint(format!("with this global batch there are {found} microbatches; leave --microbatches out")))
        }
        _ => Ok(()),
    }
}

fn figures(question: &Question, terms: &Terms<'_>, candidate: Candidate) -> Result<Closely> {
    let Candidate { cut, batch, .. } = candidate;
    let (model, policy) = (&question.model, &question.policy);
    let params = model.params() as f64;
    let slice = candidate.memory.iter().map(|it| it.params).fold(0.0, f64::max);
    let tokens = question.micro * question.seq;
    let unit = Pipeline::unit(&question.schedule, cut.pp, batch.microbatches)?;
    let stages = unit.ranks * unit.per_rank;
    let layers = model.sizes.layers;
    let even = split_or_given(layers, stages, terms.split)?;
    let given = terms.split == Some(even.as_slice());
    let (costs, balanced_by) = match &question.measured {
        Some(measured) => (Costs::measured(measured)?, "measured times"),
        None => (Costs::operations(model, question.seq), "counted operations"),
    };
    let most = even.iter().copied().max().unwrap_or(0);
    Ok(Closely {
        misfit: candidate.misfit(terms.cluster),
        article: Article::right(params, &cut),
        article_without_pipeline: Article::without_pipeline(params, &cut),
        data: Strategy::ALL
            .into_iter()
            .map(|strategy| {
                let mesh = mesh_of(&cut);
                let cut = Cut::new(mesh, strategy, question.order, &question.cluster);
                (cut, traffic::data_parallel(&cut, strategy, slice, policy, batch.microbatches))
            })
            // A hybrid of one rank a shard, or of one copy, is another strategy.
            .filter(|(cut, it)| it.strategy != Strategy::HybridShard || (cut.shard > 1 && cut.replicas() > 1))
            .map(|(_, it)| it)
            .collect(),
        tensor: traffic::tensor_parallel(
            model,
            &cut,
            policy,
            most * unit.per_rank,
            tokens,
            batch.microbatches,
        )
        .total(),
        pipeline: traffic::pipeline_link(model, &cut, policy, unit.per_rank, tokens, batch.microbatches),
        unit_bubble: unit.bubble,
        even: Balance::of(even, &Costs::parameters(model)),
        balanced: Balance::of(split_by_costs(layers, stages, &costs)?, &costs),
        even_by: if given { "as configured" } else { "by the trainer's rule" },
        balanced_by,
        candidate,
    })
}

fn mesh_of(cut: &Cut) -> MeshShape {
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    MeshShape { dp: size(cut.dp), pp: size(cut.pp), tp: size(cut.tp) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{Cluster, Order, Policy, Recompute, presets},
        *,
    };

    pub(in super::super) fn question(mesh: Option<&str>) -> Question {
        Question {
            model: presets::model("llama2-70b").unwrap().with_total(70_000_000_000).unwrap(),
            cluster: Cluster { reserve: 2e9, ..crate::plan::cluster::a100s(64) },
            policy: Policy {
                compute: 2.0,
                reduce: 4.0,
                prefetch: 1,
                exact: false,
                scores: false,
                recompute: Recompute::Full,
                keep: false,
                sequence: false,
            },
            mesh: mesh.map(|mesh| mesh.parse().unwrap()),
            strategy: None,
            order: Order::DpPpTp,
            schedule: "1F1B".to_owned(),
            global: 512,
            micro: 1,
            seq: 4096,
            microbatches: None,
            measured: None,
            split: None,
            top: 10,
        }
    }

    #[test]
    fn the_70b_on_64_cards_is_planned_with_both_of_the_articles_figures() {
        let report = plan(&question(Some("4x2x8"))).unwrap();
        let asked = report.asked.as_ref().unwrap();
        assert!(
            (asked.article.state - 17.5e9).abs() < 1e6
                && (asked.article_without_pipeline.state - 35e9).abs() < 1e6
        );
        assert_eq!((report.cards, report.tensor_degrees.as_slice()), (14, [1, 2, 4, 8].as_slice()));
        assert_eq!(asked.candidate.batch.microbatches, 128);
        assert_eq!(asked.even.layers, [40, 40]);
        assert_eq!(asked.data.len(), 3, "a node has one rank of each replica: nothing to be hybrid over");
        let text = report.to_string();
        for words in ["17.5 GB", "35.0 GB", "13.1 GB", "19.7 GB", "26.2 GB"] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }

    #[test]
    fn a_given_split_is_planned_with_where_it_fits_the_mesh() {
        let with = |mesh| {
            plan(&Question { split: Some(vec![30, 50]), ..question(Some(mesh)) }).unwrap().asked.unwrap()
        };
        let asked = with("4x2x8");
        assert_eq!((asked.even.layers.as_slice(), asked.even_by), ([30, 50].as_slice(), "as configured"));
        let params: Vec<f64> = asked.candidate.memory.iter().map(|it| it.params).collect();
        assert!(params[1] > 1.4 * params[0], "{params:?}");
        let other = with("2x4x8");
        assert_eq!(
            (other.even.layers.as_slice(), other.even_by),
            ([20; 4].as_slice(), "by the trainer's rule")
        );
    }

    #[test]
    fn what_can_not_be_is_refused_with_the_nearest_that_can() {
        let on_16 = |mesh| {
            let mut it = question(Some(mesh));
            it.cluster.ranks = 16;
            plan(&it).unwrap_err()
        };
        let error = on_16("2x4x4");
        assert!(error.to_string().contains("= 32 ranks, but there are 16"), "{error}");
        let error = on_16("1x1x16");
        assert!(
            error.to_string().contains("8 KV heads") && error.hint_text().unwrap().contains("tp=8"),
            "{error}"
        );
        let error = plan(&Question { microbatches: Some(32), ..question(Some("4x2x8")) }).unwrap_err();
        assert!(error.to_string().contains("32 microbatches x micro-batch 1 x dp 4 = 128"), "{error}");
        plan(&Question { microbatches: Some(128), ..question(Some("4x2x8")) }).unwrap();
    }

    #[test]
    fn a_mesh_that_does_not_fit_into_memory_is_shown_and_says_no() {
        let mut tight = question(Some("4x2x8"));
        tight.cluster.memory = 20e9;
        let report = plan(&tight).unwrap();
        assert!(!report.fits());
        assert!(report.to_string().contains("does not fit"), "{report}");
    }

    #[test]
    fn all_meshes_are_ranked_and_json_says_what_text_says() {
        let report = plan(&question(None)).unwrap();
        assert!(report.fits() && report.ranked.len() == report.fitting.min(10));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["ranked"][0]["mesh"], report.ranked[0].mesh.as_str());
        assert!(
            json["excluded"]
                .as_array()
                .unwrap()
                .iter()
                .all(|it| it["said"].is_string() && it["remedy"].is_string())
        );
        assert!(report.to_string().contains(&report.ranked[0].mesh));
    }
}
