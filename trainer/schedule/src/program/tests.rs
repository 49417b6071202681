//! Programs that must be refused: orders that would hang or mix messages up.

use super::{
    super::{Blocked, Deadlock, Gather, Shape, generate, lower, named},
    *,
};

fn good() -> Table {
    let shape = Shape { stages: 2, ranks: 2, microbatches: 3 };
    let table = generate(named("1F1B").unwrap(), shape).unwrap();
    lower(&table, Gather::PerPart).unwrap().table().clone()
}

fn swap(table: &mut Table, rank: usize, one: &str, other: &str) {
    let row = &mut table.ranks[rank];
    let at = |cell: &str| row.iter().position(|it| it.to_string() == cell).unwrap();
    let (one, other) = (at(one), at(other));
    row.swap(one, other);
}

fn remove(table: &mut Table, rank: usize, cell: &str) {
    table.ranks[rank].retain(|it| it.to_string() != cell);
}

#[test]
fn a_lowered_table_is_a_program() {
    assert_eq!(Program::new(good()).unwrap().table(), &good());
}

#[test]
fn swapped_receives_break_rule_a_and_both_sides_are_named() {
    let mut table = good();
    swap(&mut table, 1, "1RECV_F0", "1RECV_F1");
    let refused = Program::new(table).unwrap_err().to_string();
    assert_eq!(
        refused,
        "rank 0, step 1, cell 0SEND_F0: as exchange 0 with rank 1 it needs 1RECV_F0 on the other side, which has \
         1RECV_F1 (step 0)"
    );
}

#[test]
fn swapped_directions_break_rule_a() {
    let mut table = good();
    swap(&mut table, 0, "0SEND_F2", "0RECV_B0");
    let refused = Program::new(table).unwrap_err();
    assert!(matches!(refused, ScheduleError::Cell { fault: CellFault::Pair { .. }, .. }), "{refused}");
}

#[test]
fn a_message_that_nobody_receives_breaks_rule_a() {
    let mut table = good();
    remove(&mut table, 1, "1SEND_B2");
    let refused = Program::new(table).unwrap_err().to_string();
    assert!(refused.contains("cell 0RECV_B2: as exchange 5 with rank 1") && refused.ends_with("has nothing"));
    let mut table = good();
    remove(&mut table, 0, "0RECV_B2");
    let refused = Program::new(table).unwrap_err().to_string();
    assert!(refused.starts_with("rank 1,") && refused.contains("cell 1SEND_B2"), "{refused}");
}

/// Three ranks; each pair agrees on its order, and yet rank 0 waits for 1, 1 for 2 and 2 for 0.
#[test]
fn a_circle_of_blocking_sends_breaks_rule_b_though_rule_a_holds() {
    let shape = Shape { stages: 6, ranks: 3, microbatches: 1 };
    let table = generate(named("GPipe").unwrap(), shape).unwrap();
    let mut table = lower(&table, Gather::PerPart).unwrap().table().clone();
    swap(&mut table, 0, "3RECV_F0", "0SEND_F0");
    let refused = Program::new(table).unwrap_err();
    let ScheduleError::Deadlock(found) = &refused else { panic!("{refused}") };
    assert_eq!(found.blocked.len(), 3, "{refused}");
    assert!(refused.to_string().contains("cell 3RECV_F0 waits for 2SEND_F0 of rank 2, which is at 2RECV_F0"));
}

#[test]
fn a_send_before_its_computation_breaks_rule_b() {
    let mut table = good();
    swap(&mut table, 0, "0F0", "0SEND_F0");
    let refused = Program::new(table).unwrap_err().to_string();
    assert!(refused.contains("rank 0, step 0, cell 0SEND_F0 waits for 0F0 on this rank"), "{refused}");
}

#[test]
fn a_computation_before_its_receive_breaks_rule_b() {
    let mut table = good();
    swap(&mut table, 1, "1F0", "1RECV_F0");
    let refused = Program::new(table).unwrap_err().to_string();
    assert!(refused.contains("rank 1, step 0, cell 1F0 waits for 0F0 on this rank"), "{refused}");
}

#[test]
fn gradients_are_reduced_once_and_last() {
    let mut table = good();
    swap(&mut table, 0, "0B2", "0REDUCE_GRAD");
    let refused = Program::new(table).unwrap_err().to_string();
    assert!(refused.contains("cell 0REDUCE_GRAD: it needs 0B2"), "{refused}");
    let mut table = good();
    remove(&mut table, 0, "0REDUCE_GRAD");
    assert!(Program::new(table).unwrap_err().to_string().contains("cell 0REDUCE_GRAD is missing"));
}

#[test]
fn communication_at_the_ends_of_the_pipeline_and_twice_is_refused() {
    let mut table = good();
    table.ranks[1].push("1SEND_F0".parse().unwrap());
    assert!(Program::new(table).unwrap_err().to_string().contains("no neighbouring stage on another rank"));
    let mut table = good();
    table.ranks[0].push("0SEND_F0".parse().unwrap());
    assert!(Program::new(table).unwrap_err().to_string().contains("it was there already, at step 1"));
}

#[test]
fn the_circle_of_a_deadlock_is_told_from_ranks_that_only_wait_for_it() {
    let blocked = |rank, on| Blocked {
        rank,
        step: 0,
        cell: Action::new(rank, Step::F(0)),
        waits_for: String::new(),
        on,
    };
    let circle = |waits: &[(usize, usize)]| {
        Deadlock { blocked: waits.iter().map(|(rank, on)| blocked(*rank, *on)).collect() }.circle()
    };
    assert_eq!(circle(&[(0, 1), (1, 2), (2, 1)]), [1, 2]);
    assert_eq!(circle(&[(0, 3), (3, 3)]), [3]);
    assert!(circle(&[(0, 1)]).is_empty());
}

/// Whatever two neighbouring messages of a row are swapped, and wherever, it is found, and a cell of that row is named, or
/// one that waits for it.
#[test]
fn every_swap_of_two_messages_of_a_row_is_caught() {
    for name in ["1F1B", "ZBVZeroBubble", "Interleaved1F1B", "DualPipeV"] {
        let generator = named(name).unwrap();
        let each = *generator.stages_per_rank().start();
        let table = generate(generator, Shape { stages: 3 * each, ranks: 3, microbatches: 6 }).unwrap();
        let table = lower(&table, Gather::PerPart).unwrap().table().clone();
        let mut swaps = 0;
        for rank in 0..3 {
            let sent: Vec<_> = (0..table.ranks[rank].len())
                .filter(|at| peer(&table.placement, table.ranks[rank][*at]).is_some())
                .collect();
            for at in sent.windows(2) {
                let (one, other) = (table.ranks[rank][at[0]], table.ranks[rank][at[1]]);
                if peer(&table.placement, one) != peer(&table.placement, other) {
                    continue;
                }
                let mut swapped = table.clone();
                swapped.ranks[rank].swap(at[0], at[1]);
                let refused = Program::new(swapped).map(|_| ()).unwrap_err().to_string();
                assert!(refused.contains("rank ") && refused.contains("step "), "{refused}");
                swaps += 1;
            }
        }
        assert!(swaps > 10, "{name}: {swaps}");
    }
}

#[test]
fn the_turn_of_a_v_and_neighbours_on_one_rank_exchange_nothing() {
    let table = generate(named("ZBV").unwrap(), Shape { stages: 8, ranks: 4, microbatches: 8 }).unwrap();
    let program = lower(&table, Gather::PerPart).unwrap();
    let messages = |stage: usize, of: &[fn(usize) -> Step]| {
        let cells = program.table().ranks.iter().flatten();
        cells.filter(|it| it.stage == stage && of.iter().any(|of| it.step == of(0))).count()
    };
    assert_eq!(messages(3, &[Step::SendF, Step::RecvB]), 0, "stage 3 hands over to stage 4 on its rank");
    assert_eq!(messages(4, &[Step::RecvF, Step::SendB]), 0);
    assert_eq!(messages(7, &[Step::SendF, Step::RecvB]), 0, "the last stage has the loss");
    assert_eq!(messages(2, &[Step::SendF, Step::RecvB]), 2);
}

#[test]
fn gathers_and_releases_come_in_turns_and_hold_what_is_computed() {
    let row = |text: &str| {
        let row = text.split(' ').map(|cell| cell.parse().unwrap()).collect();
        Program::new(Table { placement: Placement::looped(1, 1).unwrap(), microbatches: 1, ranks: vec![row] })
    };
    row("0UNSHARD 0F0 0I0 0RESHARD 0W0 0REDUCE_GRAD").unwrap();
    row("0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD").unwrap();
    for (text, why) in [
        (
            "0UNSHARD 0UNSHARD 0F0 0B0 0RESHARD 0REDUCE_GRAD",
            "cell 0UNSHARD: its weights are gathered already, since step 0",
        ),
        ("0RESHARD 0F0 0B0 0REDUCE_GRAD", "cell 0RESHARD: the weights of stage 0 are not gathered here"),
        (
            "0F0 0UNSHARD 0B0 0RESHARD 0REDUCE_GRAD",
            "step 0, cell 0F0: the weights of stage 0 are not gathered here",
        ),
        (
            "0UNSHARD 0F0 0RESHARD 0B0 0REDUCE_GRAD",
            "step 3, cell 0B0: the weights of stage 0 are not gathered here",
        ),
        ("0UNSHARD 0F0 0B0 0REDUCE_GRAD", "step 4 (the end of its row): cell 0RESHARD is missing"),
    ] {
        let refused = row(text).unwrap_err().to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
