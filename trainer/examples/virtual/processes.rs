//! Ranks that are processes: this program again, over gloo. All run the same cases in the same order, and rank 0 tells what came of them, a
//! line of JSON for each.

use std::{
    error::Error,
    io::{self, Write},
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use trainer::{
    rehearsal::{Case, Measured, limits},
    transport::{
        Transport,
        gloo::{Ranks, rendezvous},
    },
};

const HOST: &str = "127.0.0.1";

/// Who a process is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// Where rank 0 serves the store.
    pub(crate) port: u16,
}

/// What the cases of `world` ranks come to.
pub(crate) fn measure(world: usize, full: bool) -> Result<Vec<Measured>, Box<dyn Error>> {
    // Free now; should another program take it at once, the ranks say so.
    let port = TcpListener::bind((HOST, 0))?.local_addr()?.port();
    let start = |rank: usize| -> io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        for (name, value) in [("--rank", rank), ("--world", world), ("--port", port.into())] {
            command.arg(name).arg(value.to_string());
        }
        command.args(full.then_some("--full")).env("OMP_NUM_THREADS", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    };
    let ranks = (0..world).map(start).collect::<io::Result<Vec<_>>>()?;
    let mut said = Vec::new();
    // All are waited for, also when one has failed: the others then end by themselves.
    for (rank, child) in ranks.into_iter().enumerate() {
        said.push((rank, child.wait_with_output()?));
    }
    if let Some((rank, output)) = said.iter().find(|(_, output)| !output.status.success()) {
        return Err(
            format!("rank {rank} of {world} ended with {}; what it said is above", output.status).into()
        );
    }
    let first = said.into_iter().next().map(|(_, output)| output.stdout).unwrap_or_default();
    let lines = String::from_utf8(first)?;
    Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Runs those of `cases` that are for as many ranks as there are.
pub(crate) fn be(rank: Rank, cases: &[Case]) -> Result<(), Box<dyn Error>> {
    let place = Ranks {
        rank: rank.rank,
        world: rank.world,
        master_addr: HOST.to_owned(),
        master_port: rank.port,
        restart: 0,
        hosted: false,
        interface: None,
    };
    let transport = rendezvous(&place, &limits())?;
    for case in cases.iter().filter(|case| case.ranks == rank.world) {
        let found = case.plan()?.run(&transport).inspect_err(|error| transport.abort(error))?;
        if rank.rank == 0 {
            writeln!(io::stdout(), "{}", serde_json::to_string(&case.measured("gloo", &found))?)?;
        }
    }
    Ok(())
}
