//! Rows as lowering must write them.

use super::{
    super::{Shape, generate, named},
    *,
};
use crate::grid::tables;

fn lowered(name: &str, stages: usize, ranks: usize, microbatches: usize, gather: Gather) -> Vec<String> {
    let table = generate(named(name).unwrap(), Shape { stages, ranks, microbatches }).unwrap();
    lower(&table, gather).unwrap().table().to_string().lines().map(str::to_owned).collect()
}

#[test]
fn sends_follow_their_computation_and_receives_come_at_that_moment() {
    assert_eq!(
        lowered("1F1B", 2, 2, 2, Gather::PerPart),
        [
            "0 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
            "1 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
        ]
    );
}

#[test]
fn stages_on_one_rank_need_no_communication() {
    assert_eq!(lowered("GPipe", 2, 1, 1, Gather::PerPart), ["0 0F0 1F0 1B0 1REDUCE_GRAD 0B0 0REDUCE_GRAD"]);
}

#[test]
fn weights_that_stay_are_gathered_before_the_stage_and_freed_after_it() {
    assert_eq!(
        lowered("GPipe", 2, 1, 1, Gather::Stages(1)),
        ["0 0UNSHARD 0F0 0RESHARD 1UNSHARD 1F0 1B0 1REDUCE_GRAD 1RESHARD 0UNSHARD 0B0 0REDUCE_GRAD 0RESHARD"]
    );
    assert_eq!(
        lowered("GPipe", 2, 1, 1, Gather::Stages(2)),
        ["0 0UNSHARD 1UNSHARD 0F0 1F0 1B0 1REDUCE_GRAD 1RESHARD 0B0 0REDUCE_GRAD 0RESHARD"]
    );
}

#[test]
fn the_last_weight_gradient_of_a_stage_is_followed_by_its_reduction() {
    let row: Vec<Action> = "0F0 0F1 0I0 0I1 0W1 0W0".split(' ').map(|cell| cell.parse().unwrap()).collect();
    assert_eq!(reduced(&row, 2).last().unwrap().to_string(), "0REDUCE_GRAD");
    assert_eq!(reduced(&row, 2).len(), row.len() + 1);
}

/// [`Program::new`] checks rules A and B.
#[test]
fn every_schedule_is_safe_under_blocking_sends_over_a_grid() {
    for (generator, shape, table) in tables() {
        // Gathers are added row by row: what they do shows on few ranks.
        let gathers = [Gather::PerPart, Gather::Stages(3)];
        for gather in gathers.into_iter().take(if shape.ranks > 4 { 1 } else { 2 }) {
            let lowered = lower(&table, gather).map(|_| ());
            assert_eq!(lowered, Ok(()), "{} {shape:?}", generator.name());
        }
    }
}

#[test]
fn what_the_forward_of_a_composite_gives_is_sent_before_its_backward() {
    let rows = lowered("DualPipeV", 4, 2, 4, Gather::PerPart);
    assert!(rows.iter().all(|row| !row.contains("OVERLAP")), "{rows:?}");
    assert!(rows[0].contains(" 0F3 0SEND_F3 3B1 3SEND_B1 "), "{}", rows[0]);
    assert!(rows[1].contains(" 2F2 2SEND_F2 1B0 1SEND_B0 "), "{}", rows[1]);
}

#[test]
fn both_stages_of_a_composite_are_gathered_before_it_and_reduced_after_it() {
    let rows = ["0F0 0F1 3F0 3B0 (0F2;3B1)OVERLAP_F_B", "1F0 2F0"]
        .map(|row| row.split(' ').map(|cell| cell.parse::<Action>().unwrap()).collect::<Vec<_>>());
    assert_eq!(upcoming(&rows[0], 2), [0, 3]);
    assert_eq!(upcoming(&rows[0][4..], 1), [0, 3], "both must be there at once");
    let reduced: Vec<_> = reduced(&rows[0], 2).iter().map(ToString::to_string).collect();
    assert_eq!(reduced.last().unwrap(), "3REDUCE_GRAD");
}
