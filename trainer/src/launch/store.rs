//! Who serves the store that ranks meet at, and on which port.

use std::{any::Any, fmt, io, net::TcpListener, time::Duration};

use crate::{Error, ErrorKind, Result, torch::c10d::Store};

/// Serves a store, or leaves that to rank 0.
pub trait StoreHost {
    /// Begins to serve on `port` of `address`, or on any free port.
    ///
    /// # Errors
    /// `Conflict` for a port that is taken.
    fn start(&self, address: &str, port: Option<u16>) -> Result<Hosted>;
}

/// A store for one incarnation of a run.
pub struct Hosted {
    /// Its port.
    pub port: u16,
    /// Whether it is served already; else rank 0 has to.
    pub served: bool,
    /// What serves it, as long as it is kept.
    pub server: Box<dyn Any>,
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted")
            .field("port", &self.port)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// Leaves serving to rank 0, as programs expect that were not told otherwise; finds out whether the port is free.
#[derive(Debug, Clone, Copy)]
pub struct RankZero;

impl StoreHost for RankZero {
    fn start(&self, address: &str, port: Option<u16>) -> Result<Hosted> {
        let bound = TcpListener::bind((address, port.unwrap_or(0)))
            .and_then(|listener| listener.local_addr())
            .map_err(|error| taken(address, port, error))?;
        Ok(Hosted { port: bound.port(), served: false, server: Box::new(()) })
    }
}

/// Serves libtorch's own store in the launcher: it outlives every rank, so that those that are left can tell who died.
#[derive(Debug, Clone, Copy)]
pub struct Served;

/// How long the launcher waits for its own store.
const LIMIT: Duration = Duration::from_secs(30);

impl StoreHost for Served {
    fn start(&self, address: &str, port: Option<u16>) -> Result<Hosted> {
        if port.is_some() {
            // Says in words what the store would say in libtorch's.
            RankZero.start(address, port)?;
        }
        let (store, port) = Store::serve(address, port.unwrap_or(0), LIMIT).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot serve a store on {address}: {error}")).caused_by(error)
        })?;
        Ok(Hosted { port, served: true, server: Box::new(store) })
    }
}

fn taken(address: &str, port: Option<u16>, error: io::Error) -> Error {
    let port = port.map_or("any port".to_owned(), |port| format!("port {port}"));
    let (kind, said) = match error.kind() {
        io::ErrorKind::AddrInUse => (ErrorKind::Conflict, format!("{port} of {address} is taken")),
        _ => (ErrorKind::Io, format!("cannot serve a store on {port} of {address}: {error}")),
    };
    Error::new(kind, said).hint("choose another --port, or none: then a free one is found").caused_by(error)
}
