//! The variables that each launcher sets. Where a launcher has had several names for a value, the first that is set counts.

use super::Launcher;

/// The variables of one launcher.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) launcher: Launcher,
    pub(super) rank: &'static str,
    pub(super) world: &'static str,
    pub(super) local_rank: &'static str,
    /// Ranks of this machine, if a variable says so in one number.
    pub(super) local_world: Option<&'static str>,
    /// This machine among all, if a variable says so.
    pub(super) group_rank: Option<&'static str>,
    pub(super) restart: &'static str,
    pub(super) run_id: &'static [&'static str],
}

/// Set for every worker by torch's elastic agent: who has it was started by `torchrun` (or by us), whatever started that.
pub(super) const ELASTIC: &str = "TORCHELASTIC_RUN_ID";

pub(super) const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world: Some("LOCAL_WORLD_SIZE"),
    group_rank: Some("GROUP_RANK"),
    restart: "TORCHELASTIC_RESTART_COUNT",
    run_id: &[ELASTIC],
};

/// Ranks of a machine are not one number here, see [`super::slurm`].
pub(super) const SLURM: Names = Names {
    launcher: Launcher::Slurm,
    rank: "SLURM_PROCID",
    world: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_world: None,
    group_rank: Some("SLURM_NODEID"),
    restart: "SLURM_RESTART_COUNT",
    run_id: &["SLURM_JOB_ID", "SLURM_JOBID"],
};

/// `OMPI_COMM_WORLD_NODE_RANK` numbers processes on a node, not nodes: nothing numbers those.
pub(super) const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    group_rank: None,
    restart: "OMPI_MCA_orte_num_restarts",
    run_id: &["OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"],
};
