//! What each launcher's variables say, and what they can't say.

use std::collections::BTreeMap;

use super::*;

fn ranks(variables: &str) -> Result<Ranks> {
    let set: BTreeMap<&str, &str> =
        variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    Ranks::from(&|name| set.get(name).map(|value| (*value).to_owned()))
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=n0 \
    MASTER_PORT=29400 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_RUN_ID=job TORCHELASTIC_USE_AGENT_STORE=True";

#[test]
fn each_launchers_variables_are_understood() {
    let torchrun = ranks(TORCHRUN).unwrap();
    assert_eq!((torchrun.rank, torchrun.world, torchrun.local_rank, torchrun.local_world), (5, 8, 1, 4));
    assert_eq!((torchrun.group_rank, torchrun.restart, torchrun.run_id.as_str()), (1, 2, "job"));
    assert_eq!((torchrun.master, torchrun.store_served), (Some(("n0".to_owned(), 29400)), true));

    let slurm = "SLURM_PROCID=3 SLURM_NTASKS=5 SLURM_LOCALID=1 SLURM_TASKS_PER_NODE=2(x2),1 SLURM_NODEID=1 \
        SLURM_JOB_ID=70077 SLURM_STEP_NODELIST=gpu[08-10] SLURM_LAUNCH_NODE_IPADDR=10.0.0.1";
    let step = format!("{slurm} SLURM_STEP_ID=0");
    let found = ranks(&step).unwrap();
    assert_eq!((found.launcher, found.rank, found.world, found.local_rank), (Launcher::Slurm, 3, 5, 1));
    assert_eq!((found.local_world, found.group_rank, found.run_id.as_str()), (2, 1, "70077"));
    assert_eq!(
        found.master,
        Some(("gpu08".to_owned(), 20_077)),
        "rank 0's node, not the one srun was called on"
    );
    let told = ranks(&format!("{step} MASTER_ADDR=head MASTER_PORT=7")).unwrap();
    assert_eq!(told.master, Some(("head".to_owned(), 7)));
    // A batch script, not a task.
    assert_eq!(ranks(slurm).unwrap(), Ranks::alone());

    let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
        OMPI_COMM_WORLD_NODE_RANK=1";
    let found = ranks(mpi).unwrap();
    assert_eq!((found.launcher, found.rank, found.group_rank), (Launcher::OpenMpi, 1, 0));
    assert_eq!(found.master, Some(("127.0.0.1".to_owned(), PORT)));
    // torchrun on each node of a SLURM job, and a launcher of MPI inside one: the nearest counts.
    let nested = ranks(&format!("{TORCHRUN} {step}")).unwrap();
    assert_eq!((nested.launcher, nested.rank), (Launcher::Torchrun, 5));
    let nested = ranks(&format!("{mpi} {step}")).unwrap();
    assert_eq!((nested.launcher, nested.rank), (Launcher::OpenMpi, 1));
    assert_eq!(ranks("").unwrap().to_string(), "one process, as no launcher's variables are set");
}

#[test]
fn contradictions_are_named() {
    for (variables, words) in [
        ("RANK=0", "RANK is set, but WORLD_SIZE is not"),
        ("WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not"),
        ("RANK=2 WORLD_SIZE=2", "RANK=2 is not below WORLD_SIZE=2"),
        ("RANK=x WORLD_SIZE=2", "RANK=\"x\" is no number"),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2",
            "LOCAL_RANK=3 is not below LOCAL_WORLD_SIZE=2",
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4",
            "LOCAL_WORLD_SIZE=4 is more than WORLD_SIZE=2",
        ),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0", "WORLD_SIZE=2, but MASTER_PORT is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "WORLD_SIZE=2, but MASTER_ADDR is not set"),
        ("RANK=0 WORLD_SIZE=1 MASTER_PORT=99999", "MASTER_PORT=\"99999\" is no port"),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
            "RANK=0, but OMPI_COMM_WORLD_RANK=1",
        ),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_ID=0",
            "WORLD_SIZE=2, but SLURM_NTASKS=4",
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=x",
            "SLURM_TASKS_PER_NODE=\"x\"",
        ),
        (
            "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=2(x2) SLURM_LOCALID=2",
            "SLURM_LOCALID=2 is not below the tasks of this node=2",
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "OMPI_COMM_WORLD_SIZE=4, but MASTER_ADDR is not set",
        ),
        ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"),
    ] {
        let error = ranks(variables).unwrap_err();
        assert!(error.to_string().contains(words), "{variables}: {error}");
    }
    assert_eq!(ranks("RANK=0 WORLD_SIZE=1").unwrap().master, None);
}
