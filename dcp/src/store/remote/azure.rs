//! Containers of Azure Blob Storage.
//!
//! The account is that of the location, or `AZURE_STORAGE_ACCOUNT_NAME`. Credentials: `AZURE_STORAGE_ACCOUNT_KEY`, a SAS token, a client secret, a
//! federated token, or those of the machine. With `AZURE_STORAGE_USE_EMULATOR=true` Azurite is talked to.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::MicrosoftAzureBuilder;

use super::client::Connector;
use super::{Settings, not_built, refuse_plain_http};
use crate::store::error::Result;
use crate::store::location::Bucket;

pub(super) fn build(bucket: &Bucket, location: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let (environment, patience) = (&settings.environment, settings.patience);
    let endpoint =
        ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"].into_iter().find_map(|key| environment.get(key));
    refuse_plain_http(
        location,
        endpoint.as_deref(),
        environment.says_yes("AZURE_ALLOW_HTTP"),
        "AZURE_ALLOW_HTTP",
    )?;
    let builder = MicrosoftAzureBuilder::new()
        .with_client_options(patience.client_options())
        .with_retry(patience.retries());
    let mut builder =
        environment.settings("AZURE_").into_iter().fold(builder, |builder, (key, value)| match key.parse() {
            Ok(key) => builder.with_config(key, value),
            // Variables of other tools.
            Err(_) => builder,
        });
    if let Some(account) = &bucket.account {
        builder = builder.with_account(account);
    }
    let store = builder.with_container_name(&bucket.name).with_http_connector(Connector).build();
    let missing = "its settings do not hold together; it needs AZURE_STORAGE_ACCOUNT_NAME and credentials, \
                   AZURE_STORAGE_ACCOUNT_KEY for one (a connection string is not read)";
    Ok(Arc::new(store.map_err(|error| not_built(location, missing, error))?))
}
