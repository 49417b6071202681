//! Buckets of S3, and of what speaks its protocol.
//!
//! Credentials, in this order: `AWS_ACCESS_KEY_ID` with `AWS_SECRET_ACCESS_KEY` (and `AWS_SESSION_TOKEN`); a web identity token; those of a
//! container; those of the machine. Profiles in `~/.aws` are not read.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, S3CopyIfNotExists};

use super::client::Connector;
use super::{Settings, not_built, refuse_plain_http};
use crate::store::error::Result;
use crate::store::location::Bucket;

pub(super) fn build(bucket: &Bucket, location: &str, settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let (environment, patience) = (&settings.environment, settings.patience);
    let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .into_iter()
        .find_map(|key| environment.get(key));
    refuse_plain_http(
        location,
        endpoint.as_deref(),
        environment.says_yes("AWS_ALLOW_HTTP"),
        "AWS_ALLOW_HTTP",
    )?;
    // Of the ways to copy on condition the one that S3 itself has.
    let builder = AmazonS3Builder::new()
        .with_client_options(patience.client_options())
        .with_retry(patience.retries())
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart);
    let builder =
        environment.settings("AWS_").into_iter().fold(builder, |builder, (key, value)| match key.parse() {
            Ok(key) => builder.with_config(key, value),
            // Variables of other tools.
            Err(_) => builder,
        });
    let store = builder.with_bucket_name(&bucket.name).with_http_connector(Connector).build();
    let missing = "its settings do not hold together; look at the AWS_… variables";
    Ok(Arc::new(store.map_err(|error| not_built(location, missing, error))?))
}
