//! Where sockets and timers live: one small runtime for all buckets of this process.
//!
//! A call is polled on the thread that waits for it, within the runtime's context; the runtime's own threads move the bytes of connections. So
//! nothing here needs to be `'static`, and a call that nobody waits for any more stops. The runtime is never dropped: dropping one
//! from within an async task panics.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::thread;

use futures::Stream;
use tokio::runtime::{Builder, Handle, Runtime};

use super::trace::Trace;
use crate::store::error::{Result, StoreError};

/// TLS and HTTP of all connections; beyond a few threads the network is what is waited for.
const MOST_THREADS: usize = 4;

/// The runtime, started when the first bucket is opened.
pub(super) fn handle() -> Result<Handle> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    match RUNTIME.get_or_init(start) {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(error) => Err(StoreError::Unsupported {
            what: "a bucket".to_owned(),
            reason: format!("the system gives no threads to talk to it: {error}"),
        }),
    }
}

fn start() -> io::Result<Runtime> {
    // Another part of the program may have chosen a provider of TLS already; then that one is used.
    drop(rustls::crypto::ring::default_provider().install_default());
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS));
    Builder::new_multi_thread().worker_threads(threads).thread_name("bucket").enable_all().build()
}

/// A future, or a stream, that is polled within the runtime's context, its requests noted in a trace.
pub(super) struct Within<T: ?Sized> {
    reactor: Handle,
    trace: Trace,
    inner: Pin<Box<T>>,
}

impl<T> Within<T> {
    pub(super) fn new(reactor: &Handle, trace: &Trace, inner: T) -> Self {
        Self { reactor: reactor.clone(), trace: trace.clone(), inner: Box::pin(inner) }
    }
}

impl<T: Future> Future for Within<T> {
    type Output = T::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        let this = &mut *self;
        let (_reactor, _trace) = (this.reactor.enter(), this.trace.enter());
        this.inner.as_mut().poll(context)
    }
}

impl<T: Stream> Stream for Within<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T::Item>> {
        let this = &mut *self;
        let (_reactor, _trace) = (this.reactor.enter(), this.trace.enter());
        this.inner.as_mut().poll_next(context)
    }
}
