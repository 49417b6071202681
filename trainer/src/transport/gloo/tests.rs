//! Gloo ranks pass the conformance cases, as threads with connections of their own and as processes; and what is
//! particular to meeting over a network.

use std::{
    env,
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use tch::{Device, Kind as Dtype, Tensor};

use super::*;
use crate::{
    ErrorKind,
    mesh::MeshShape,
    torch::c10d::{self, Status, Store},
    transport::{
        Header, Kind, Mode, Purpose, Transport,
        conformance::{self, Case, Tampered},
        processes::threads::{self, HOST, ranks, served},
    },
};

fn limits(step: Duration) -> Limits {
    threads::limits(step)
}

fn run<T: Send>(world: usize, limits: &Limits, act: impl Fn(&ProcessTransport) -> T + Sync) -> Vec<T> {
    threads::run(world, |ranks| rendezvous(ranks, limits), act)
}

fn check(case: &Case, limits: &Limits) {
    for (rank, outcome) in run(case.ranks, limits, |rank| (case.run)(rank)).into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{}: rank {rank}: {error:?}", case.name));
    }
}

fn free_port() -> u16 {
    TcpListener::bind((HOST, 0)).unwrap().local_addr().unwrap().port()
}

fn purpose(text: &str) -> Purpose {
    Purpose(text.to_owned())
}

#[test]
fn gloo_ranks_pass_every_conformance_case() {
    for case in conformance::cases() {
        check(&case, &limits(case.step.unwrap_or(Duration::from_secs(60))));
    }
}

#[test]
fn gloo_ranks_in_sync_mode_pass_every_case_that_needs_no_buffers() {
    for case in conformance::cases_in_sync() {
        let step = case.step.unwrap_or(Duration::from_secs(60));
        check(&case, &Limits { mode: Mode::Sync, ..limits(step) });
    }
}

#[test]
fn gloo_ranks_name_every_message_that_goes_wrong() {
    for Tampered { tamper, case } in conformance::tampered() {
        let step = case.step.unwrap_or(Duration::from_secs(60));
        check(&case, &Limits { tamper: Some(tamper), ..limits(step) });
    }
}

/// The header of a message of so many numbers.
fn message(microbatch: usize, count: i64) -> Header {
    let (kind, shapes, dtype) = (Kind::Forward, vec![vec![count]], Dtype::Float);
    Header { step: 1, stage: 1, microbatch, kind, shapes, dtype }
}

#[test]
fn a_message_that_is_foreseen_passes_while_its_receiver_does_something_else() {
    const COUNT: i64 = 1 << 20;
    run(2, &limits(Duration::from_secs(60)), |rank| {
        let world = rank.group("world", &[0, 1]).unwrap();
        let sent = Tensor::arange(COUNT, (Dtype::Float, Device::Cpu));
        if rank.rank() == 0 {
            rank.send(1, &message(0, COUNT), std::slice::from_ref(&sent)).unwrap();
            // Ends when all of it is taken, which the receiver does not ask for before the barrier.
            rank.flush().unwrap();
            return world.barrier(&purpose("it is there")).unwrap();
        }
        rank.expect(0, &message(0, COUNT)).unwrap();
        world.barrier(&purpose("it is there")).unwrap();
        assert_eq!(rank.recv(0, &message(0, COUNT)).unwrap(), [sent]);
    });
}

#[test]
fn taking_another_message_than_the_one_that_was_foreseen_is_refused() {
    run(2, &limits(Duration::from_secs(60)), |rank| {
        if rank.rank() == 0 {
            return;
        }
        rank.expect(0, &message(0, 8)).unwrap();
        let error = rank.recv(0, &message(1, 8)).unwrap_err().to_string();
        for words in ["rank 1 takes", "microbatch 1 for stage 1", "has foreseen", "microbatch 0 for stage 1"]
        {
            assert!(error.contains(words), "{words}: {error}");
        }
    });
}

#[test]
fn tensors_of_two_sizes_never_have_one_tag() {
    let sizes = [1, 2, 3, 4, 8, 1023, 1024, (1 << 29) - 1].map(|bytes| sized(bytes).unwrap());
    assert!(sizes.is_sorted_by(|one, next| one < next) && sizes.iter().all(|tag| *tag > LARGE));
    assert_eq!([0, 1 << 29, usize::MAX].map(sized), [None; 3]);
}

#[test]
fn large_collectives_work_without_frames_too() {
    let limits = Limits { check_purposes: false, ..limits(Duration::from_secs(60)) };
    run(3, &limits, |rank| {
        let group = rank.group("world", &[0, 1, 2]).unwrap();
        let part = |of: usize| Tensor::arange(i64::try_from(of).unwrap() * 5000, (Dtype::Float, Device::Cpu));
        let shapes = [vec![0], vec![5000], vec![10000]];
        let found = group.all_gather(&purpose("w"), &part(rank.rank()), &shapes).unwrap();
        (0..3).for_each(|of| assert_eq!(found[of], part(of)));
        let sum = group.all_reduce(&purpose("g"), part(2) * (1.0 + rank.rank() as f64)).unwrap();
        assert_eq!(sum, part(2) * 6.0);
    });
}

#[test]
fn large_uneven_parts_are_exchanged() {
    run(3, &limits(Duration::from_secs(60)), |rank| {
        let group = rank.group("world", &[0, 1, 2]).unwrap();
        let me = rank.rank();
        // 0 gives nothing to 0, and 4000 times (from + to) elsewhere; 1 gives as a 2-d tensor.
        let part = |from: usize, to: usize| {
            let count = i64::try_from((from + to) * 4000).unwrap();
            let flat =
                Tensor::arange(count, (Dtype::Int64, Device::Cpu)) + i64::try_from(from * 7 + to).unwrap();
            if from == 1 { flat.view([2, count / 2]) } else { flat }
        };
        let parts = (0..3).map(|to| part(me, to)).collect();
        let expected: Vec<_> = (0..3).map(|from| part(from, me)).collect();
        let shapes: Vec<_> = expected.iter().map(Tensor::size).collect();
        assert_eq!(group.exchange(&purpose("grads"), parts, &shapes).unwrap(), expected);
    });
}

#[test]
fn members_that_expect_other_lengths_are_told_before_data_flows() {
    let outcomes = run(2, &limits(Duration::from_secs(60)), |rank| {
        let group = rank.group("tp", &[0, 1]).unwrap();
        let mine = Tensor::zeros([100_000], (Dtype::Float, Device::Cpu));
        let others = if rank.rank() == 0 { 100 } else { 100_000 };
        let mut shapes = [vec![100_000], vec![100_000]];
        shapes[1 - rank.rank()] = vec![others];
        group.all_gather(&purpose("layer 2"), &mine, &shapes).map(drop)
    });
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("rank 1 gave 400000 bytes, and rank 0 expected 400 bytes"), "{error}");
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::Peer);
}

#[test]
fn a_worker_that_does_not_join_is_named_by_all() {
    let (_store, port) = served();
    let limits = Limits { start: Duration::from_secs(2), ..Limits::default() };
    let limits = &limits;
    thread::scope(|scope| {
        let join = |rank| move || rendezvous(&ranks(rank, 4, port), limits).map(drop).unwrap_err();
        let threads = [0, 2].map(|rank| scope.spawn(join(rank)));
        for error in threads.map(|thread| thread.join().unwrap()) {
            assert_eq!(error.kind(), ErrorKind::Peer);
            let text = error.to_string();
            assert!(text.contains("rank 1 (has not joined), rank 3 (has not joined)"), "{text}");
            assert!(!text.contains("rank 2 (has"), "{text}");
        }
    });
}

#[test]
fn a_worker_of_an_earlier_start_does_not_count() {
    let (_store, port) = served();
    let limits = Limits { start: Duration::from_secs(2), ..Limits::default() };
    let limits = &limits;
    thread::scope(|scope| {
        let join = |rank, restart| {
            let ranks = Ranks { restart, ..ranks(rank, 2, port) };
            move || rendezvous(&ranks, limits).map(drop).unwrap_err()
        };
        let (old, new) = (scope.spawn(join(0, 0)), scope.spawn(join(1, 1)));
        assert!(old.join().unwrap().to_string().contains("missing: rank 1"));
        assert!(new.join().unwrap().to_string().contains("missing: rank 0"));
    });
}

#[test]
fn a_taken_port_is_named_with_what_to_do() {
    let taken = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ranks = Ranks { hosted: false, ..ranks(0, 1, port) };
    let error = rendezvous(&ranks, &limits(Duration::from_secs(5))).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains(&format!("{HOST}:{port}")), "{error}");
    assert!(error.hint_text().unwrap().contains("the port is taken"), "{error}");
}

#[test]
fn a_store_that_nobody_serves_is_named() {
    let limits = Limits { start: Duration::from_secs(1), ..Limits::default() };
    let port = free_port();
    let error = rendezvous(&ranks(0, 2, port), &limits).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains(&format!("{HOST}:{port}")), "{error}");
}

#[test]
fn rank_0_serves_the_store_where_no_launcher_does() {
    let (port, limits) = (free_port(), limits(Duration::from_secs(30)));
    let limits = &limits;
    thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let ranks = Ranks { hosted: false, ..ranks(rank, 3, port) };
                let transport = rendezvous(&ranks, limits).unwrap();
                let group = transport.group("world", &[0, 1, 2]).unwrap();
                group.barrier(&purpose("start")).unwrap();
            });
        }
    });
}

#[test]
fn a_world_of_one_needs_nobody() {
    let (_store, port) = served();
    let transport = rendezvous(&ranks(0, 1, port), &limits(Duration::from_secs(5))).unwrap();
    conformance::on_mesh(&transport, MeshShape { dp: 1, pp: 1, tp: 1 }).unwrap();
    transport.flush().unwrap();
}

#[test]
fn the_same_group_may_be_made_twice() {
    run(2, &limits(Duration::from_secs(60)), |rank| {
        let (one, two) = (rank.group("tp", &[0, 1]).unwrap(), rank.group("tp", &[0, 1]).unwrap());
        one.barrier(&purpose("one")).unwrap();
        two.barrier(&purpose("two")).unwrap();
    });
}

#[test]
fn every_rank_that_gives_up_writes_its_scene() {
    let folder = env::temp_dir().join(format!("gloo-scenes-{}", std::process::id()));
    let limits = Limits { dump: Some(folder.clone()), ..limits(Duration::from_millis(700)) };
    run(2, &limits, |rank| {
        rank.note(&format_args!("F0 on rank {}", rank.rank()));
        if rank.rank() == 1 {
            return thread::sleep(Duration::from_secs(2));
        }
        let expect = Header {
            step: 3,
            stage: 0,
            microbatch: 2,
            kind: Kind::Backward,
            shapes: vec![],
            dtype: Dtype::Float,
        };
        let error = rank.recv(1, &expect).unwrap_err();
        assert!(error.to_string().contains("F0 on rank 1"), "what the stuck rank does: {error}");
    });
    let text = std::fs::read_to_string(folder.join("rank_00000.scene.txt")).unwrap();
    assert!(text.contains("F0 on rank 0") && text.contains("gradients of microbatch 2"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn stores_keep_keys_and_say_why_not() {
    let (server, port) = served();
    let client = Store::connect(HOST, port, Duration::from_secs(10)).unwrap();
    assert_eq!(client.get("a").unwrap(), None);
    server.set("a", b"\0one").unwrap();
    client.wait(&["a".to_owned()], Duration::from_secs(10)).unwrap();
    assert_eq!(client.get("a").unwrap().unwrap(), b"\0one");
    client.set_first("a", b"two").unwrap();
    client.set_first("b", b"two").unwrap();
    assert_eq!(server.get("a").unwrap().unwrap(), b"\0one");
    assert_eq!(server.get("b").unwrap().unwrap(), b"two");
    assert_eq!((client.add("n", 2).unwrap(), server.add("n", 3).unwrap()), (2, 5));
    let prefixed = client.prefixed("run/1").unwrap();
    prefixed.set("a", b"inner").unwrap();
    // A client's set is not answered: another connection may overtake it.
    server.wait(&["run/1/a".to_owned()], Duration::from_secs(10)).unwrap();
    assert_eq!(server.get("run/1/a").unwrap().unwrap(), b"inner");
    assert!(server.delete("run/1/a").unwrap() && !prefixed.has("a").unwrap());
    let error = client.wait(&["never".to_owned()], Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.status, Status::Late, "{error}");
    assert!(client.set("no\0key", b"").is_err());
}

#[test]
fn what_libtorch_throws_is_an_error() {
    let error = c10d::Device::for_host("no such host").unwrap_err();
    assert!(!error.why.is_empty(), "{error}");
    let (store, _) = served();
    let device = c10d::Device::for_host(HOST).unwrap();
    let group = ProcessGroup::gloo(&store, &device, 0, 1, Duration::from_secs(5)).unwrap();
    let (into, from) =
        (Tensor::zeros([3], (Dtype::Float, Device::Cpu)), Tensor::zeros([2], (Dtype::Int64, Device::Cpu)));
    let error = group.all_gather(into, from, Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.status, Status::Failed, "{error}");
}

/// Starts this test binary again as rank `rank`, to do `act`.
fn start(act: &str, rank: usize, world: usize, port: u16) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "transport::gloo::tests::a_process_of_its_own", "--nocapture"])
        .envs([("TRANSPORT_TEST_ACT", act.to_owned()), ("TRANSPORT_TEST_RANK", rank.to_string())])
        .envs([("TRANSPORT_TEST_WORLD", world.to_string()), ("TRANSPORT_TEST_PORT", port.to_string())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Does nothing unless started by [`start`].
#[test]
fn a_process_of_its_own() {
    let Ok(act) = env::var("TRANSPORT_TEST_ACT") else { return };
    let number = |name: &str| env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, world) = (number("TRANSPORT_TEST_RANK"), number("TRANSPORT_TEST_WORLD"));
    let port = u16::try_from(number("TRANSPORT_TEST_PORT")).unwrap();
    let transport = rendezvous(&ranks(rank, world, port), &limits(Duration::from_secs(60))).unwrap();
    match act.as_str() {
        "mesh" => conformance::on_mesh(&transport, MeshShape { dp: 2, pp: 1, tp: 2 }).unwrap(),
        "die" => die(&transport),
        _ => measure(&transport),
    }
}

fn die(transport: &ProcessTransport) {
    let group = transport.group("world", &[0, 1, 2]).unwrap();
    group.barrier(&purpose("warm-up")).unwrap();
    if transport.rank() == 2 {
        std::process::abort();
    }
    let since = Instant::now();
    let error = group.all_reduce(&purpose("gradients"), Tensor::from_slice(&[1.0_f32])).unwrap_err();
    println!("after {:.1} s: {error}", since.elapsed().as_secs_f64());
    assert!(since.elapsed() < Duration::from_secs(20));
}

/// Prints the time of an `all_gather`, in microseconds.
fn measure(transport: &ProcessTransport) {
    let members: Vec<_> = (0..transport.size()).collect();
    let group = transport.group("world", &members).unwrap();
    for (name, count, rounds) in [("4 KiB", 1024, 300), ("4 MiB", 1 << 20, 20)] {
        let mine = Tensor::ones([count], (Dtype::Float, Device::Cpu));
        let shapes = vec![vec![count]; members.len()];
        group.barrier(&purpose("begin")).unwrap();
        let mut times: Vec<_> = (0..rounds)
            .map(|_| {
                let since = Instant::now();
                group.all_gather(&purpose("timed"), &mine, &shapes).unwrap();
                since.elapsed()
            })
            .collect();
        times.sort();
        println!("all_gather of {name}: median {:?}, best {:?}", times[times.len() / 2], times[0]);
    }
}

#[test]
fn processes_work_as_threads_do() {
    let (_store, port) = served();
    let children: Vec<_> = (0..4).map(|rank| start("mesh", rank, 4, port)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn a_process_that_dies_is_named_at_once() {
    let (_store, port) = served();
    let children: Vec<_> = (0..3).map(|rank| start("die", rank, 3, port)).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for output in &outputs[..2] {
        assert!(output.status.success(), "{}", said(output));
        assert!(said(output).contains("rank 2 is gone"), "{}", said(output));
    }
    assert!(!outputs[2].status.success());
}

/// Run by hand: `cargo test -p trainer --release -- --ignored --nocapture gloo::tests::how_long`.
#[test]
#[ignore = "a measurement, not a check"]
fn how_long_an_all_gather_takes() {
    let (_store, port) = served();
    let children: Vec<_> = (0..2).map(|rank| start("measure", rank, 2, port)).collect();
    for child in children {
        println!("processes: {}", said(&child.wait_with_output().unwrap()));
    }
    run(2, &limits(Duration::from_secs(60)), measure);
}
