//! Ranks over an NCCL that waits for ever wherever the real one would pass the conformance cases, and train as threads do.

use std::{path::Path, sync::Arc, thread, time::Duration};

use tch::Tensor;

use super::{emulation::Emulation, *};
use crate::{
    ErrorKind,
    config::{Override, resolve},
    run::{Job, Observer, Terms, run_rank, run_threads},
    transport::{
        Header, Kind, Mode, Purpose, Transport,
        conformance::{self, Case, Tampered},
        processes::threads::{self, limits},
    },
};

fn run<T: Send>(world: usize, limits: &Limits, act: impl Fn(&ProcessTransport) -> T + Sync) -> Vec<T> {
    let emulation = Emulation::default();
    let join = |ranks: &Ranks| {
        processes::rendezvous(ranks, limits, Box::new(Nccl::over(Box::new(emulation.clone()))))
    };
    threads::run(world, join, act)
}

/// Every pair, as a run announces those of its pipeline.
fn all_pairs(world: usize) -> Vec<(usize, usize)> {
    (0..world).flat_map(|low| (low + 1..world).map(move |high| (low, high))).collect()
}

fn check(case: &Case, limits: &Limits) {
    let linked = |rank: &ProcessTransport| rank.link(&all_pairs(rank.size())).and_then(|()| (case.run)(rank));
    for (rank, outcome) in run(case.ranks, limits, linked).into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{}: rank {rank}: {error:?}", case.name));
    }
}

fn step(case: &Case) -> Limits {
    limits(case.step.unwrap_or(Duration::from_secs(60)))
}

fn header(tensors: &[Tensor]) -> Header {
    let shapes = tensors.iter().map(Tensor::size).collect();
    Header { step: 1, stage: 1, microbatch: 0, kind: Kind::Forward, shapes, dtype: Dtype::Float }
}

#[test]
fn nccl_ranks_pass_every_conformance_case() {
    for case in conformance::cases() {
        check(&case, &step(&case));
    }
}

#[test]
fn nccl_ranks_in_sync_mode_pass_every_case_that_needs_no_buffers() {
    for case in conformance::cases_in_sync() {
        check(&case, &Limits { mode: Mode::Sync, ..step(&case) });
    }
}

#[test]
fn nccl_ranks_name_every_message_that_goes_wrong() {
    for Tampered { tamper, case } in conformance::tampered() {
        check(&case, &Limits { tamper: Some(tamper), ..step(&case) });
    }
}

#[test]
fn the_emulation_is_as_unhelpful_as_nccl() {
    let library = Emulation::default();
    let name = library.unique().unwrap();
    let first = library.join(&name, 0, 2, Stream::Own).unwrap();
    assert!(!first.settled().unwrap(), "a member is missing");
    let second = library.join(&name, 1, 2, Stream::Own).unwrap();
    assert!(first.settled().unwrap());
    let (sent, short) = (Tensor::from_slice(&[1.0_f32, 2.0, 3.0]), Tensor::zeros([2], tch::kind::FLOAT_CPU));
    let send =
        |tensor: &Tensor| first.call(Call::Exchange(vec![Half::Send(tensor.shallow_clone(), 1)])).unwrap();
    let receive = |tensor: &Tensor| {
        second.call(Call::Exchange(vec![Half::Receive(tensor.shallow_clone(), 0)])).unwrap()
    };
    let tickets = [send(&sent), receive(&short)];
    assert!(tickets.iter().all(|it| it.done().unwrap()), "a receive of less ends, with wrong elements");
    assert_eq!(Vec::<f32>::try_from(&short).unwrap(), [1.0, 2.0]);
    let long = Tensor::zeros([4], tch::kind::FLOAT_CPU);
    let waits = receive(&long);
    send(&sent);
    assert!(!waits.done().unwrap(), "a receive of more never ends");
    first.leave(true);
    assert!(!waits.done().unwrap(), "and nobody is told that its peer has gone");
}

#[test]
fn collectives_of_other_sizes_wait_for_ever_in_the_library_and_are_named_by_the_transport() {
    let library = Emulation::default();
    let name = library.unique().unwrap();
    let members = [0, 1].map(|rank| library.join(&name, rank, 2, Stream::Compute).unwrap());
    let sum = |at: usize, count: i64| {
        let tensor = Tensor::ones([count], tch::kind::FLOAT_CPU);
        members[at].call(Call::AllReduce(tensor)).unwrap()
    };
    let tickets = [sum(0, 3), sum(1, 4)];
    assert!(tickets.iter().all(|it| !it.done().unwrap()));
    let outcomes = run(2, &limits(Duration::from_secs(60)), |rank| {
        let group = rank.group("tp", &[0, 1]).unwrap();
        let count = 10_000 * (1 + i64::try_from(rank.rank()).unwrap());
        let mine = Tensor::ones([count], tch::kind::FLOAT_CPU);
        group.all_reduce(&Purpose("gradients".to_owned()), mine).map(drop)
    });
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("rank 1 gave 80000 bytes, and rank 0 expected 40000 bytes"),
        "{error}"
    );
    assert!(outcomes[1].is_err());
}

#[test]
fn messages_pass_only_between_pairs_that_were_announced_in_order() {
    let outcomes = run(3, &limits(Duration::from_secs(60)), |rank| {
        rank.link(&[(0, 1)]).unwrap();
        if rank.rank() != 2 {
            return Ok(());
        }
        let tensors = [Tensor::ones([4], tch::kind::FLOAT_CPU)];
        rank.send(0, &header(&tensors), &tensors)
    });
    let error = outcomes[2].as_ref().unwrap_err().to_string();
    assert!(error.contains("no messages were announced with rank 0"), "{error}");
    for wrong in [vec![(1, 0)], vec![(0, 2)], vec![(0, 1), (0, 1)]] {
        let refused = run(2, &limits(Duration::from_secs(60)), |rank| rank.link(&wrong).unwrap_err());
        assert!(refused.iter().all(|error| error.to_string().contains("are not in order")), "{refused:?}");
    }
}

#[test]
fn a_rank_whose_pair_does_not_come_is_named_within_the_start_limit() {
    let limits = Limits { start: Duration::from_secs(3), ..limits(Duration::from_secs(60)) };
    let outcomes = run(2, &limits, |rank| {
        if rank.rank() == 1 {
            rank.note(&"loading");
            thread::sleep(Duration::from_secs(6));
            return Ok(());
        }
        rank.link(&[(0, 1)])
    });
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer);
    assert!(error.to_string().contains("messages/0-1") && error.to_string().contains("rank 1"), "{error}");
}

#[test]
fn a_machine_without_nccl_is_told_what_was_looked_for() {
    // Where there are a GPU and NCCL, there is nothing to refuse.
    let Err(error) = cuda::Loaded::new(0) else { return };
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().starts_with("comm.transport=nccl: ") && error.hint_text().is_some(), "{error}");
}

/// Looks on.
struct Silent;

impl Observer for Silent {}

fn job(folder: &Path, settings: &[&str]) -> Job {
    let text = folder.join("text");
    std::fs::create_dir_all(&text).unwrap();
    std::fs::write(text.join("a.txt"), b"etaoin shrdlu ".repeat(500)).unwrap();
    let root = folder.join(settings.concat().replace('/', "-"));
    let place = [format!("data.folder={}", text.display()), format!("checkpoint.root={}", root.display())];
    let sizes = [
        "model.layers=4",
        "model.dim=32",
        "model.heads=4",
        "model.head_dim=8",
        "model.ffn=64",
        "training.steps=3",
        "training.global_batch=8",
        "training.seq_len=16",
        "exact.virtual_tp=2",
        "checkpoint.interval=0",
    ];
    let all = place.into_iter().chain(sizes.iter().chain(settings).map(|it| (*it).to_owned()));
    let overrides: Vec<Override> = all.map(|it| it.parse().unwrap()).collect();
    Job::new(resolve(None, &overrides).unwrap()).unwrap()
}

/// In exact mode the last loss has gone through all weights, gradients and updates of all ranks.
#[test]
fn training_over_nccl_gives_the_same_bits_as_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let terms = Terms { stop: Arc::default(), restart: 0 };
    let one = job(folder.path(), &[]);
    let expected = run_threads(&one, &limits(Duration::from_secs(60)), &terms, |_| Ok(Silent)).unwrap().loss;
    for settings in [
        &["parallelism.mesh=2x1x2"][..],
        &["parallelism.mesh=1x2x2", "parallelism.schedule=ZBVZeroBubble"],
        &["parallelism.mesh=2x2x1", "model.tie_embeddings=false", "fsdp.strategy=no_shard"],
    ] {
        let job = job(folder.path(), settings);
        let ended = run(job.ranks(), &limits(Duration::from_secs(120)), |rank| {
            run_rank(&job, rank, &mut Silent, &terms).inspect_err(|error| rank.abort(error))
        });
        for summary in ended {
            let found = summary.unwrap_or_else(|error| panic!("{settings:?}: {error:?}")).loss;
            assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits), "{settings:?}");
        }
    }
}
