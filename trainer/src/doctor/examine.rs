//! [`examine`]: the symptoms that a run shows, each with the figures behind it.

use schedule::StageTimes;
use serde::Serialize;

use super::Scene;
use crate::{
    metrics::{Figures, History, MOST_SPREAD},
    plan::{self, Pipeline},
};

/// Communication above this share of a step asks for another mesh.
const MOST_COMMUNICATION: f64 = 0.30;
/// A bubble this much above the schedule's own is not the schedule's.
const MORE_BUBBLE: f64 = 0.10;
/// A stage, or a rank, that is this much above the mean is out of line.
const OUT_OF_LINE: f64 = 1.25;

/// A symptom that a run shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The symptom.
    pub symptom: String,
    /// The figures.
    pub evidence: String,
}

fn finding(symptom: &str, evidence: String) -> Finding {
    Finding { symptom: symptom.to_owned(), evidence }
}

/// What a run shows, by its metrics and its scenes; the gravest first.
#[must_use]
pub fn examine(run: Option<&History>, scenes: &[Scene]) -> Vec<Finding> {
    let mut found = hang(scenes);
    if let Some(run) = run {
        let figures = Figures::of(run);
        found.extend(loss(run));
        found.extend(spread(&figures));
        found.extend(communication(&figures));
        found.extend(bubble(run, &figures));
        found.extend(stages(run, &figures));
        found.extend(memory(&figures));
    }
    found
}

/// The rank whose failure came first, and what all others wait for.
fn hang(scenes: &[Scene]) -> Vec<Finding> {
    if scenes.is_empty() {
        return Vec::new();
    }
    let line = |scene: &Scene| {
        let last = scene
            .last
            .as_ref()
            .map_or_else(|| "nothing".to_owned(), |(at, what)| format!("{what} at {at:.3} s"));
        let waits = scene.waiting.as_ref().map_or_else(String::new, |what| format!(", waiting for {what}"));
        let failed = scene
            .failed
            .as_ref()
            .map_or_else(String::new, |(at, why)| format!("; failed at {at:.3} s: {why}"));
        format!("rank {}: last {last}{waits}{failed}", scene.rank)
    };
    let began = |scene: &Scene| scene.last.as_ref().map_or(0.0, |(at, _)| *at);
    // Who stopped first is what the others wait for.
    let first = scenes.iter().min_by(|a, b| began(a).total_cmp(&began(b)));
    let first = first.filter(|_| scenes.len() > 1).map_or_else(String::new, |scene| {
        format!("\nrank {} began nothing new for the longest: look there first", scene.rank)
    });
    let lines = scenes.iter().map(line).collect::<Vec<_>>().join("\n");
    vec![finding("hang", format!("{} ranks left scenes:\n{lines}{first}", scenes.len()))]
}

fn loss(run: &History) -> Option<Finding> {
    let rank = run.ranks.first()?;
    let losses: Vec<(u64, f64)> = rank
        .steps
        .iter()
        .filter_map(|(step, values)| Some((*step, *values.get("loss_metrics/global_avg_loss")?)))
        .collect();
    if let Some((step, _)) =
        rank.steps.iter().find(|(_, values)| !values.contains_key("loss_metrics/global_avg_loss"))
    {
        return Some(finding("not-finite", format!("the loss of step {step} is not finite")));
    }
    // A jump: a rise of more than half of all that was learnt before it.
    let jump = losses.windows(2).find_map(|pair| {
        let ([(_, before), (step, after)], Some((_, start))) = (pair, losses.first()) else { return None };
        let learnt = start - before;
        (learnt > 0.0 && after - before > 0.5 * learnt && after - before > 0.1)
            .then_some((*step, *before, *after))
    });
    let (step, before, after) = jump?;
    let id = if rank.incarnations > 1 { "loss-jump-after-resume" } else { "loss-jitter" };
    Some(finding(id, format!("the loss rises from {before:.4} to {after:.4} at step {step}")))
}

fn spread(figures: &Figures) -> Option<Finding> {
    (figures.spread > MOST_SPREAD && figures.steps > 10).then(|| {
        let [p50, p90, p99] = figures.step_seconds.map(plan::seconds);
        let percent = 100.0 * figures.spread;
        finding("step-time-varies", format!("step times: median {p50}, p90 {p90}, p99 {p99}; (p90 - p10) / median is {percent:.0} %, above 20 %"))
    })
}

fn communication(figures: &Figures) -> Option<Finding> {
    let share = figures.communication.filter(|share| *share > MOST_COMMUNICATION)?;
    let said = format!(
        "a rank spends {:.0} % of a step in messages and collectives, waiting included; above 30 %",
        100.0 * share
    );
    Some(finding("communication-bound", said))
}

/// The measured bubble against what the schedule has by itself, where its stages take what they took in this run, and where they took alike.
fn bubble(run: &History, figures: &Figures) -> Option<Finding> {
    let measured = figures.bubble?;
    let schedule = run.fact("run/schedule")?;
    let microbatches: u64 = run.fact("run/microbatches")?.parse().ok()?;
    let ranks: u64 = run.fact("run/mesh")?.split('x').nth(1)?.parse().ok()?;
    let times: Vec<[f64; 3]> = run.stage_times().into_values().collect();
    if ranks < 2 || times.is_empty() {
        return None;
    }
    let stage = |[forward, input, weight]: [f64; 3]| {
        let of = |seconds: f64| seconds / microbatches.max(1) as f64;
        StageTimes::new(of(forward), of(input), of(weight))
    };
    let mean = |at: usize| times.iter().filter_map(|it| it.get(at)).sum::<f64>() / times.len() as f64;
    let alike = vec![stage([mean(0), mean(1), mean(2)]); times.len()];
    let uneven: Vec<StageTimes> = times.iter().copied().map(stage).collect();
    let idle = |stages: &[StageTimes]| {
        Some(Pipeline::of_stages(&schedule, (ranks, microbatches), stages).ok()?.of_total)
    };
    let (own, even) = (idle(&uneven)?, idle(&alike)?);
    let said = format!(
        "all ranks together are idle {:.0} % of the pipeline's time; {schedule} with {ranks} ranks and {microbatches} \
         microbatches has {:.0} % by itself with what these stages take, and {:.0} % if all took alike",
        100.0 * measured,
        100.0 * own,
        100.0 * even
    );
    if measured > own + MORE_BUBBLE {
        return Some(finding(
            "slow-though-busy",
            said + ": the rest is waiting for messages, or for processors",
        ));
    }
    (even > 0.15).then(|| finding("periodic-idle", said + ": more microbatches, or another schedule"))
}

fn stages(run: &History, figures: &Figures) -> Option<Finding> {
    let seconds = &figures.stage_seconds;
    let mean = seconds.values().sum::<f64>() / seconds.len().max(1) as f64;
    let (stage, most) = seconds.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    if seconds.len() < 2 || *most <= OUT_OF_LINE * mean {
        return None;
    }
    let layers = run.layers().and_then(|layers| layers.get(*stage).copied());
    let layers = layers.map_or_else(String::new, |layers| format!(" with {layers} layers"));
    Some(finding(
        "stage-imbalance",
        format!(
            "stage {stage}{layers} computes {} a step, {:.2} times the mean of all stages",
            plan::seconds(*most),
            most / mean
        ),
    ))
}

fn memory(figures: &Figures) -> Option<Finding> {
    let memory = &figures.memory_gib;
    let mean = memory.values().sum::<f64>() / memory.len().max(1) as f64;
    let (rank, most) = memory.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (memory.len() > 1 && *most > OUT_OF_LINE * mean).then(|| {
        let live = figures
            .live
            .iter()
            .map(|(stage, live)| format!("{stage}: {live}"))
            .collect::<Vec<_>>()
            .join(", ");
        finding(
            "memory-out-of-line",
            format!(
                "rank {rank} held {most:.2} GiB, {:.2} times the mean; microbatches alive by stage: {live}",
                most / mean
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::Knowledge, *};
    use crate::metrics::RankHistory;

    /// A run of two stages; `f` changes the values of (rank, step).
    fn run(f: impl Fn(usize, u64, &mut BTreeMap<String, f64>)) -> History {
        let rank = |rank: usize| {
            let values = |step: u64| {
                let mut values: BTreeMap<String, f64> = [
                    ("time_metrics/end_to_end(s)", 0.1),
                    ("loss_metrics/global_avg_loss", 5.0 - 0.01 * step as f64),
                    ("pipeline/span(s)", 0.09),
                    ("pipeline/busy(s)", 0.085),
                    ("comm/share(%)", 5.0),
                    ("memory/max_resident(GiB)", 1.0),
                ]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
                values.insert(format!("pipeline/stage_{rank}/forward(s)"), 0.04);
                values.insert(format!("pipeline/stage_{rank}/peak_live"), 2.0);
                f(rank, step, &mut values);
                (step, values)
            };
            let facts = [
                ("run/schedule", "1F1B"),
                ("run/microbatches", "32"),
                ("run/mesh", "1x2x1"),
                ("run/layers", "4,4"),
            ];
            let facts = facts.map(|(name, value)| (name.to_owned(), value.into())).into();
            RankHistory { rank, facts, steps: (1..40).map(values).collect(), incarnations: 1 }
        };
        History { ranks: vec![rank(0), rank(1)], folder: "metrics".into() }
    }

    fn shown(f: impl Fn(usize, u64, &mut BTreeMap<String, f64>)) -> Vec<String> {
        examine(Some(&run(f)), &[]).into_iter().map(|it| it.symptom).collect()
    }

    fn set(values: &mut BTreeMap<String, f64>, name: &str, value: f64) {
        values.insert(name.to_owned(), value);
    }

    #[test]
    fn a_healthy_run_shows_nothing() {
        assert_eq!(shown(|_, _, _| {}), [""; 0]);
    }

    #[test]
    fn each_ailment_shows_its_own_symptom() {
        assert_eq!(
            shown(|_, step, it| set(it, "time_metrics/end_to_end(s)", if step % 2 == 0 { 0.1 } else { 0.2 })),
            ["step-time-varies"]
        );
        assert_eq!(shown(|_, _, it| set(it, "comm/share(%)", 40.0)), ["communication-bound"]);
        assert_eq!(shown(|_, _, it| set(it, "pipeline/busy(s)", 0.06)), ["slow-though-busy"]);
        assert_eq!(
            shown(|rank, _, it| set(
                it,
                &format!("pipeline/stage_{rank}/forward(s)"),
                if rank == 1 { 0.2 } else { 0.04 }
            )),
            ["stage-imbalance"]
        );
        assert_eq!(
            shown(|rank, _, it| set(it, "memory/max_resident(GiB)", 1.0 + 3.0 * rank as f64)),
            ["memory-out-of-line"]
        );
        assert_eq!(
            shown(|_, step, it| if step == 20 {
                it.remove("loss_metrics/global_avg_loss");
            }),
            ["not-finite"]
        );
        assert_eq!(
            shown(|_, step, it| if step == 30 {
                set(it, "loss_metrics/global_avg_loss", 6.0);
            }),
            ["loss-jitter"]
        );
    }

    #[test]
    fn idle_time_that_uneven_stages_explain_is_their_fault_and_not_the_networks() {
        let uneven = |busy: f64| {
            shown(move |rank, _, it| {
                set(it, "pipeline/span(s)", 0.2);
                set(it, "pipeline/busy(s)", if rank == 1 { 0.2 } else { busy });
                set(it, &format!("pipeline/stage_{rank}/forward(s)"), if rank == 1 { 0.2 } else { 0.1 });
            })
        };
        assert_eq!(
            uneven(0.1),
            ["stage-imbalance"],
            "a quarter of the time is idle, as one stage takes twice as long"
        );
        assert_eq!(
            uneven(0.02),
            ["slow-though-busy", "stage-imbalance"],
            "and this is more than that explains"
        );
    }

    #[test]
    fn scenes_name_who_stopped_first_and_all_symptoms_are_explained() {
        let scene = |rank, at, what: &str, waiting: Option<&str>| Scene {
            rank,
            failed: None,
            waiting: waiting.map(str::to_owned),
            last: Some((at, what.to_owned())),
        };
        let scenes = [scene(0, 2.0, "0F3", None), scene(1, 5.0, "1RECV_F3", Some("activations from rank 0"))];
        let found = examine(None, &scenes);
        assert!(found[0].evidence.contains("rank 0 began nothing new for the longest"), "{found:?}");
        assert!(
            found[0]
                .evidence
                .contains("rank 1: last 1RECV_F3 at 5.000 s, waiting for activations from rank 0")
        );
        let known = Knowledge::read().unwrap();
        for id in [
            "hang",
            "not-finite",
            "loss-jump-after-resume",
            "loss-jitter",
            "step-time-varies",
            "communication-bound",
            "slow-though-busy",
            "periodic-idle",
            "stage-imbalance",
            "memory-out-of-line",
        ] {
            assert!(known.symptom(id).is_some(), "{id}");
        }
    }
}
