//! Automatic schedules: the published rates, limits, stages that can't be split, and that the search never loses.

mod limits;
mod paper;

use super::*;
use crate::{Shape, StageTimes, Times, generate, named, simulate};

/// What a published schedule takes by the goal.
fn by_hand(name: &str, problem: &Problem) -> f64 {
    let (ranks, microbatches) = (problem.ranks(), problem.microbatches);
    let table = generate(named(name).unwrap(), Shape { stages: ranks, ranks, microbatches }).unwrap();
    let found = simulate(&table, &problem.timing).unwrap();
    match problem.goal {
        Goal::Makespan => found.makespan,
        Goal::LongestRank => found.longest_rank(),
    }
}

fn uneven(ranks: usize, microbatches: usize, goal: Goal) -> Problem {
    let times = Times { forward: 1.0, input: 1.3, weight: 0.6, transfer: 0.1 };
    let mut problem =
        Problem { goal, ..Problem::even(ranks, microbatches, times, (0.5, ranks as f64 * 1.5)) };
    for (rank, stage) in problem.timing.stages.iter_mut().enumerate() {
        let share = [1.0, 0.8, 1.25, 1.1][rank % 4];
        *stage = StageTimes::new(stage.forward * share, stage.input * share, stage.weight * share);
    }
    problem
}

#[test]
fn a_plan_is_never_worse_than_greedy_and_often_better_where_stages_are_uneven_and_memory_is_short() {
    let mut better = 0;
    for goal in [Goal::Makespan, Goal::LongestRank] {
        for (ranks, microbatches) in [(2, 4), (3, 7), (4, 8), (6, 9)] {
            for limit in [0.75, 1.0, 1.5] {
                let problem = uneven(ranks, microbatches, goal);
                let problem = Problem { limits: vec![(limit * ranks as f64).max(1.0); ranks], ..problem };
                let (first, best) = (greedy(&problem).unwrap(), plan(&problem, Effort(1_000_000)).unwrap());
                assert!(best.cost <= first.cost, "{ranks} {microbatches}: {} {}", best.cost, first.cost);
                assert!(best.cost >= problem.floor() - 1e-9);
                better += usize::from(best.cost < first.cost * 0.999);
                let found = simulate(&best.table, &problem.timing).unwrap();
                let cost = if goal == Goal::Makespan { found.makespan } else { found.longest_rank() };
                assert!(
                    (cost - best.cost).abs() < 1e-9,
                    "the plan says {}, the simulation {cost}",
                    best.cost
                );
            }
        }
    }
    assert!(better >= 10, "{better} of 24 are better than the greedy ones");
}

#[test]
fn a_plan_is_never_worse_than_a_published_order_that_fits_the_memory() {
    for goal in [Goal::Makespan, Goal::LongestRank] {
        let problem = Problem { limits: vec![7.0; 4], ..uneven(4, 8, goal) };
        let best = plan(&problem, Effort(1_000_000)).unwrap();
        for name in ["1F1B", "ZBH1", "ZBH2"] {
            let known = by_hand(name, &problem);
            assert!(best.cost <= known + 1e-9, "{name}: {} {known}", best.cost);
        }
    }
}

#[test]
fn equal_times_reach_the_floor_of_one_fill_and_no_idle_rank() {
    let problem = Problem::even(4, 8, Times::UNIT, (1.0, 7.0));
    assert!((plan(&problem, Effort::NONE).unwrap().cost - 27.0).abs() < 1e-9);
    let longest = Problem { goal: Goal::LongestRank, ..problem };
    assert!((plan(&longest, Effort::NONE).unwrap().cost - 24.0).abs() < 1e-9);
}

#[test]
fn the_same_problem_gives_the_same_plan() {
    let problem = uneven(4, 8, Goal::Makespan);
    let of = || plan(&problem, Effort(500_000)).unwrap();
    assert_eq!(of(), of());
}

#[test]
fn more_effort_is_never_worse() {
    let problem = uneven(4, 10, Goal::Makespan);
    let costs = [0, 50_000, 500_000, 5_000_000].map(|effort| plan(&problem, Effort(effort)).unwrap().cost);
    assert!(costs.is_sorted_by(|a, b| a >= b), "{costs:?}");
}
