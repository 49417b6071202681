//! An actor's way to the store: each operation waits for its turn, may fail by the seed, and leaves its outcome in the trace.

use std::sync::Arc;

use async_trait::async_trait;
use dcp::store::ObjectPath;
use dcp::store::over::{Call, Layer};
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};

use super::gate::Turn;

#[derive(Debug)]
pub(super) struct InTurn {
    /// A store that fails.
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) turn: Arc<Turn>,
}

impl InTurn {
    fn done<T>(&self, what: &str, path: &ObjectPath, result: Result<T>) -> Result<T> {
        let end = match &result {
            Ok(_) => "ok",
            Err(object_store::Error::NotFound { .. }) => "missing",
            Err(object_store::Error::AlreadyExists { .. }) => "exists",
            Err(_) => "failed",
        };
        self.turn.note(&format!("{what} {path} {end}"));
        result
    }
}

#[async_trait]
impl Layer for InTurn {
    const NAME: &'static str = "InTurn";

    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.inner
    }

    fn before(&self, call: Call<'_>) -> Result<()> {
        self.turn.wait(0);
        let (what, path) = match call {
            // Noted with what became of them.
            Call::Put(_) | Call::Head(_) | Call::Get(_) => return Ok(()),
            Call::Upload(path) => ("upload", Some(path)),
            Call::Ranges(path, _) => ("ranges", Some(path)),
            Call::Delete => ("delete", None),
            Call::List(prefix) => ("list", prefix),
            Call::ListBelow(prefix) => ("list right below", prefix),
            Call::Copy(path) => ("copy", Some(path)),
        };
        self.turn.note(&format!("{what} {}", path.map_or("", AsRef::as_ref)));
        Ok(())
    }

    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.done("put", location, self.inner.put_opts(location, payload, opts).await)
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.done("get", location, self.inner.get_opts(location, options).await)
    }
}
