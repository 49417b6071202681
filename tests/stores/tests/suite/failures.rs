//! What goes wrong with buckets: servers that end, refuse, answer late or twice.

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dcp::ErrorKind;
use dcp::store::{Put, Root, StoreError, Stores, object_path};
use stores::{Azurite, BUCKET, Fault, Gcs, Moto};

fn gcs(server: &Gcs) -> Root {
    Root::create(&format!("gs://{BUCKET}/run"), &super::stores(server.environment())).unwrap()
}

/// What a user reads: the failure and its causes.
fn told(error: &StoreError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
}

fn kind(error: StoreError) -> ErrorKind {
    dcp::Error::from(error).kind()
}

/// Replaces the value of a variable.
fn with(mut environment: Vec<(String, String)>, key: &str, value: &str) -> Stores {
    environment.retain(|(known, _)| known != key);
    environment.push((key.to_owned(), value.to_owned()));
    super::stores(environment)
}

#[test]
fn a_create_whose_answer_is_lost_is_resolved_by_what_is_there() {
    let server = Gcs::start().unwrap();
    let root = gcs(&server);
    let (name, bytes) = (object_path("x").unwrap(), Bytes::from_static(b"mine"));
    for fault in [
        Fault::AnswerLost,
        Fault::LandsWith(500),
        Fault::LandsWith(503),
        Fault::LandsWith(403),
        Fault::FailsWith(500),
        Fault::FailsWith(503),
        Fault::FailsWith(429),
        Fault::FailsWith(409),
        Fault::LandsWith(409),
    ] {
        server.fail_next(&[fault]);
        // A 403 is believed: no store writes what it forbids. All others must end with the object.
        match root.put_same(&name, bytes.clone()) {
            Ok(()) if fault != Fault::LandsWith(403) => {
                assert_eq!(root.get(&name).unwrap(), bytes, "{fault:?}");
            }
            Err(StoreError::Access { .. }) if fault == Fault::LandsWith(403) => {}
            Err(error) if error.may_have_landed() => {
                assert!(matches!(fault, Fault::AnswerLost), "{fault:?}: {error:?}");
            }
            other => panic!("{fault:?}: {other:?}"),
        }
        root.delete(&name).ok();
    }
}

#[test]
fn a_create_that_was_in_doubt_is_never_said_not_to_have_landed() {
    let server = Gcs::start().unwrap();
    let root = gcs(&server);
    for second in [Fault::FailsWith(403), Fault::FailsWith(404), Fault::FailsWith(400)] {
        server.fail_next(&[Fault::LandsWith(500), second]);
        let error = root.put_create(&object_path("y").unwrap(), Bytes::new()).unwrap_err();
        assert!(error.may_have_landed(), "{second:?}: {error:?}");
        root.delete(&object_path("y").unwrap()).unwrap();
    }
    // By itself: the name is taken, and the caller reads back by whom.
    server.fail_next(&[Fault::LandsWith(500)]);
    assert_eq!(root.put_create(&object_path("y").unwrap(), Bytes::new()).unwrap(), Put::Exists);
}

#[test]
fn a_conflict_with_nothing_there_is_no_object_that_exists() {
    let server = Gcs::start().unwrap();
    let root = gcs(&server);
    let name = object_path("z").unwrap();
    server.fail_next(&[Fault::FailsWith(409); 3]);
    assert_eq!(root.put_create(&name, Bytes::new()).unwrap(), Put::Created);
    root.delete(&name).unwrap();
    server.fail_next(&[Fault::FailsWith(409); 6]);
    let error = root.put_create(&name, Bytes::new()).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }) && error.may_have_landed(), "{error:?}");
}

#[test]
fn a_server_that_ends_during_an_upload_gives_an_error_and_leaves_nothing_visible() {
    let mut server = Moto::start().unwrap_or_else(|error| panic!("{error}"));
    let stores = super::stores(server.environment());
    let root = Root::create(&format!("s3://{BUCKET}/run"), &stores).unwrap();
    let blob = root.blob(&object_path("step-1/data/large").unwrap(), 64 << 20).unwrap();
    blob.write_at(0, &vec![1; 20 << 20]).unwrap();
    thread::sleep(Duration::from_millis(300));
    server.end();
    let begun = Instant::now();
    let written = (20..64).try_for_each(|mib: u64| blob.write_at(mib << 20, &[2; 1 << 20]));
    let error = written.and_then(|()| blob.finish()).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(kind(error), ErrorKind::Io);
}

#[test]
fn a_blob_that_is_given_up_leaves_no_parts_that_cost_money() {
    let server = Gcs::start().unwrap();
    let root = gcs(&server);
    for abort in [true, false] {
        let blob = root.blob(&object_path("large").unwrap(), 64 << 20).unwrap();
        blob.write_at(0, &vec![1; 20 << 20]).unwrap();
        assert_eq!(server.open_uploads(), 1);
        if abort {
            blob.abort();
        } else {
            drop(blob);
        }
        assert_eq!(server.open_uploads(), 0);
    }
    assert!(root.list(None).unwrap().is_empty());
}

#[test]
fn wrong_credentials_are_an_access_error_that_shows_no_secret() {
    let moto = Moto::start_strict().unwrap_or_else(|error| panic!("{error}"));
    let azurite = Azurite::start().unwrap_or_else(|error| panic!("{error}"));
    let gcs = Gcs::start_strict("right").unwrap();
    for (location, stores, secret) in [
        ("s3", super::stores(moto.environment()), "hunter2"),
        ("az", with(azurite.environment(), "AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg=="), "aHVudGVyMg"),
        ("gs", with(gcs.environment(), "GOOGLE_BEARER_TOKEN", "hunter2"), "hunter2"),
    ] {
        let location = format!("{location}://{BUCKET}/x");
        for result in [Root::open(&location, &stores), Root::create(&location, &stores)] {
            let error = result.unwrap_err();
            let told = format!("{} {error:?}", told(&error));
            assert!(!told.contains(secret), "{told}");
            assert_eq!(kind(error), ErrorKind::Access, "{told}");
        }
    }
}

#[test]
fn a_missing_bucket_is_named_and_an_empty_prefix_is_not_found() {
    let moto = Moto::start().unwrap_or_else(|error| panic!("{error}"));
    let azurite = Azurite::start().unwrap_or_else(|error| panic!("{error}"));
    let gcs = Gcs::start().unwrap();
    for (scheme, environment) in
        [("s3", moto.environment()), ("az", azurite.environment()), ("gs", gcs.environment())]
    {
        let stores = super::stores(environment);
        let missing = format!("{scheme}://no-such-bucket/x");
        for result in [Root::open(&missing, &stores), Root::create(&missing, &stores)] {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::NoBucket { .. }), "{error:?}");
            assert!(error.to_string().contains("no-such-bucket"), "{error}");
            assert_eq!(kind(error), ErrorKind::NotFound);
        }
        let empty = Root::open(&format!("{scheme}://{BUCKET}/nothing"), &stores).unwrap_err();
        assert!(matches!(empty, StoreError::NotFound { .. }), "{empty:?}");
    }
}
