//! Stores behind a network: S3, GCS, Azure, by `object_store`, each behind its feature.
//!
//! ```text
//!  Root ─► Remote ─► PrefixStore ─► AmazonS3 | GoogleCloudStorage | MicrosoftAzure ─► Traced ─► reqwest
//!            │                                                                          │
//!            └─ reactor: where sockets and timers live      trace: what each request was answered ◄┘
//! ```
//!
//! What this adds to `object_store`, and why:
//! * A reactor of our own, so that a call can be waited for on any thread ([`reactor`]).
//! * What each request of a call was answered ([`trace`]). `object_store` repeats requests and tells the last answer only; whether a create may
//!   have landed depends on all of them ([`answer`]).
//! * Errors that say what to do, and never repeat what a server echoes: some echo tokens.
//! * Parts that fly while later ones are gathered ([`upload`]).

mod answer;
#[cfg(feature = "azure")]
mod azure;
mod client;
mod environment;
#[cfg(feature = "gcs")]
mod gcs;
mod patience;
mod reactor;
#[cfg(feature = "s3")]
mod s3;
mod store;
mod trace;
mod upload;

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::prefix::PrefixStore;

use super::error::{Result, StoreError};
use super::location::{Bucket, Kind};
use super::name::object_path;
use super::root::Root;

pub(super) use environment::Environment;
pub use patience::Patience;

/// What opening a bucket depends on beside its location.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) environment: Environment,
    pub(super) patience: Patience,
}

/// The root of a bucket. Nothing is sent yet.
pub(super) fn open(bucket: &Bucket, location: &str, settings: &Settings) -> Result<Root> {
    let reactor = reactor::handle()?;
    let store: Arc<dyn ObjectStore> = match bucket.kind {
        #[cfg(feature = "s3")]
        Kind::S3 => s3::build(bucket, location, settings)?,
        #[cfg(feature = "gcs")]
        Kind::Gcs => gcs::build(bucket, location, settings)?,
        #[cfg(feature = "azure")]
        Kind::Azure => azure::build(bucket, location, settings)?,
        #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
        _ => return Err(super::stores::not_built(bucket, location)),
    };
    let store: Arc<dyn ObjectStore> = match bucket.below.as_str() {
        "" => store,
        below => Arc::new(PrefixStore::new(store, object_path(below)?)),
    };
    Ok(Root::from_remote(Arc::new(store::Remote::new(store, reactor, location)), location))
}

/// A setting that `object_store` would not take. Its message names the setting; none of these holds a secret.
fn not_built(location: &str, missing: &str, error: object_store::Error) -> StoreError {
    StoreError::NotDone {
        path: location.to_owned(),
        op: "open",
        reason: missing.to_owned(),
        source: error.into(),
    }
}

/// An endpoint without TLS is taken only where the user has said so: requests carry what lets others write here.
fn refuse_plain_http(location: &str, endpoint: Option<&str>, allowed: bool, variable: &str) -> Result<()> {
    match endpoint {
        Some(url) if url.starts_with("http://") && !allowed => Err(StoreError::Unsupported {
            what: location.to_owned(),
            reason: format!(
                "the endpoint {} is not encrypted; set {variable}=true to use it all the same",
                super::location::shown(url)
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
