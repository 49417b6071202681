//! Ranks that find out who they are by the variables of SLURM and of Open MPI: processes that this test starts, with those
//! variables alone.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[expect(dead_code, reason = "other tests use the rest")]
mod training;

use std::{
    net::TcpListener,
    process::{Child, Stdio},
};

use training::{Answer, EXE, Place, undisturbed};

const STEPS: &str = "--training.steps=2";

fn start(place: &Place, settings: &[&str], variables: &[(&str, String)]) -> Child {
    let mut command = place.command(EXE);
    command.args(["train", "-c", "run.toml", STEPS]).args(settings);
    command.envs(variables.iter().map(|(name, value)| (*name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn all_done(children: Vec<Child>) {
    for child in children {
        Answer::of(child.wait_with_output().unwrap()).is(0, &[]);
    }
}

#[test]
fn tasks_of_a_slurm_step_train_together() {
    let place = Place::new();
    // The port follows from the number of the job.
    let job = u32::from(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()) % 10_000;
    let task = |rank: usize| {
        let variables = [
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_TASKS_PER_NODE", "2".to_owned()),
            ("SLURM_NODEID", "0".to_owned()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_STEP_NODELIST", "localhost".to_owned()),
            ("SLURM_JOB_ID", job.to_string()),
        ];
        start(&place, &["--parallelism.mesh=2x1x1"], &variables)
    };
    all_done((0..2).map(task).collect());
    assert_eq!(place.curve(), undisturbed(STEPS));
}

#[test]
fn processes_of_open_mpi_train_together() {
    let place = Place::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let process = |rank: usize| {
        let variables = [
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "4".to_owned()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        start(&place, &["--parallelism.mesh=1x2x2"], &variables)
    };
    all_done((0..4).map(process).collect());
    assert_eq!(place.curve(), undisturbed(STEPS));
}

#[test]
fn variables_of_two_launchers_that_contradict_are_refused_by_name() {
    let place = Place::new();
    let variables = [
        ("RANK", "0".to_owned()),
        ("WORLD_SIZE", "2".to_owned()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", "1".to_owned()),
        ("OMPI_COMM_WORLD_RANK", "1".to_owned()),
        ("OMPI_COMM_WORLD_SIZE", "2".to_owned()),
    ];
    let child = start(&place, &["--parallelism.mesh=2x1x1"], &variables);
    let words = ["RANK=0, but OMPI_COMM_WORLD_RANK=1", "start all ranks by one launcher"];
    Answer::of(child.wait_with_output().unwrap()).is(78, &words);
}

#[test]
fn a_tp_group_on_two_machines_is_refused_with_the_map_unless_it_is_allowed() {
    let place = Place::new();
    let train = |settings: &[&str]| -> Vec<Answer> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let start = |rank: usize| {
            let variables = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "2".to_owned()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("CKPT_NODE", format!("machine{rank}")),
            ];
            start(&place, settings, &variables)
        };
        let children: Vec<Child> = (0..2).map(start).collect();
        children.into_iter().map(|child| Answer::of(child.wait_with_output().unwrap())).collect()
    };
    for answer in train(&["--parallelism.mesh=1x1x2"]) {
        answer.is(
            78,
            &[
                "machine0  ranks 0  dp 0  pp 0  tp 0",
                "tp group of ranks 0-1 lies on machine0 and machine1",
                "parallelism.tp_across_nodes=true allows it",
            ],
        );
    }
    for answer in train(&["--parallelism.mesh=1x1x2", "--parallelism.tp_across_nodes=true"]) {
        answer.is(0, &[]);
    }
}
