//! Tests of opening buckets; the stores themselves are tested against servers, in the package `stores`.
use std::time::{Duration, Instant};

use super::*;
use crate::store::{Stores, object_path};

fn quick() -> Patience {
    Patience {
        tries: 2,
        in_all: Duration::from_secs(2),
        connect: Duration::from_secs(1),
        ..Patience::default()
    }
}

fn opened(location: &str, variables: &[(&str, &str)]) -> Result<Root> {
    let stores = Stores::new().with_environment(variables.iter().copied()).with_patience(quick());
    Root::open(location, &stores)
}

#[cfg(feature = "s3")]
const S3: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "someone"),
    ("AWS_SECRET_ACCESS_KEY", "hunter2"),
    ("AWS_SESSION_TOKEN", "hunter2-token"),
    ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
];

#[cfg(feature = "s3")]
#[test]
fn an_endpoint_without_encryption_is_refused_unless_it_is_allowed() {
    let error = opened("s3://b/x", &S3).unwrap_err();
    assert!(
        matches!(error, StoreError::Unsupported { .. }) && error.to_string().contains("AWS_ALLOW_HTTP"),
        "{error}"
    );
}

#[cfg(feature = "s3")]
#[test]
fn a_host_that_is_not_there_fails_soon_and_says_so_without_secrets() {
    let variables = [&S3[..], &[("AWS_ALLOW_HTTP", "true")]].concat();
    let begun = Instant::now();
    let error = opened("s3://b/x", &variables).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(
        matches!(&error, StoreError::NotDone { reason, .. } if reason.contains("could not be reached")),
        "{error:?}"
    );
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    assert!(!error.may_have_landed());
}

#[cfg(feature = "s3")]
#[test]
fn half_of_a_pair_of_keys_is_an_error_that_names_the_variables() {
    let error = opened("s3://b/x", &[("AWS_SECRET_ACCESS_KEY", "hunter2")]).unwrap_err();
    assert!(error.to_string().contains("AWS_"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

#[cfg(feature = "azure")]
#[test]
fn a_container_without_an_account_is_an_error_that_names_the_variable() {
    let error = opened("az://c/x", &[]).unwrap_err();
    assert!(error.to_string().contains("AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
}

#[cfg(feature = "gcs")]
#[test]
fn an_emulator_is_reached_without_credentials() {
    let error = opened("gs://b/x", &[("STORAGE_EMULATOR_HOST", "127.0.0.1:9")]).unwrap_err();
    assert!(matches!(&error, StoreError::NotDone { .. }), "{error:?}");
}

#[cfg(feature = "s3")]
#[test]
fn a_call_from_within_an_async_task_is_an_error_not_a_dead_lock() {
    let bucket = Bucket { kind: Kind::S3, name: "b".into(), account: None, below: String::new() };
    let allowed = Settings { environment: Environment::of([("AWS_ALLOW_HTTP", "true")]), patience: quick() };
    let root = open(&bucket, "s3://b", &allowed).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { root.get(&object_path("x").unwrap()) }).unwrap_err();
    assert!(error.to_string().contains("async task"), "{error}");
}
