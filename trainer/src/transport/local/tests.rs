//! Local ranks pass the conformance cases, and what is particular to threads.

use std::{panic::AssertUnwindSafe, thread, time::Duration};

use super::*;
use crate::{
    ErrorKind,
    mesh::MeshShape,
    transport::{
        Mode, Purpose,
        conformance::{self, Case, Tampered},
    },
};

fn run<T: Send>(ranks: usize, limits: Limits, act: impl Fn(&LocalTransport) -> T + Sync) -> Vec<T> {
    let act = &act;
    thread::scope(|scope| {
        let world = World::new(ranks, limits);
        let threads: Vec<_> = world.into_iter().map(|rank| scope.spawn(move || act(&rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check(case: &Case, limits: Limits) {
    let step = case.step.unwrap_or(Duration::from_secs(60));
    let limits = Limits { start: Duration::from_secs(60), step, ..limits };
    for (rank, outcome) in run(case.ranks, limits, |rank| (case.run)(rank)).into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{}: rank {rank}: {error:?}", case.name));
    }
}

#[test]
fn local_ranks_pass_every_conformance_case() {
    conformance::cases().iter().for_each(|case| check(case, Limits::default()));
    let one = Limits { buffers: 1, ..Limits::default() };
    check(
        &Case {
            ranks: 2,
            ..*conformance::cases().iter().find(|case| case.name.contains("pile up")).unwrap()
        },
        one,
    );
}

#[test]
fn local_ranks_in_sync_mode_pass_every_case_that_needs_no_buffers() {
    let limits = Limits { mode: Mode::Sync, ..Limits::default() };
    conformance::cases_in_sync().iter().for_each(|case| check(case, limits.clone()));
}

#[test]
fn local_ranks_name_every_message_that_goes_wrong() {
    for Tampered { tamper, case } in conformance::tampered() {
        check(&case, Limits { tamper: Some(tamper), ..Limits::default() });
    }
}

#[test]
fn waits_are_as_long_as_the_start_limit_until_the_first_step_is_over() {
    let limits =
        Limits { start: Duration::from_millis(1500), step: Duration::from_millis(100), ..Limits::default() };
    let took = run(2, limits, |rank| {
        let group = rank.group("world", &[0, 1]).unwrap();
        let barrier = |what: &str| group.barrier(&Purpose(what.to_owned()));
        rank.starting(true);
        if rank.rank() == 1 {
            thread::sleep(Duration::from_millis(600));
            barrier("first step").unwrap();
            return thread::sleep(Duration::from_millis(800));
        }
        barrier("first step").unwrap();
        rank.starting(false);
        let since = std::time::Instant::now();
        let error = barrier("second step").unwrap_err();
        assert!(error.to_string().contains("waited 0.1 s"), "{error}");
        assert!(since.elapsed() < Duration::from_millis(700), "{:?}", since.elapsed());
    });
    assert_eq!(took.len(), 2);
}

#[test]
fn sixty_four_threads_form_all_groups_of_a_mesh() {
    let mesh: MeshShape = "4x2x8".parse().unwrap();
    run(mesh.ranks(), Limits::default(), |rank| conformance::on_mesh(rank, mesh).unwrap());
}

#[test]
fn what_one_rank_fails_with_reaches_the_others_at_once() {
    let outcomes = run(3, Limits::default(), |rank| {
        let group = rank.group("world", &[0, 1, 2]).unwrap();
        if rank.rank() == 1 {
            rank.abort(&"a panic: index out of bounds");
            return None;
        }
        group.barrier(&Purpose("step".to_owned())).err()
    });
    for error in outcomes.into_iter().flatten() {
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert!(error.to_string().contains("rank 1 has failed: a panic"), "{error}");
    }
}

#[test]
fn a_rank_that_unwinds_breaks_its_world() {
    let mut world = World::new(2, Limits::default());
    let (second, first) = (world.pop().unwrap(), world.pop().unwrap());
    let unwound = thread::spawn(move || {
        std::panic::catch_unwind(AssertUnwindSafe(|| {
            let _held = second;
            std::panic::resume_unwind(Box::new("stop"))
        }))
        .is_err()
    });
    let group = first.group("world", &[0, 1]);
    let error = group.map(drop).unwrap_err();
    assert!(unwound.join().unwrap());
    assert!(error.to_string().contains("rank 1") && error.to_string().contains("panicked"), "{error}");
}

#[test]
fn the_scenes_of_all_ranks_are_written_when_one_gives_up() {
    let folder = std::env::temp_dir().join(format!("local-scenes-{}", std::process::id()));
    let limits = Limits { step: Duration::from_millis(200), dump: Some(folder.clone()), ..Limits::default() };
    run(2, limits, |rank| {
        let group = rank.group("world", &[0, 1]).unwrap();
        rank.note(&"UNSHARD layer 3");
        if rank.rank() == 1 {
            thread::sleep(Duration::from_millis(800));
            return;
        }
        let error = group.barrier(&Purpose("step".to_owned())).unwrap_err();
        assert!(error.to_string().contains("rank 1 (last seen"), "{error}");
        assert!(error.to_string().contains("UNSHARD layer 3"), "{error}");
    });
    for rank in 0..2 {
        let text = std::fs::read_to_string(folder.join(format!("rank_0000{rank}.scene.txt"))).unwrap();
        assert!(text.contains("UNSHARD layer 3"), "{text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn all_reduce_sums_in_rank_order() {
    let parts = [1.0e8_f32, 1.0, -1.0e8, 1.0];
    let sums = run(4, Limits::default(), |rank| {
        let group = rank.group("world", &[0, 1, 2, 3]).unwrap();
        let mine = Tensor::from_slice(&parts[rank.rank()..=rank.rank()]);
        f32::try_from(group.all_reduce(&Purpose("sum".to_owned()), mine).unwrap().get(0)).unwrap()
    });
    let expected = parts.into_iter().reduce(|sum, part| sum + part).unwrap();
    assert!(sums.iter().all(|sum| sum.to_bits() == expected.to_bits()), "{sums:?}");
}

#[test]
fn all_gather_passes_handles() {
    let found = run(2, Limits::default(), |rank| {
        let group = rank.group("world", &[0, 1]).unwrap();
        let mine = Tensor::from_slice(&[1.0_f32, 2.0]);
        let all = group.all_gather(&Purpose("w".to_owned()), &mine, &[vec![2], vec![2]]).unwrap();
        (mine.data_ptr() as usize, all.iter().map(|tensor| tensor.data_ptr() as usize).collect::<Vec<_>>())
    });
    assert_eq!(found[0].1, found[1].1);
    assert_eq!([found[0].0, found[1].0].as_slice(), found[0].1);
}

#[test]
fn a_gather_that_nobody_takes_is_over_when_all_have_dropped_it() {
    let open = run(2, Limits::default(), |rank| {
        let group = rank.group("world", &[0, 1]).unwrap();
        let what = |text: &str| Purpose(text.to_owned());
        let begin = || {
            let mine = Tensor::from_slice(&[1.0_f32]);
            group.begin_all_gather(&what("weights"), &mine, &[vec![1], vec![1]]).unwrap()
        };
        let (taken, dropped) = (begin(), begin());
        drop(dropped);
        if rank.rank() == 0 {
            taken.take().unwrap();
        } else {
            drop(taken);
        }
        group.barrier(&what("all have")).unwrap();
        let state = rank.shared.lock();
        // The barrier's own round may be one that the other has not left yet.
        state.rooms.values().map(group::Room::open).sum::<usize>()
    });
    assert!(open.iter().all(|rounds| *rounds <= 1), "{open:?}");
}
