//! What goes wrong in a run ends it as one clear error; the other ranks name the rank that went away.

use schedule::{Gather, lower};

use super::{
    pipelines::{Ran, STEP, pipeline, program},
    tiny::Tiny,
    wire::wires,
};
use crate::{Error, ErrorKind, Result};

fn errors(ran: Vec<Result<Ran>>) -> Vec<Option<Error>> {
    ran.into_iter().map(Result::err).collect()
}

#[test]
fn an_error_inside_forward_names_rank_step_cell_stage_and_part() {
    let mut model = Tiny::new(4, false);
    // The last of three microbatches has three rows.
    model.fails = Some((2, 3));
    let programs = vec![program("1F1B", 2, 2, 3); 2];
    let found = errors(pipeline(&model, "2,2", &programs, wires(2)));
    let cause = found[1].as_ref().unwrap();
    assert_eq!(cause.kind(), ErrorKind::Internal);
    let said = cause.to_string();
    assert!(said.starts_with("pipeline rank 1, step 9 of 13, 1F2 "), "{said}");
    assert!(said.contains("»1F2«") && said.ends_with("stage 1, layers.2: the layer broke"), "{said}");
    let other = found[0].as_ref().unwrap();
    assert_eq!(other.kind(), ErrorKind::Peer);
    assert!(other.to_string().ends_with("rank 1 is gone"), "{other}");
}

#[test]
fn a_lost_message_is_told_by_the_header_of_the_next_one() {
    let model = Tiny::new(4, false);
    let mut ends = wires(2);
    ends[0].loses = Some(1);
    let found = errors(pipeline(&model, "2,2", &vec![program("GPipe", 2, 2, 3); 2], ends));
    let cause = found[1].as_ref().unwrap();
    assert_eq!(cause.kind(), ErrorKind::Corrupt);
    let said = cause.to_string();
    assert!(
        said.contains("1RECV_F1") && said.contains(&format!("step: {STEP}, stage: 1, microbatch: 2")),
        "{said}"
    );
    assert_eq!(found[0].as_ref().unwrap().kind(), ErrorKind::Peer);
}

#[test]
fn the_last_message_lost_is_a_peer_that_is_gone_or_late() {
    let model = Tiny::new(4, false);
    let mut ends = wires(2);
    ends[1].loses = Some(2);
    let found = errors(pipeline(&model, "2,2", &vec![program("1F1B", 2, 2, 3); 2], ends));
    assert!(found[1].is_none(), "the sender can't know");
    let said = found[0].as_ref().unwrap().to_string();
    assert!(said.contains("»0RECV_B2«") && said.ends_with("rank 1 is gone"), "{said}");
}

#[test]
fn ranks_that_run_different_orders_are_told_by_the_first_header() {
    let model = Tiny::new(4, false);
    let straight = program("GPipe", 2, 2, 2);
    let mut swapped = straight.table().clone();
    swapped.ranks = ["0F1 0F0 0B0 0B1", "1F1 1F0 1B0 1B1"]
        .map(|row| row.split(' ').map(|cell| cell.parse().unwrap()).collect())
        .to_vec();
    let swapped = lower(&swapped, Gather::PerPart).unwrap();
    let found = errors(pipeline(&model, "2,2", &[straight, swapped], wires(2)));
    let cause = found[1].as_ref().unwrap();
    assert_eq!(cause.kind(), ErrorKind::Corrupt);
    let said = cause.to_string();
    assert!(
        said.contains("»1RECV_F1«") && said.contains("microbatch: 0") && said.contains("microbatch: 1"),
        "{said}"
    );
}
