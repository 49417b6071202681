//! Simulated makespans, bubbles and peaks against the literature's numbers and closed forms.

mod lowered;
mod memory;

use super::*;
use crate::{Shape, StageTimes, Times, Timing, generate, known, named};

pub(super) fn table(name: &str, ranks: usize, per_rank: usize, microbatches: usize) -> Table {
    let shape = Shape { stages: ranks * per_rank, ranks, microbatches };
    generate(named(name).unwrap(), shape).unwrap()
}

/// With `times` of a whole rank's share.
pub(super) fn run(
    name: &str,
    (ranks, per_rank, microbatches): (usize, usize, usize),
    times: Times,
) -> Simulation {
    simulate(&table(name, ranks, per_rank, microbatches), &times.of_part(per_rank)).unwrap()
}

#[track_caller]
pub(super) fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
}

#[test]
fn four_ranks_and_eight_microbatches_take_the_published_times() {
    for (name, per_rank, makespan, idle) in [
        ("GPipe", 1, 33.0, 27.3),
        ("1F1B", 1, 33.0, 27.3),
        ("GPipe", 2, 28.5, 15.8),
        ("Interleaved1F1B", 2, 28.5, 15.8),
        ("Interleaved1F1B", 4, 26.25, 8.6),
        ("ZBH1", 1, 27.0, 11.1),
        ("ZBH2", 1, 27.0, 11.1),
        ("LoopedBFS", 2, 28.5, 15.8),
        ("InterleavedZeroBubble", 2, 25.5, 5.9),
        ("ZBVZeroBubble", 2, 25.5, 5.9),
        ("VMin", 2, 29.5, 18.6),
        ("VHalf", 2, 28.5, 15.8),
        ("DualPipeV", 2, 25.5, 5.9),
    ] {
        let found = run(name, (4, per_rank, 8), Times::UNIT);
        close(found.makespan, makespan);
        let percent = 100.0 * found.bubbles().makespan;
        assert!((percent - idle).abs() < 0.05, "{name}: {percent}");
    }
}

#[test]
fn eight_ranks_and_32_microbatches_take_the_published_times() {
    for (name, per_rank, makespan) in [
        ("GPipe", 1, 117.0),
        ("1F1B", 1, 117.0),
        ("Interleaved1F1B", 2, 106.5),
        ("Interleaved1F1B", 4, 101.25),
        ("ZBH1", 1, 103.0),
        ("LoopedBFS", 2, 106.5),
        ("InterleavedZeroBubble", 2, 99.5),
        ("ZBVZeroBubble", 2, 99.5),
        ("VMin", 2, 109.5),
        ("VHalf", 2, 106.5),
        ("DualPipeV", 2, 99.5),
    ] {
        close(run(name, (8, per_rank, 32), Times::UNIT).makespan, makespan);
    }
}

#[test]
fn the_bubble_table_of_the_literature_comes_out_at_any_ratio_of_forward_and_backward() {
    for (ranks, microbatches, percent) in [(2, 4, 20.0), (4, 8, 27.3), (4, 32, 8.6), (8, 32, 17.9)] {
        for times in [Times::UNIT, Times { weight: 0.2, input: 1.7, ..Times::UNIT }] {
            for name in ["GPipe", "1F1B"] {
                let bubble = 100.0 * run(name, (ranks, 1, microbatches), times).bubble();
                assert!((bubble - percent).abs() < 0.05, "{name} {ranks} {microbatches}: {bubble}");
            }
        }
    }
}

#[test]
fn every_closed_form_is_what_the_simulation_finds() {
    let forms = [
        Times::UNIT,
        Times { forward: 1.0, input: 1.2, weight: 0.8, transfer: 0.0 },
        Times { forward: 2.0, input: 1.5, weight: 1.25, transfer: 0.0 },
    ];
    let mut compared = std::collections::BTreeMap::new();
    for name in known() {
        for (ranks, microbatches) in [(2, 4), (2, 6), (3, 9), (4, 4), (4, 8), (4, 12), (5, 10), (8, 32)] {
            for per_rank in [1, 2, 3, 4] {
                let shape = Shape { stages: ranks * per_rank, ranks, microbatches };
                let Ok(table) = generate(named(name).unwrap(), shape) else { continue };
                for times in forms {
                    let Some(formula) = formula(name, shape, times) else { continue };
                    let found = simulate(&table, &times.of_part(per_rank)).unwrap();
                    let at = format!("{name} {shape:?} {times:?}");
                    if let Some(expected) = formula.makespan {
                        assert!(
                            (found.makespan - expected).abs() < 1e-9,
                            "{at}: {} {expected}",
                            found.makespan
                        );
                        *compared.entry(name).or_insert(0) += 1;
                    }
                    if let Some(peak) = formula.peak {
                        let live: Vec<f64> =
                            found.peak_live.iter().map(|it| *it as f64 / per_rank as f64).collect();
                        assert_eq!(live, peak, "{at}");
                    }
                }
            }
        }
    }
    for name in known() {
        assert!(compared.get(name).is_some_and(|count| *count >= 3), "{name}: {compared:?}");
    }
}

#[test]
fn without_weight_gradients_to_move_zero_bubble_falls_back_to_the_interleaved_bubble() {
    let none = Times { weight: 0.0, ..Times::UNIT };
    let interleaved = run("Interleaved1F1B", (4, 2, 8), Times::UNIT).bubble();
    assert!((interleaved - 0.158).abs() < 0.0005, "{interleaved}");
    for name in ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"] {
        close(run(name, (4, 2, 8), none).bubble(), interleaved);
    }
    // With all of the weight gradient's time in the input gradient's the loop keeps that, and the V does not.
    let whole = Times { input: 2.0, ..none };
    close(run("InterleavedZeroBubble", (4, 2, 8), whole).bubble(), interleaved);
    close(run("ZBVZeroBubble", (4, 2, 8), whole).bubble(), 0.2);
    let uneven = Times { forward: 1.0, input: 1.2, weight: 0.8, transfer: 0.0 };
    for (name, published) in
        [("InterleavedZeroBubble", 0.080), ("ZBVZeroBubble", 0.070), ("DualPipeV", 0.080)]
    {
        let bubble = run(name, (4, 2, 8), uneven).bubble();
        assert!((bubble - published).abs() < 0.0005, "{name}: {bubble}");
    }
}

#[test]
fn zbv_with_too_few_microbatches_waits_2p_less_1_less_m_between_its_cells() {
    for microbatches in 1..=9 {
        let found = run("ZBVZeroBubble", (4, 2, microbatches), Times::UNIT);
        let beyond = found.longest_rank() - 3.0 * microbatches as f64;
        close(beyond, 7_usize.saturating_sub(microbatches) as f64);
    }
}

#[test]
fn microbatches_that_are_no_multiple_of_the_ranks_raise_the_interleaved_peaks() {
    let peak = |name, microbatches| {
        let live = run(name, (4, 2, microbatches), Times::UNIT).peak_live;
        live.into_iter().max().unwrap() as f64 / 2.0
    };
    assert_eq!([5, 6, 7].map(|m| peak("InterleavedZeroBubble", m)), [4.5, 5.0, 5.5]);
    close(peak("Interleaved1F1B", 7), 7.0);
}

#[test]
fn the_three_bubbles_of_one_schedule_differ_as_their_definitions_do() {
    let h2 = run("ZBH2", (4, 1, 8), Times::UNIT).bubbles();
    close(h2.makespan, 3.0 / 27.0);
    close(h2.ideal, 3.0 / 24.0);
    close(h2.longest_rank, 0.0);
    let steady = run("1F1B", (4, 1, 8), Times::UNIT).bubbles();
    close(steady.makespan, 3.0 / 11.0);
    close(steady.ideal, 3.0 / 8.0);
    close(steady.longest_rank, 3.0 / 11.0);
}

#[test]
fn a_transfer_delays_the_other_rank_only_by_edge_and_direction() {
    let table = table("1F1B", 3, 1, 1);
    let free = Timing::even(3, 1, Times::UNIT);
    let mut dear = free.clone();
    (dear.forward, dear.backward) = (vec![0.5, 0.25], vec![2.0, 1.0]);
    let (free, dear) = (simulate(&table, &free).unwrap(), simulate(&table, &dear).unwrap());
    close(dear.makespan - free.makespan, 3.75);
    close(dear.ranks[1].0, 1.5);
    close(dear.ranks[2].0, 2.75);
}

#[test]
fn a_slow_stage_and_a_backward_that_is_cheaper_whole_are_taken_as_given() {
    let mut stages = vec![StageTimes::new(1.0, 1.0, 1.0); 2];
    stages[1] = StageTimes { both: Some(1.5), ..StageTimes::new(3.0, 1.0, 1.0) };
    let timing = Timing { optimizer: 0.5, ..Timing::of_stages(stages, 0.0) };
    let found = simulate(&table("1F1B", 2, 1, 4), &timing).unwrap();
    // The second rank is never idle: its four forwards and backwards, between one forward and one backward of the first.
    close(found.makespan, 1.0 + 4.0 * 4.5 + 2.0);
    close(found.step(), found.makespan + 0.5);
    close(found.busy[1], 18.0);
}

#[test]
fn times_that_are_no_times_are_refused_by_stage() {
    let mut timing = Timing::even(2, 1, Times::UNIT);
    timing.stages[1].input = f64::NAN;
    assert!(timing.check(2).unwrap_err().to_string().contains("stage 1"));
    assert!(timing.check(3).unwrap_err().to_string().contains("times of 2 stages, but 3"));
    let slow = Timing { backward: vec![-1.0], ..Timing::even(2, 1, Times::UNIT) };
    assert!(slow.check(2).unwrap_err().to_string().contains("a transfer"));
}
