//! Buckets of Google Cloud Storage.
//!
//! Credentials, in this order: a service account (`GOOGLE_SERVICE_ACCOUNT`, a file, or `GOOGLE_SERVICE_ACCOUNT_KEY`, its content);
//! `GOOGLE_APPLICATION_CREDENTIALS`, or what `gcloud auth application-default login` left; those of the machine. With
//! `STORAGE_EMULATOR_HOST` an emulator is talked to, and gets none.

use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::client::Connector;
use super::{Settings, not_built, refuse_plain_http};
use crate::store::error::Result;
use crate::store::location::Bucket;

pub(super) fn build(bucket: &Bucket, location: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let (environment, patience) = (&settings.environment, settings.patience);
    let (endpoint, emulator) = (environment.get("GOOGLE_BASE_URL"), environment.get("STORAGE_EMULATOR_HOST"));
    refuse_plain_http(
        location,
        endpoint.as_deref(),
        environment.says_yes("GOOGLE_ALLOW_HTTP"),
        "GOOGLE_ALLOW_HTTP",
    )?;
    let options = patience.client_options().with_allow_http(emulator.is_some());
    let mut builder =
        GoogleCloudStorageBuilder::new().with_client_options(options).with_retry(patience.retries());
    if let Some(path) = environment.get("SERVICE_ACCOUNT") {
        builder = builder.with_service_account_path(path);
    }
    for (key, value) in environment.settings("GOOGLE_") {
        // Variables of other tools are passed over.
        if let Ok(key) = key.parse() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(host) = emulator {
        let url = if host.contains("://") { host } else { format!("http://{host}") };
        let nobody = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        builder = builder.with_base_url(url.trim_end_matches('/')).with_credentials(Arc::new(nobody));
    }
    let store = builder.with_bucket_name(&bucket.name).with_http_connector(Connector).build();
    let missing = "its settings do not hold together; look at the GOOGLE_… variables";
    Ok(Arc::new(store.map_err(|error| not_built(location, missing, error))?))
}
