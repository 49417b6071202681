//! `cargo xtask setup`: what has to be on the machine before tests, demo and trainer can run.
//!
//! On stdout: the folder of each thing that was asked for, a line each; of servers, as the variable by which tests find it.

use clap::Args;

use crate::error::Error;
use crate::libtorch::{self, Build};
use crate::{python, servers, test};

/// What to set up; everything unless something is named.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only the Python environment that tests and demo use
    #[arg(long, conflicts_with_all = ["libtorch", "cuda"])]
    python: bool,
    /// Only the servers that tests of object stores start; prints the variables by which these find them
    #[arg(long, conflicts_with_all = ["python", "libtorch", "cuda"])]
    servers: bool,
    /// Only libtorch for the CPU, which is enough to build and test the trainer
    #[arg(long)]
    libtorch: bool,
    /// Only libtorch with CUDA: 4 GB, for a trainer that runs on GPUs
    #[arg(long, conflicts_with = "libtorch")]
    cuda: bool,
}

/// Sets it up and prints where it lies.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    if options.servers {
        return set_up_servers();
    }
    let build = match (options.cuda, options.libtorch) {
        (true, _) => Some(Build::Cuda),
        (false, true) => Some(Build::Cpu),
        (false, false) => None,
    };
    if build.is_none() {
        println!("{}", python::environment()?.folder().display());
    }
    if !options.python {
        test::require_c_compiler()?;
        libtorch::require_cxx_compiler()?;
        println!("{}", libtorch::set_up(build)?.display());
    }
    if build.is_none() && !options.python {
        // Without one of them everything else can be built and run, and its tests say that it is missing.
        servers::variables().iter().for_each(|(name, value)| println!("{name}={}", value.display()));
    }
    Ok(())
}

/// Each of them, whatever becomes of the others; the first failure is told at the end.
fn set_up_servers() -> Result<(), Error> {
    let mut failed = None;
    for server in &servers::ALL {
        match server.set_up() {
            Ok(value) => println!("{}={}", server.variable, value.display()),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}
