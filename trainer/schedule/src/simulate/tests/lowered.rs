//! Lowered programs: communication and collectives as actions.

use proptest::prelude::*;

use super::{super::*, close, table};
use crate::{Gather, Times, Timing, lower};

fn program(name: &str, per_rank: usize, gather: Gather) -> Program {
    lower(&table(name, 4, per_rank, 8), gather).unwrap()
}

proptest! {
    #[test]
    fn posted_communication_takes_what_the_table_of_computations_takes(
        choice in 0_usize..9, ranks in 1_usize..5, rounds in 2_usize..4, times in prop::array::uniform4(0.0..3.0_f64),
    ) {
        let (name, per_rank) = [
            ("GPipe", 1), ("1F1B", 1), ("ZBH1", 1), ("ZBH2", 1), ("Interleaved1F1B", 2), ("InterleavedZeroBubble", 3),
            ("VHalf", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2),
        ][choice];
        let [forward, input, weight, transfer] = times;
        let times = Times { forward, input, weight, transfer };
        let table = table(name, ranks, per_rank, ranks * rounds);
        let plain = simulate(&table, &times).unwrap();
        let lowered = simulate_program(&lower(&table, Gather::PerPart).unwrap(), &times, Communication::Posted);
        // What is one cell in the table is two in the program, whose times are added in another order.
        let alike = |a: f64, b: f64| (a - b).abs() < 1e-9;
        prop_assert!(lowered.busy.iter().zip(&plain.busy).all(|(a, b)| alike(*a, *b)), "{:?}", lowered.busy);
        // A last value that is still on its way when nobody needs it any more would make a difference; there is none.
        prop_assert!(alike(lowered.makespan, plain.makespan), "{} {}", lowered.makespan, plain.makespan);
        let meeting = simulate_program(&lower(&table, Gather::PerPart).unwrap(), &times, Communication::Rendezvous);
        prop_assert!(meeting.makespan >= plain.makespan - 1e-9);
    }
}

/// As torch lowers it, both parts of a cell are sent when both are done.
#[test]
fn a_composite_whose_forward_is_sent_first_makes_a_shorter_step() {
    let ours = program("DualPipeV", 2, Gather::PerPart);
    let whole = table("DualPipeV", 4, 2, 8);
    let late: Vec<Vec<Action>> = (ours.table().ranks.iter().zip(&whole.ranks))
        .map(|(lowered, whole)| {
            let mut row = lowered.clone();
            for cell in whole.iter().filter(|cell| cell.parts().count() > 1) {
                let parts: Vec<_> = cell.parts().collect();
                let at = |row: &[Action], part| row.iter().position(|it| *it == part).unwrap();
                let first = at(&row, parts[0]);
                row.remove(first);
                let second = at(&row, parts[1]);
                // Sends of the forward go behind the cell.
                let sends = row.drain(first..second).collect::<Vec<_>>();
                row[first] = *cell;
                row.splice(first + 1..first + 1, sends);
            }
            row
        })
        .collect();
    let late = Program::new(Table { ranks: late, ..ours.table().clone() }).unwrap();
    for transfer in [0.0, 0.1] {
        let times = Times { transfer, ..Times::UNIT.of_part(2) };
        let [early, late] =
            [&ours, &late].map(|program| simulate_program(program, &times, Communication::Posted).makespan);
        println!("transfers of {transfer}: {early}, as one cell {late}");
        assert!(early < late * 0.97, "{early} {late}");
    }
}

#[test]
fn a_rendezvous_holds_both_ranks_for_the_transfer() {
    let times = Times { transfer: 0.5, ..Times::UNIT };
    let program = lower(&table("1F1B", 2, 1, 2), Gather::PerPart).unwrap();
    let found = simulate_program(&program, &times, Communication::Rendezvous);
    for (rank, row) in program.table().ranks.iter().enumerate() {
        for (step, action) in row.iter().enumerate() {
            if let Some(partner) = action.partner() {
                let (peer, at) =
                    (1 - rank, program.table().row(1 - rank).iter().position(|it| *it == partner).unwrap());
                assert_eq!(found.spans[rank][step], found.spans[peer][at]);
                close(found.spans[rank][step].1 - found.spans[rank][step].0, 0.5);
            }
        }
    }
    // Sends hold the first rank between its computations, and so the step is longer than with posted ones.
    let posted = simulate_program(&program, &times, Communication::Posted);
    assert!(found.makespan > posted.makespan, "{} {}", found.makespan, posted.makespan);
}

#[test]
fn weights_that_are_gathered_ahead_delay_the_first_computation_only() {
    let program = program("Interleaved1F1B", 2, Gather::Stages(2));
    let mut timing = Timing::even(8, 2, Times::UNIT);
    for stage in &mut timing.stages {
        (stage.gather, stage.reduce) = (0.25, 0.75);
    }
    let found = simulate_program(&program, &timing, Communication::Posted);
    // Each rank gathers its first stage while nothing can run, and reduces its last one when all is done.
    close(found.makespan, 28.5 + 0.25 + 0.75);
    let held = simulate_program(&program, &timing, Communication::Rendezvous);
    assert!(held.makespan > found.makespan);
    let gathers = program.table().row(0).iter().filter(|action| action.step == Step::Unshard).count();
    assert!(gathers >= 2, "{gathers}");
}
