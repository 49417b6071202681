//! Which rank this process is, by the variables of whoever started it.

use std::fmt;

use crate::{Error, Result};

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or our own launcher, which sets the same variables.
    Torchrun,
    /// `srun`.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// Nobody: this is the only process.
    Alone,
}

/// Which rank this process is, and where the others meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// Who said so.
    pub launcher: Launcher,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// This rank among those of this machine.
    pub local_rank: usize,
    /// Ranks of this machine.
    pub local_world: usize,
    /// This machine among all.
    pub group_rank: usize,
    /// Where the store is; set whenever there are several ranks.
    pub master: Option<(String, u16)>,
    /// Whether the launcher serves the store; else rank 0 has to.
    pub store_served: bool,
    /// How often the run was started again: goes into every key of the store.
    pub restart: u32,
    /// The run's name, the same in all ranks.
    pub run_id: String,
}

/// The variables that one launcher sets.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_world: &'static str,
    group_rank: &'static str,
    restart: &'static str,
    run_id: &'static str,
}

const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world: "LOCAL_WORLD_SIZE",
    group_rank: "GROUP_RANK",
    restart: "TORCHELASTIC_RESTART_COUNT",
    run_id: "TORCHELASTIC_RUN_ID",
};

const SLURM: Names = Names {
    launcher: Launcher::Slurm,
    rank: "SLURM_PROCID",
    world: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_world: "SLURM_NTASKS_PER_NODE",
    group_rank: "SLURM_NODEID",
    restart: "SLURM_RESTART_COUNT",
    run_id: "SLURM_JOB_ID",
};

const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
    group_rank: "OMPI_COMM_WORLD_NODE_RANK",
    restart: "OMPI_MCA_orte_num_restarts",
    run_id: "OMPI_MCA_ess_base_jobid",
};

/// Where ranks of one machine meet if nothing else is said.
const PORT: u16 = 29_500;

type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Ranks {
    /// From the environment of this process.
    ///
    /// # Errors
    /// `Config` for variables that contradict each other, each named.
    pub fn from_env() -> Result<Self> {
        Self::from(&|name| std::env::var(name).ok())
    }

    /// From what `get` yields for a variable.
    ///
    /// # Errors
    /// As [`Ranks::from_env`].
    pub fn from(get: Get<'_>) -> Result<Self> {
        if get("RANK").is_some() || get("WORLD_SIZE").is_some() {
            return Self::named(&TORCHRUN, get);
        }
        if get(OPEN_MPI.rank).is_some() {
            return Self::named(&OPEN_MPI, get);
        }
        // A batch script has all of these but the step, and is one process, however many tasks it may start.
        if get(SLURM.rank).is_some() && get("SLURM_STEP_ID").is_some() {
            return Self::named(&SLURM, get);
        }
        Ok(Self::alone())
    }

    /// The only rank there is.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: 0,
            world: 1,
            local_rank: 0,
            local_world: 1,
            group_rank: 0,
            master: None,
            store_served: false,
            restart: 0,
            run_id: "alone".to_owned(),
        }
    }

    fn named(names: &Names, get: Get<'_>) -> Result<Self> {
        let rank = required(names.rank, names.world, get)?;
        let world = required(names.world, names.rank, get)?;
        below((names.rank, rank), (names.world, world))?;
        let one_machine = names.launcher == Launcher::Torchrun && world == 1;
        let local_world = number(names.local_world, get)?.unwrap_or(world);
        let local_rank = number(names.local_rank, get)?.unwrap_or(if one_machine { 0 } else { rank });
        below((names.local_rank, local_rank), (names.local_world, local_world))?;
        if local_world > world {
            return Err(contradiction(format!(
                "{}={local_world} is more than {}={world}",
                names.local_world, names.world
            )));
        }
        let served =
            get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        Ok(Self {
            launcher: names.launcher,
            rank,
            world,
            local_rank,
            local_world,
            group_rank: number(names.group_rank, get)?.unwrap_or(0),
            master: master(names, world, local_world, get)?,
            store_served: served && names.launcher == Launcher::Torchrun,
            restart: number(names.restart, get)?.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            run_id: get(names.run_id).unwrap_or_else(|| "none".to_owned()),
        })
    }
}

fn contradiction(said: String) -> Error {
    Error::config(said).hint("start all ranks by one launcher, and set none of its variables by hand")
}

/// The number in a variable.
fn number(name: &str, get: Get<'_>) -> Result<Option<usize>> {
    let Some(text) = get(name) else { return Ok(None) };
    let parsed = text.trim().parse();
    parsed.map(Some).map_err(|_| contradiction(format!("{name}={text:?} is no number of ranks")))
}

fn required(name: &str, other: &str, get: Get<'_>) -> Result<usize> {
    let missing = || contradiction(format!("{other} is set, but {name} is not"));
    number(name, get)?.ok_or_else(missing)
}

fn below(index: (&str, usize), size: (&str, usize)) -> Result<()> {
    if index.1 < size.1 {
        return Ok(());
    }
    Err(contradiction(format!("{}={} is not below {}={}", index.0, index.1, size.0, size.1)))
}

/// Where the ranks meet.
fn master(names: &Names, world: usize, local_world: usize, get: Get<'_>) -> Result<Option<(String, u16)>> {
    let port = get("MASTER_PORT").map(|text| {
        let parsed = text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        parsed.ok_or_else(|| contradiction(format!("MASTER_PORT={text:?} is no port")))
    });
    let port = port.transpose()?;
    let address = get("MASTER_ADDR").or_else(|| match names.launcher {
        Launcher::Slurm => get("SLURM_LAUNCH_NODE_IPADDR"),
        _ => None,
    });
    match (address, port) {
        (Some(address), Some(port)) => Ok(Some((address, port))),
        _ if world == 1 => Ok(None),
        (address, port)
            if names.launcher != Launcher::Torchrun && (address.is_some() || local_world == world) =>
        {
            Ok(Some((address.unwrap_or_else(|| "127.0.0.1".to_owned()), port.unwrap_or(PORT))))
        }
        (Some(_), None) => Err(contradiction(format!("{}={world}, but MASTER_PORT is not set", names.world))),
        _ => Err(contradiction(format!("{}={world}, but MASTER_ADDR is not set", names.world))),
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.launcher {
            Launcher::Alone => return f.write_str("one process, as no launcher's variables are set"),
            Launcher::Torchrun => "torchrun's variables",
            Launcher::Slurm => "SLURM's variables",
            Launcher::OpenMpi => "Open MPI's variables",
        };
        write!(f, "rank {} of {} by {by}", self.rank, self.world)?;
        if self.restart > 0 { write!(f, ", restart {}", self.restart) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
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

        let slurm = "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NTASKS_PER_NODE=2 SLURM_NODEID=1 SLURM_JOB_ID=77";
        let step = format!("{slurm} SLURM_STEP_ID=0 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1");
        let found = ranks(&step).unwrap();
        assert_eq!((found.launcher, found.rank, found.world, found.local_rank), (Launcher::Slurm, 3, 4, 1));
        assert_eq!(found.master, Some(("10.0.0.1".to_owned(), PORT)));
        // A batch script, not a task.
        assert_eq!(ranks(slurm).unwrap(), Ranks::alone());

        let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        let found = ranks(mpi).unwrap();
        assert_eq!((found.launcher, found.rank), (Launcher::OpenMpi, 1));
        assert_eq!(found.master, Some(("127.0.0.1".to_owned(), PORT)));
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
            ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"),
        ] {
            let error = ranks(variables).unwrap_err();
            assert!(error.to_string().contains(words), "{variables}: {error}");
        }
        assert_eq!(ranks("RANK=0 WORLD_SIZE=1").unwrap().master, None);
    }
}
