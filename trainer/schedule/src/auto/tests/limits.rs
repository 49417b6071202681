//! Memory limits of each rank, and stages that can't be split.

use proptest::prelude::*;

use super::*;
use crate::{Action, Memory, StageMemory, Step, memory};

fn count(table: &Table, wanted: fn(&Action) -> bool) -> usize {
    table.ranks.iter().flatten().filter(|action| wanted(action)).count()
}

#[track_caller]
fn within_limits(problem: &Problem, plan: &Plan) {
    let found = simulate(&plan.table, &problem.timing).unwrap();
    for (usage, limit) in memory(&plan.table, &found, &problem.memory).iter().zip(&problem.limits) {
        assert!(usage.peak <= limit * (1.0 + 1e-9), "{} over {limit}", usage.peak);
    }
}

#[test]
fn without_splittable_stages_a_plan_is_1f1b() {
    for (ranks, microbatches) in [(2, 4), (4, 8), (5, 5)] {
        let problem = Problem::even(ranks, microbatches, Times::UNIT, (0.5, ranks as f64));
        let problem = Problem { splittable: vec![false; ranks], ..problem };
        let plan = plan(&problem, Effort::default()).unwrap();
        assert_eq!(count(&plan.table, |action| matches!(action.step, Step::I(_) | Step::W(_))), 0);
        assert!((plan.cost - by_hand("1F1B", &problem)).abs() < 1e-9, "{}", plan.cost);
        within_limits(&problem, &plan);
    }
}

#[test]
fn one_stage_that_cannot_be_split_does_whole_backwards_and_the_others_go_on_splitting() {
    let problem = Problem::even(4, 8, Times::UNIT, (0.5, 4.0));
    let mixed = Problem { splittable: vec![true, true, false, true], ..problem.clone() };
    let plan_of = |problem: &Problem| plan(problem, Effort(2_000_000)).unwrap();
    let (free, mixed_plan) = (plan_of(&problem), plan_of(&mixed));
    assert!(mixed_plan.table.row(2).iter().all(|it| matches!(it.step, Step::F(_) | Step::B(_))));
    assert_eq!(count(&mixed_plan.table, |action| matches!(action.step, Step::W(_))), 24);
    assert!(free.cost <= mixed_plan.cost && mixed_plan.cost <= by_hand("1F1B", &problem));
    within_limits(&mixed, &mixed_plan);
}

#[test]
fn a_backward_that_is_cheaper_whole_is_taken_whole_where_nothing_waits_for_its_half() {
    let mut problem = Problem::even(2, 4, Times::UNIT, (1.0, 4.0));
    for stage in &mut problem.timing.stages {
        stage.both = Some(1.5);
    }
    let plan = plan(&problem, Effort(1_000_000)).unwrap();
    assert!(count(&plan.table, |action| matches!(action.step, Step::B(_))) > 0, "{}", plan.table);
    // The second rank alone needs 4 (1 + 1.5).
    assert!(plan.cost <= by_hand("ZBH1", &problem).min(by_hand("1F1B", &problem)), "{}", plan.cost);
}

#[test]
fn a_limit_of_one_rank_is_kept_and_others_use_their_own() {
    let problem = Problem::even(4, 12, Times::UNIT, (0.5, 7.0));
    let tight = Problem { limits: vec![2.0, 7.0, 7.0, 7.0], ..problem.clone() };
    let (free, tight_plan) =
        (plan(&problem, Effort::NONE).unwrap(), plan(&tight, Effort(2_000_000)).unwrap());
    within_limits(&tight, &tight_plan);
    assert!(tight_plan.cost > free.cost);
}

#[test]
fn a_limit_below_one_microbatch_is_refused_with_the_least_that_would_do() {
    let mut problem = Problem::even(2, 4, Times::UNIT, (0.5, 3.0));
    let stage = StageMemory { activation: 2.0, kept: 1.0, weights: 5.0, gathered: 0.0 };
    problem.memory = Memory { stages: vec![stage; 2] };
    problem.limits = vec![7.0, 6.5];
    let refused = plan(&problem, Effort::NONE).unwrap_err().to_string();
    assert!(refused.contains("rank 1 may hold 6.5") && refused.contains("take 7"), "{refused}");
    problem.limits[1] = f64::NAN;
    assert!(plan(&problem, Effort::NONE).is_err());
    problem.limits = vec![7.0, 7.0];
    within_limits(&problem, &plan(&problem, Effort::NONE).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_times_limits_and_unsplittable_stages_give_a_valid_plan_within_limits(
        stages in prop::collection::vec((0.1..2.0_f64, 0.1..2.0_f64, 0.0..2.0_f64, 0.0..1.4_f64, 0.0..9.0_f64, any::<bool>()), 1..6),
        microbatches in 1_usize..9, transfer in 0.0..0.5_f64, span in any::<bool>(),
    ) {
        let timing = stages.iter().map(|it| StageTimes::new(it.0, it.1, it.2)).collect();
        let held = |kept| StageMemory { activation: 1.0, kept, ..StageMemory::default() };
        let problem = Problem {
            timing: crate::Timing::of_stages(timing, transfer),
            memory: Memory { stages: stages.iter().map(|it| held(it.3)).collect() },
            // Room for one microbatch at least.
            limits: stages.iter().map(|it| it.3.max(1.0) + it.4).collect(),
            splittable: stages.iter().map(|it| it.5).collect(),
            microbatches,
            goal: if span { Goal::LongestRank } else { Goal::Makespan },
        };
        let (first, best) = (greedy(&problem).unwrap(), plan(&problem, Effort(100_000)).unwrap());
        prop_assert!(best.cost <= first.cost);
        for plan in [&first, &best] {
            // The simulation validates it.
            let found = simulate(&plan.table, &problem.timing).unwrap();
            for (usage, limit) in memory(&plan.table, &found, &problem.memory).iter().zip(&problem.limits) {
                prop_assert!(usage.peak <= limit + 1e-6, "{} {}", usage.peak, limit);
            }
        }
    }
}
