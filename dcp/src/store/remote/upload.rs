//! An upload in parts: each part flies from the moment that it is given, on the reactor's threads.
//!
//! A part that nobody waits for any more is stopped. An abort takes a bounded time, since it is called where an error is on its way up already.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::task::JoinHandle;

use super::reactor::Within;
use super::store::Place;
use super::trace::Trace;
use crate::store::name::ObjectPath;

/// How long an abort may take. What it leaves behind, the bucket's own rules have to remove.
const ABORT: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Upload {
    inner: Box<dyn MultipartUpload>,
    place: Place,
    location: ObjectPath,
}

/// A part on its way, stopped when dropped.
struct Flight(JoinHandle<Result<()>>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Upload {
    pub(super) const fn new(inner: Box<dyn MultipartUpload>, place: Place, location: ObjectPath) -> Self {
        Self { inner, place, location }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("location", &self.location).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (place, location, trace) = (self.place.clone(), self.location.clone(), Trace::default());
        let part = Within::new(&self.place.reactor, &trace, self.inner.put_part(data));
        let mut flight = Flight(self.place.reactor.spawn(part));
        Box::pin(async move {
            match (&mut flight.0).await {
                Ok(done) => done.map_err(|error| place.error("write", Some(&location), error, &trace)),
                Err(stopped) => Err(Error::Generic { store: "store", source: stopped.into() }),
            }
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let complete = self.inner.complete();
        self.place.call("finish", Some(&self.location), complete).await
    }

    async fn abort(&mut self) -> Result<()> {
        let abort = self.inner.abort();
        let bounded = async { tokio::time::timeout(ABORT, abort).await.unwrap_or(Ok(())) };
        self.place.call("give up", Some(&self.location), bounded).await
    }
}
