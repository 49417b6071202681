//! Schedules on imagined devices: what real ranks and messages make of a schedule, beside what the simulator says.

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use schedule::{
    Communication, Gather, Program, Shape, StageTimes, Step, Timing, csv, generate, lower, named,
    simulate_program,
};
use trainer::{
    mesh::MeshShape,
    rehearsal::{GAIN, Plan, gain, limits, quick},
    transport::Limits,
};
use training::{Answer, EXE, Place};

/// That none takes over 3 % longer is for `cargo xtask virtual` to say, on a machine that does nothing else.
#[test]
fn every_schedule_runs_on_imagined_devices_and_none_is_faster_than_the_simulator_says() {
    for case in quick().into_iter().filter(|case| case.ranks == 2) {
        let plan = Plan { steps: 1, ..case.plan().unwrap() };
        let measured = case.measured("local", &plan.in_threads(&limits()).unwrap());
        println!("{measured}");
        assert!((-0.001..20.0).contains(&measured.deviation), "{measured}");
    }
}

#[test]
fn zb_h1_is_faster_than_1f1b() {
    let of = |name: &str| quick().into_iter().find(|case| case.ranks == 4 && case.schedule == name).unwrap();
    let all = ["1F1B", "ZBH1"].map(|name| {
        let found = of(name).plan().unwrap().in_threads(&limits()).unwrap();
        of(name).measured("local", &found)
    });
    let gain = gain(&all, "local").unwrap();
    println!("ZBH1 over 1F1B: {gain:.3}, to be {GAIN} where the machine does nothing else");
    assert!(gain > 1.0, "{all:?}");
}

fn plan(name: &str, program: Program, times: &[StageTimes]) -> Plan {
    let (ranks, stages) = (program.table().ranks.len(), program.table().stages());
    Plan {
        schedule: name.to_owned(),
        program,
        mesh: MeshShape { dp: 1, pp: ranks, tp: 1 },
        timing: Timing::of_stages(times.to_vec(), 1.0),
        shapes: vec![vec![vec![2, 8]]; stages],
        steps: 6,
        enough: Some(0.015),
    }
}

/// torch sends both parts of a composite when both are done; here the next rank has the activations before the backward begins.
#[test]
fn composites_whose_forward_is_sent_first_make_a_shorter_step_than_torchs_program() {
    let file = include_str!("../schedule/tests/torch/dualpipev_4x2_10_compute_comms.csv");
    let document = csv::read(file, &csv::Options::default()).unwrap();
    let theirs = document.program(Gather::PerPart).unwrap();
    assert!(theirs.table().ranks.iter().flatten().any(|cell| cell.parts().count() == 2));
    let ours = lower(&document.table().unwrap(), Gather::PerPart).unwrap();
    let times = [StageTimes::new(10.0, 10.0, 10.0); 8];
    let of = |program| plan("DualPipeV", program, &times);
    let (ours, theirs) = (of(ours), of(theirs));
    let simulated =
        |plan: &Plan| simulate_program(&plan.program, &plan.timing, Communication::Posted).makespan;
    assert!(simulated(&ours) < simulated(&theirs) * 0.97, "{} {}", simulated(&ours), simulated(&theirs));
    let took = |plan: &Plan| plan.in_threads(&limits()).unwrap().best();
    // A machine that does other things may disturb one of them more than the five percent that it is about.
    let shorter = |_| {
        let (early, late) = (took(&ours), took(&theirs));
        println!("sent first {early:.1} ms, as one cell {late:.1} ms");
        early < late
    };
    assert!((0..5).any(shorter));
}

/// Rank 1 could go back with a microbatch while the next one's activations are not there: with room for all messages it does, with less it
/// waits for them at their RECV. Whatever else the machine does makes both longer.
#[test]
fn messages_that_are_waited_for_when_they_are_needed_make_a_step_shorter() {
    let shape = Shape { stages: 2, ranks: 2, microbatches: 4 };
    let program = lower(&generate(named("1F1B").unwrap(), shape).unwrap(), Gather::PerPart).unwrap();
    let sends = program.table().row(0).iter().filter(|it| matches!(it.step, Step::SendF(_))).count();
    let times = [StageTimes::new(60.0, 10.0, 10.0), StageTimes::new(20.0, 20.0, 20.0)];
    let plan = plan("1F1B", program, &times);
    let simulated = simulate_program(&plan.program, &plan.timing, Communication::Posted).makespan;
    let took = |buffers| plan.in_threads(&Limits { buffers, ..limits() }).unwrap().best();
    let (early, late) = (took(sends), took(sends - 1));
    println!("simulated {simulated:.1} ms, when needed {early:.1} ms, at their RECV {late:.1} ms");
    assert!(late > simulated * 1.2, "{late} {simulated}");
    assert!(early < late, "{early} {late}");
}

#[test]
fn processes_rehearse_as_threads_do_and_write_nothing() {
    let place = Place::new();
    let settings = [
        "--parallelism.mesh=1x2x1",
        "--training.steps=4",
        "--debug.virtual_device=F=20,I=20/22,W=20,transfer=2",
    ];
    for answer in [
        place.train(&[&settings[..], &["--comm.transport=local"]].concat()),
        place.launch(&["-n", "2"], &settings),
    ] {
        answer.is(0, &[]);
        let line = |word: &str| {
            answer
                .out
                .lines()
                .find(|line| line.contains(word))
                .unwrap_or_else(|| panic!("{word}: {}", answer.out))
        };
        assert!(line("virtual").contains("1F1B on mesh 1x2x1, 2 stages, 8 microbatches"));
        let apart: f64 =
            line("best").rsplit(',').next().unwrap().trim().trim_end_matches(" %").parse().unwrap();
        assert!((-0.1..10.0).contains(&apart), "{}", answer.out);
    }
    for written in ["checkpoints", "metrics"] {
        assert!(!place.path().join(written).exists(), "{written}");
    }
}

#[test]
fn times_that_are_none_are_refused_before_anything_starts() {
    let place = Place::new();
    let answer = place.train(&["--debug.virtual_device=F=10,I=10"]);
    answer.is(78, &["debug.virtual_device", "W is missing", "milliseconds"]);
    let mut command = place.command(EXE);
    let answer = Answer::of(command.args(["config", "keys"]).output().unwrap());
    assert!(answer.out.contains("debug.virtual_device"));
}
