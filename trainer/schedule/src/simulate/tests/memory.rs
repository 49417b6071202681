//! Memory over time.

use super::{super::*, close, table};
use crate::{Gather, Times, lower};

#[test]
fn h1_holds_p_microbatches_less_what_input_gradients_freed() {
    for (ranks, microbatches) in [(2, 4), (4, 8), (8, 32)] {
        let table = table("ZBH1", ranks, 1, microbatches);
        let found = simulate(&table, &Times::UNIT).unwrap();
        let held = memory(&table, &found, &Memory::share(&table.placement, 1000.0, 400.0));
        for (rank, usage) in held.iter().enumerate() {
            // (P − r) M_B + r M_W.
            close(usage.peak, (ranks - rank) as f64 * 1000.0 + rank as f64 * 400.0);
            close(usage.timeline.last().unwrap().1, 0.0);
        }
    }
}

#[test]
fn h2_holds_up_to_2p_less_1_microbatches() {
    let table = table("ZBH2", 4, 1, 12);
    let found = simulate(&table, &Times::UNIT).unwrap();
    let held = memory(&table, &found, &Memory::share(&table.placement, 1000.0, 400.0));
    for (rank, usage) in held.iter().enumerate() {
        // (2P − 1 − 2r) M_B + 2r M_W.
        close(usage.peak, (7 - 2 * rank) as f64 * 1000.0 + (2 * rank) as f64 * 400.0);
    }
}

#[test]
fn live_microbatches_are_counted_as_the_literature_counts_them() {
    for (name, per_rank) in [("GPipe", 1), ("1F1B", 1), ("ZBH1", 1), ("Interleaved1F1B", 2)] {
        let table = table(name, 4, per_rank, 8);
        let found = simulate(&table, &Times::UNIT).unwrap();
        let live = memory(&table, &found, &Memory::live(&table.placement));
        for (usage, count) in live.iter().zip(&found.peak_live) {
            close(usage.peak, *count as f64 / per_rank as f64);
        }
    }
}

#[test]
fn the_time_line_tells_when_what_is_held() {
    let table = table("1F1B", 1, 1, 2);
    let found = simulate(&table, &Times::UNIT).unwrap();
    let stage = StageMemory { activation: 10.0, kept: 0.0, weights: 100.0, gathered: 0.0 };
    let held = memory(&table, &found, &Memory { stages: vec![stage] });
    // F from 0 to 1, B from 1 to 3; again.
    assert_eq!(held[0].timeline, [(0.0, 110.0), (3.0, 110.0), (6.0, 100.0)]);
    assert_eq!((held[0].peak, held[0].peak_at), (110.0, 0.0));
}

#[test]
fn gathered_weights_count_from_unshard_to_reshard() {
    let program = lower(&table("Interleaved1F1B", 2, 2, 2), Gather::Stages(1)).unwrap();
    let found = simulate_program(&program, &Times::UNIT, Communication::Posted);
    let stage = StageMemory { gathered: 7.0, ..StageMemory::default() };
    for usage in memory(program.table(), &found, &Memory { stages: vec![stage; 4] }) {
        close(usage.peak, 7.0);
        close(usage.timeline.last().unwrap().1, 0.0);
    }
}
