//! Where all ranks have room for the messages of a step, a message is waited for when a computation needs it.

use std::sync::mpsc::channel;

use schedule::{Gather, lower};

use super::{
    pipelines::{assert_same_bits_over, pipeline, program},
    tiny::Tiny,
    wire::{Wire, wires},
};
use crate::ErrorKind;

fn roomy(ranks: usize) -> Vec<Wire> {
    let mut ends = wires(ranks);
    ends.iter_mut().for_each(|wire| wire.room = 64);
    ends
}

#[test]
fn the_wait_for_a_message_comes_right_before_what_needs_it_and_bits_stay() {
    for (name, split) in [("1F1B", "2,2"), ("ZBH1", "2,2"), ("GPipe", "2,2"), ("1F1B", "1,1,1,1")] {
        let (model, ranks) = (Tiny::new(4, false), split.split(',').count());
        let program = program(name, ranks, ranks, 4);
        let ran = assert_same_bits_over(&model, split, &program, roomy(ranks));
        for (rank, ran) in ran.iter().enumerate() {
            let mut expected = Vec::new();
            for cell in program.table().row(rank) {
                let before = match cell.step {
                    schedule::Step::F(m) if rank > 0 => Some(format!("{rank}RECV_F{m}")),
                    schedule::Step::I(m) | schedule::Step::B(m) if rank + 1 < ranks => {
                        Some(format!("{rank}RECV_B{m}"))
                    }
                    // Noted when it is waited for.
                    schedule::Step::RecvF(_) | schedule::Step::RecvB(_) => continue,
                    _ => None,
                };
                expected.extend(before);
                expected.push(cell.to_string());
            }
            assert_eq!(ran.scene, expected.join(" "), "{name}, rank {rank}");
        }
    }
}

/// Rank 0's second message is only there once rank 1 has gone back with the first: who waited for it at its RECV would wait for ever.
#[test]
fn a_rank_goes_back_with_one_microbatch_while_the_next_one_is_not_there() {
    let program = program("1F1B", 2, 2, 2);
    let row: Vec<_> = program.table().row(1).iter().map(ToString::to_string).collect();
    let at = |cell: &str| row.iter().position(|it| it == cell).unwrap();
    assert!(at("1RECV_F1") < at("1B0") && at("1SEND_B0") < at("1F1"), "{row:?}");
    let mut ends = roomy(2);
    let (frees, told) = channel();
    (ends[0].holds, ends[1].frees) = (Some((1, told)), Some(frees));
    assert_same_bits_over(&Tiny::new(4, false), "2,2", &program, ends);
}

#[test]
fn a_message_that_is_not_the_one_due_is_named_by_the_receive_and_by_what_needed_it() {
    let model = Tiny::new(4, false);
    let straight = program("GPipe", 2, 2, 2);
    let mut swapped = straight.table().clone();
    swapped.ranks = ["0F1 0F0 0B0 0B1", "1F1 1F0 1B0 1B1"]
        .map(|row| row.split(' ').map(|cell| cell.parse().unwrap()).collect())
        .to_vec();
    let swapped = lower(&swapped, Gather::PerPart).unwrap();
    let found = pipeline(&model, "2,2", &[straight, swapped], roomy(2));
    let cause = found[1].as_ref().err().unwrap();
    assert_eq!(cause.kind(), ErrorKind::Corrupt);
    let said = cause.to_string();
    assert!(said.contains("»1F1«") && said.contains("]: 1RECV_F1: "), "{said}");
    assert!(said.contains("microbatch: 0") && said.contains("microbatch: 1"), "{said}");
    // A lost message is told by the next one from its sender.
    let mut ends = roomy(2);
    ends[0].loses = Some(1);
    let found = pipeline(&model, "2,2", &vec![program("GPipe", 2, 2, 3); 2], ends);
    let said = found[1].as_ref().err().unwrap().to_string();
    assert!(said.contains("1RECV_F1: ") && said.contains("microbatch: 2"), "{said}");
}
