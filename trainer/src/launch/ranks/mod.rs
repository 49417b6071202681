//! Which rank this process is, by the variables of whoever started it: `names` says which, `slurm` reads its lists.
//!
//! Invariants: a launcher that this process's direct parent may be wins over one further up (`torchrun` on each node of a
//! SLURM job); variables that can't all be true are refused by name and value, never chosen from.

mod names;
mod slurm;

use std::fmt;

use self::names::{ELASTIC, Names, OPEN_MPI, SLURM, TORCHRUN};
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
        let others = [(&OPEN_MPI, get(OPEN_MPI.rank).is_some()), (&SLURM, slurm::is_task(get))];
        if get("RANK").is_some() || get("WORLD_SIZE").is_some() {
            let found = Self::named(&TORCHRUN, get)?;
            // Without an agent, RANK was set by hand: for each process, or once for all by mistake.
            if get(ELASTIC).is_none() {
                let set = others.iter().filter(|(_, is_set)| *is_set);
                set.map(|(names, _)| *names).try_for_each(|names| found.agrees(names, get))?;
            }
            return Ok(found);
        }
        let set = others.into_iter().find(|(names, is_set)| *is_set && get(names.rank).is_some());
        set.map_or_else(|| Ok(Self::alone()), |(names, _)| Self::named(names, get))
    }

    /// Whether another launcher's variables say the same.
    fn agrees(&self, names: &Names, get: Get<'_>) -> Result<()> {
        for (mine, name, value) in [("RANK", names.rank, self.rank), ("WORLD_SIZE", names.world, self.world)]
        {
            match number(name, get)? {
                Some(other) if other != value => {
                    return Err(contradiction(format!("{mine}={value}, but {name}={other}")));
                }
                _ => {}
            }
        }
        Ok(())
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
        let own = names.local_world.map(|name| number(name, get).map(|it| (name, it))).transpose()?;
        let (local_name, local_world) = match own {
            Some((name, Some(ranks))) => (name, ranks),
            Some((name, None)) => (name, world),
            None => ("the tasks of this node", slurm::tasks_here(get)?.unwrap_or(world)),
        };
        let local_rank = number(names.local_rank, get)?.unwrap_or(if one_machine { 0 } else { rank });
        below((names.local_rank, local_rank), (local_name, local_world))?;
        if local_world > world {
            return Err(contradiction(format!(
                "{local_name}={local_world} is more than {}={world}",
                names.world
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
            group_rank: names.group_rank.map_or(Ok(None), |name| number(name, get))?.unwrap_or(0),
            master: master(names, world, local_world, get)?,
            store_served: served && names.launcher == Launcher::Torchrun,
            restart: number(names.restart, get)?.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            run_id: names.run_id.iter().find_map(|name| get(name)).unwrap_or_else(|| "none".to_owned()),
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
    let (address, port) = match (get("MASTER_ADDR"), names.launcher) {
        (Some(address), Launcher::Slurm) => (Some(address), port.or_else(|| slurm::port(get))),
        (None, Launcher::Slurm) if local_world < world => {
            (slurm::first_node(get)?, port.or_else(|| slurm::port(get)))
        }
        (None, Launcher::Slurm) => (None, port.or_else(|| slurm::port(get))),
        (address, _) => (address, port),
    };
    match (address, port) {
        (Some(address), Some(port)) => Ok(Some((address, port))),
        _ if world == 1 => Ok(None),
        (address, port)
            if names.launcher != Launcher::Torchrun && (address.is_some() || local_world == world) =>
        {
            Ok(Some((address.unwrap_or_else(|| "127.0.0.1".to_owned()), port.unwrap_or(PORT))))
        }
        (Some(_), None) => Err(contradiction(format!("{}={world}, but MASTER_PORT is not set", names.world))),
        _ => {
            let said = format!("{}={world}, but MASTER_ADDR is not set", names.world);
            Err(match names.launcher {
                Launcher::OpenMpi => Error::config(said).hint(
                    "Open MPI does not tell where rank 0 runs: mpirun -x MASTER_ADDR=<its host> -x MASTER_PORT=29500",
                ),
                _ => contradiction(said),
            })
        }
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
mod tests;
