//! One suite on every store.

use std::sync::atomic::{AtomicU64, Ordering};

use dcp::store::{Root, Stores, conformance};
use stores::{Azurite, BUCKET, Gcs, Moto};

/// Runs the suite, each behaviour below a prefix of its own.
fn behaves(stores: &Stores, place: &str) {
    let count = AtomicU64::new(0);
    let fresh = || {
        let location = format!("{place}/{}", count.fetch_add(1, Ordering::Relaxed));
        Root::create(&location, stores).unwrap_or_else(|error| panic!("{location}: {error}: {error:?}"))
    };
    conformance::all(fresh).unwrap_or_else(|error| panic!("{place}: {error}"));
}

#[test]
fn a_folder_behaves_as_every_store_must() {
    let folder = tempfile::tempdir().unwrap();
    behaves(&Stores::new(), folder.path().to_str().unwrap());
}

#[test]
fn memory_behaves_as_every_store_must() {
    behaves(&Stores::new(), "memory://x/a b%20c");
}

#[test]
fn s3_behaves_as_every_store_must() {
    let server = Moto::start().unwrap_or_else(|error| panic!("{error}"));
    behaves(&super::stores(server.environment()), &format!("s3://{BUCKET}/a b%20c+d"));
}

#[test]
fn azure_behaves_as_every_store_must() {
    let server = Azurite::start().unwrap_or_else(|error| panic!("{error}"));
    behaves(&super::stores(server.environment()), &format!("az://{BUCKET}/a b%20c+d"));
}

#[test]
fn gcs_behaves_as_every_store_must() {
    let server = Gcs::start().unwrap();
    behaves(&super::stores(server.environment()), &format!("gs://{BUCKET}/a b%20c+d"));
    assert_eq!(server.open_uploads(), 0, "uploads that nobody completed or aborted");
}
