//! What a rank without others gets and what is recorded of it; and records that fit together, or do not.

use tch::Kind as Dtype;

use super::*;
use crate::{
    Error, ErrorKind,
    transport::{Fault, Kind, Mode, Purpose, Tamper},
};

fn header(microbatch: usize, kind: Kind) -> Header {
    Header { step: 1, stage: 1, microbatch, kind, shapes: vec![vec![2, 3]], dtype: Dtype::Float }
}

fn purpose(text: &str) -> Purpose {
    Purpose(text.to_owned())
}

fn ones(shape: &[i64]) -> Tensor {
    Tensor::ones(shape, tch::kind::FLOAT_CPU)
}

/// Runs all ranks one after another, and compares what they did.
fn proven(ranks: usize, limits: &Limits, act: impl Fn(&FakeTransport)) -> Result<Vec<usize>> {
    let words = Arc::new(Words::default());
    let record = |rank| {
        let transport = FakeTransport::new(rank, ranks, limits.clone(), Arc::clone(&words));
        act(&transport);
        transport.record()
    };
    let records: Vec<Record> = (0..ranks).map(record).collect();
    prove(&records, &words, limits.room())
}

fn refused(found: Result<Vec<usize>>, kind: ErrorKind, words: &[&str]) {
    let error: Error = found.unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == kind && words.iter().all(|word| text.contains(word)), "{words:?}: {error:?}");
}

fn sync() -> Limits {
    Limits { mode: Mode::Sync, ..Limits::default() }
}

#[test]
fn what_imagined_ranks_answer_has_the_due_shape_and_stays_finite() {
    let rank = FakeTransport::new(1, 3, Limits::default(), Arc::default());
    let group = rank.group("tp", &[0, 1, 2]).unwrap();
    assert!(group.imagined() && !rank.group("self", &[1]).unwrap().imagined());
    let shapes = [vec![4], vec![2], vec![2]];
    let found = group.all_gather(&purpose("w"), &ones(&[2]), &shapes).unwrap();
    let sums: Vec<f64> = found.iter().map(|it| it.sum(Dtype::Float).double_value(&[])).collect();
    assert_eq!(found.iter().map(Tensor::size).collect::<Vec<_>>(), shapes);
    assert_eq!(sums, [0.0, 2.0, 2.0], "zeros where shapes differ, else copies");
    let parts = [3, 1, 2].map(|count| ones(&[count])).into();
    let found = group.exchange(&purpose("g"), parts, &[vec![1], vec![1], vec![1]]).unwrap();
    assert_eq!(found.iter().map(|it| it.double_value(&[0])).collect::<Vec<_>>(), [0.0, 1.0, 0.0]);
    assert!(group.all_reduce(&purpose("s"), ones(&[2])).unwrap().equal(&ones(&[2])));
    assert_eq!(group.all_gather_bytes(&purpose("b"), b"me").unwrap(), vec![b"me".to_vec(); 3]);
    let message = rank.recv(0, &header(0, Kind::Forward)).unwrap();
    assert_eq!((message.len(), message[0].size()), (1, vec![2, 3]));
    assert!(
        rank.recv(1, &header(0, Kind::Forward)).is_err()
            && rank.send(9, &header(0, Kind::Forward), &[]).is_err()
    );
}

#[test]
fn what_a_rank_sends_is_counted_by_group_and_operation_as_rings_do_it() {
    let words = Arc::new(Words::default());
    let rank = FakeTransport::new(0, 4, Limits::default(), Arc::clone(&words));
    let group = rank.group("dp", &[0, 1, 2, 3]).unwrap();
    let alone = rank.group("self", &[0]).unwrap();
    for _ in 0..3 {
        group.all_gather(&purpose("w"), &ones(&[5]), &vec![vec![5]; 4]).unwrap();
        let _ = alone.all_reduce(&purpose("w"), ones(&[5])).unwrap();
    }
    let _ = group.all_reduce(&purpose("g"), ones(&[8])).unwrap();
    rank.send(1, &header(0, Kind::Forward), &[ones(&[2, 3])]).unwrap();
    rank.send(1, &header(0, Kind::Backward), &[ones(&[2, 3])]).unwrap();
    let flows = Flows::of(&rank.record(), &words);
    assert_eq!(flows.of_group("dp", Some("all_gather")), Flow { count: 3, bytes: 3 * 3 * 20 });
    assert_eq!(flows.of_group("dp", None), Flow { count: 4, bytes: 180 + 2 * 32 * 3 / 4 });
    assert_eq!(flows.of_group("self", None), Flow::default());
    assert_eq!((flows.forward, flows.backward), (Flow { count: 1, bytes: 24 }, Flow { count: 1, bytes: 24 }));
    assert_eq!(rank.traffic().sent.bytes, 48);
}

/// Each microbatch goes to the next rank and comes back; then all add up.
fn pipeline(rank: &FakeTransport) {
    let world = rank.group("world", &(0..rank.size()).collect::<Vec<_>>()).unwrap();
    let (me, last) = (rank.rank(), rank.size() - 1);
    for microbatch in 0..4 {
        let (forward, backward) = (header(microbatch, Kind::Forward), header(microbatch, Kind::Backward));
        if me > 0 {
            rank.recv(me - 1, &forward).unwrap();
        }
        if me < last {
            rank.send(me + 1, &forward, &[ones(&[2, 3])]).unwrap();
            rank.recv(me + 1, &backward).unwrap();
        }
        if me > 0 {
            rank.send(me - 1, &backward, &[ones(&[2, 3])]).unwrap();
        }
    }
    rank.flush().unwrap();
    let _ = world.all_reduce(&purpose("gradients"), ones(&[2])).unwrap();
}

#[test]
fn ranks_that_fit_together_come_to_their_end_with_any_room() {
    for limits in [sync(), Limits { buffers: 1, ..Limits::default() }, Limits::default()] {
        let most = proven(4, &limits, pipeline).unwrap();
        assert_eq!(most.len(), 4);
        assert!(most.iter().all(|most| *most <= limits.room().max(1)), "{most:?}");
    }
}

#[test]
fn messages_that_are_not_what_is_expected_are_named_with_both_ranks() {
    for (fault, words) in [
        (Fault::Drop, ["message 1, while message 0 was due", "rank 0", "rank 1"]),
        (Fault::Swap, ["message 1, while message 0 was due", "overtaken", "microbatch 1"]),
        (Fault::Cut, ["cut short", "rank 1 got from rank 0", "microbatch 0"]),
        (Fault::Shape, ["[[2, 3]]", "[[1, 6]]", "rank 1 expected from rank 0"]),
        (Fault::Dtype, ["Float [[2, 3]]", "BFloat16 [[2, 3]]", "rank 1 expected from rank 0"]),
    ] {
        let limits = Limits { tamper: Some(Tamper { rank: 0, step: 1, fault }), ..Limits::default() };
        let found = proven(2, &limits, |rank| {
            for microbatch in 0..2 {
                let header = header(microbatch, Kind::Forward);
                match rank.rank() {
                    0 => rank.send(1, &header, &[ones(&[2, 3])]).unwrap(),
                    _ => drop(rank.recv(0, &header).unwrap()),
                }
            }
            rank.flush().unwrap();
        });
        refused(found, ErrorKind::Corrupt, &words);
    }
}

#[test]
fn a_message_that_nobody_sends_is_named_with_where_its_receiver_waits() {
    let found = proven(2, &Limits::default(), |rank| {
        rank.note(&"1RECV_F0");
        if rank.rank() == 1 {
            rank.recv(0, &header(0, Kind::Forward)).unwrap();
        }
    });
    let words = ["1 of 2 ranks can't go on", "rank 1 waits for activations of microbatch 0", "(at 1RECV_F0)"];
    refused(found, ErrorKind::Peer, &words);
}

#[test]
fn two_ranks_that_both_send_first_stand_still_only_without_room() {
    let both_first = |rank: &FakeTransport| {
        let (peer, header) = (1 - rank.rank(), header(0, Kind::Forward));
        rank.send(peer, &header, &[ones(&[2, 3])]).unwrap();
        rank.recv(peer, &header).unwrap();
        rank.flush().unwrap();
    };
    assert_eq!(proven(2, &Limits { buffers: 1, ..Limits::default() }, both_first).unwrap(), [1, 1]);
    let words = ["rank 0 waits for rank 1 to take activations", "in a circle: rank 0 → 1 → 0"];
    refused(proven(2, &sync(), both_first), ErrorKind::Peer, &words);
}

#[test]
fn members_that_are_at_different_collectives_are_both_named() {
    let found = proven(3, &Limits::default(), |rank| {
        let group = rank.group("tp", &[0, 1, 2]).unwrap();
        let what = if rank.rank() == 2 { "layer 2" } else { "layer 1" };
        let _ = group.all_reduce(&purpose(what), ones(&[2])).unwrap();
    });
    refused(
        found,
        ErrorKind::Corrupt,
        &["group tp: rank 2 is at", "layer 2", "while rank 0 is at", "layer 1"],
    );
}

#[test]
fn parts_that_are_not_what_others_expect_are_named_with_both_shapes() {
    let found = proven(2, &Limits::default(), |rank| {
        let group = rank.group("tp", &[0, 1]).unwrap();
        let (mine, theirs) = (2 + i64::try_from(rank.rank()).unwrap(), 2);
        let mut shapes = vec![vec![theirs]; 2];
        shapes[rank.rank()] = vec![mine];
        group.all_gather(&purpose("layer"), &ones(&[mine]), &shapes).unwrap();
    });
    refused(found, ErrorKind::Corrupt, &["layer", "rank 1 gave [3], and rank 0 expected [2]"]);
    let found = proven(2, &Limits::default(), |rank| {
        let group = rank.group("dp", &[0, 1]).unwrap();
        let given = [[1, 2], [4, 3]][rank.rank()].map(|count| ones(&[count])).into();
        let expected = [[vec![1], vec![5]], [vec![2], vec![3]]][rank.rank()].clone();
        group.exchange(&purpose("gradients"), given, &expected).unwrap();
    });
    refused(found, ErrorKind::Corrupt, &["gradients", "rank 1 gave [4], and rank 0 expected [5]"]);
    let found = proven(2, &Limits::default(), |rank| {
        let group = rank.group("dp", &[0, 1]).unwrap();
        let mine = ones(&[2, 1 + i64::try_from(rank.rank()).unwrap()]);
        let _ = group.all_reduce(&purpose("norm"), mine).unwrap();
    });
    refused(found, ErrorKind::Corrupt, &["norm", "[2, 1]", "[2, 2]"]);
}

#[test]
fn groups_that_are_made_in_another_order_stand_still_in_a_circle() {
    let found = proven(2, &Limits::default(), |rank| {
        let names = if rank.rank() == 0 { ["dp", "tp"] } else { ["tp", "dp"] };
        let _ = names.map(|name| rank.group(name, &[0, 1]).unwrap());
    });
    let words = ["rank 0 waits at the opening of group dp for ranks [1]", "in a circle"];
    refused(found, ErrorKind::Peer, &words);
}
