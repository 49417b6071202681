//! A server that speaks what a client of Google Cloud Storage sends: the XML interface with puts, gets, lists and uploads in parts, and
//! preconditions on generations. In memory, for tests, on the loopback.
//!
//! ```text
//!  listener ─► a thread for each connection ─► http: request ─► api: what it means ─► objects: what is there, under one lock
//!                                                                  └ faults: what goes wrong on purpose
//! ```
//!
//! Of the real service it has what decides a race: one lock, so that `x-goog-if-generation-match: 0` is looked at and acted on in one step.

mod api;
mod http;
mod objects;

use std::collections::VecDeque;
use std::io::BufReader;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::BUCKET;
use crate::error::{Error, Result};
use objects::Objects;

/// What goes wrong with the next create of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It lands, and the connection is closed before the answer.
    AnswerLost,
    /// It lands, and this status is answered.
    LandsWith(u16),
    /// Nothing lands, and this status is answered.
    FailsWith(u16),
    /// Nothing lands, and the connection is closed.
    Cut,
}

/// A running server, ended when dropped.
#[derive(Debug)]
pub struct Gcs {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    objects: Mutex<Objects>,
    faults: Mutex<VecDeque<Fault>>,
    connections: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
    /// What a client has to show, if anything.
    token: Option<String>,
}

impl Gcs {
    /// Starts one with [`BUCKET`] in it. It believes everybody.
    ///
    /// # Errors
    /// When the system gives no port.
    pub fn start() -> Result<Self> {
        Self::with(None)
    }

    /// Starts one that believes whoever shows this token.
    ///
    /// # Errors
    /// As [`Gcs::start`].
    pub fn start_strict(token: &str) -> Result<Self> {
        Self::with(Some(token.to_owned()))
    }

    fn with(token: Option<String>) -> Result<Self> {
        let system = |source| Error::System { what: "the GCS server", source };
        let listener = TcpListener::bind("127.0.0.1:0").map_err(system)?;
        let port = listener.local_addr().map_err(system)?.port();
        let shared = Arc::new(Shared {
            objects: Mutex::new(Objects::with_bucket(BUCKET)),
            faults: Mutex::default(),
            connections: Mutex::default(),
            ended: AtomicBool::new(false),
            token,
        });
        let serving = Arc::clone(&shared);
        thread::Builder::new()
            .name("gcs".to_owned())
            .spawn(move || serve(&listener, &serving))
            .map_err(system)?;
        Ok(Self { port, shared })
    }

    /// The variables that a client needs.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        match &self.shared.token {
            None => vec![("STORAGE_EMULATOR_HOST".to_owned(), endpoint)],
            Some(token) => vec![
                ("GOOGLE_BASE_URL".to_owned(), endpoint),
                ("GOOGLE_ALLOW_HTTP".to_owned(), "true".to_owned()),
                ("GOOGLE_BEARER_TOKEN".to_owned(), token.clone()),
            ],
        }
    }

    /// What goes wrong with the next creates, in order.
    pub fn fail_next(&self, faults: &[Fault]) {
        lock(&self.shared.faults).extend(faults);
    }

    /// Uploads in parts that were begun, and neither completed nor aborted: they would cost money.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        lock(&self.shared.objects).open_uploads()
    }

    /// Ends it, as a machine ends that loses its power.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the listener.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        for connection in lock(&self.shared.connections).drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Gcs {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming().map_while(Result::ok) {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(again), shared) = (connection.try_clone(), Arc::clone(shared)) else { continue };
        lock(&shared.connections).push(again);
        thread::spawn(move || talk(&connection, &shared));
    }
}

/// Answers the requests of one connection until it ends.
fn talk(connection: &TcpStream, shared: &Shared) {
    drop(connection.set_nodelay(true));
    let mut reader = BufReader::new(connection);
    while let Ok(Some(request)) = http::read(&mut reader) {
        let fault = if request.creates() { lock(&shared.faults).pop_front() } else { None };
        let allowed = shared.token.as_ref().is_none_or(|token| request.shows(token));
        let act = || match allowed {
            true => api::answer(&request, &mut lock(&shared.objects)),
            false => http::Response::failure(401, "AuthenticationRequired", "Authentication required."),
        };
        let response = match fault {
            None => act(),
            Some(Fault::AnswerLost) => {
                drop(act());
                break;
            }
            Some(Fault::LandsWith(status)) => {
                drop(act());
                http::Response::failure(status, "InternalError", "It landed all the same.")
            }
            Some(Fault::FailsWith(status)) => http::Response::failure(status, "Backend", "Nothing landed."),
            Some(Fault::Cut) => break,
        };
        if shared.ended.load(Ordering::SeqCst)
            || response.write(connection, request.method == "HEAD").is_err()
        {
            break;
        }
    }
    drop(connection.shutdown(Shutdown::Both));
}
