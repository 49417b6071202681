//! Tests of the synchronous view.

use std::sync::atomic::{AtomicU64, Ordering};

use object_store::memory::InMemory;

use super::super::conformance;
use super::super::faults::{Faults, FaultyStore};
use super::super::over::{Layer, Over};
use super::*;
use crate::read_at::ReadAt as _;

fn path(name: &str) -> ObjectPath {
    object_path(name).unwrap()
}

#[test]
fn a_folder_behaves_as_every_store_must() {
    let (folder, count) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    conformance::all(|| {
        let below = folder.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        Root::create(below.to_str().unwrap(), &Stores::new()).unwrap()
    })
    .unwrap();
}

#[test]
fn a_folder_behaves_so_through_the_object_store_trait_too() {
    let (folder, count) = (tempfile::tempdir().unwrap(), AtomicU64::new(0));
    conformance::all(|| {
        let below = folder.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        Root::from_store(Arc::new(LocalStore::create(&below).unwrap()), "folder")
    })
    .unwrap();
}

#[test]
fn memory_behaves_as_every_store_must() {
    conformance::all(|| Root::create("memory://test", &Stores::new()).unwrap()).unwrap();
    conformance::all(|| Root::create("memory://test/some/prefix", &Stores::new()).unwrap()).unwrap();
}

#[test]
fn memory_stores_of_two_values_share_nothing_and_of_one_share_all() {
    let (stores, others) = (Stores::new(), Stores::new());
    let put = Root::create("memory://a", &stores).unwrap().put_create(&path("x"), Bytes::new());
    assert_eq!(put.unwrap(), Put::Created);
    assert!(Root::open("memory://a", &stores).unwrap().get(&path("x")).is_ok());
    assert!(matches!(Root::open("memory://a", &others), Err(StoreError::NotFound { .. })));
    assert!(Root::create("memory://a", &others).unwrap().get_opt(&path("x")).unwrap().is_none());
}

#[test]
fn locations_that_cannot_be_opened_say_why() {
    let stores = Stores::new();
    let lacking = [
        (cfg!(feature = "s3"), "s3://bucket/x", "--features s3"),
        (cfg!(feature = "gcs"), "gs://bucket", "--features gcs"),
        (cfg!(feature = "azure"), "abfss://c@acc.dfs.core.windows.net/x", "--features azure"),
    ];
    let lacking =
        lacking.into_iter().filter(|(has, ..)| !has).map(|(_, location, option)| (location, option));
    for (location, says) in lacking.chain([("https://host/x", "s3://"), ("foo://x", "foo")]) {
        let error = Root::open(location, &stores).unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains(location) && error.to_string().contains(says), "{error}");
    }
    for refused in ["", "memory://", "file://host/x", "a\0b"] {
        let error = Root::open(refused, &stores).unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{refused:?}: {error:?}");
    }
    assert!(matches!(Root::open("/nowhere/at/all", &stores), Err(StoreError::NotFound { .. })));
}

#[test]
fn a_file_url_and_a_path_with_a_colon_are_folders() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("a:b c%20");
    Root::create(odd.to_str().unwrap(), &Stores::new()).unwrap().put_same(&path("x"), Bytes::new()).unwrap();
    let url = url::Url::from_file_path(&odd).unwrap();
    assert!(Root::open(url.as_str(), &Stores::new()).unwrap().get(&path("x")).is_ok());
}

#[test]
fn a_store_that_accepts_a_second_create_is_refused() {
    /// Takes every create for an overwrite, as some gateways do.
    #[derive(Debug)]
    struct Careless(Arc<dyn ObjectStore>);

    #[async_trait::async_trait]
    impl Layer for Careless {
        const NAME: &'static str = "Careless";

        fn inner(&self) -> &Arc<dyn ObjectStore> {
            &self.0
        }

        async fn put_opts(
            &self,
            location: &ObjectPath,
            payload: object_store::PutPayload,
            _: object_store::PutOptions,
        ) -> object_store::Result<object_store::PutResult> {
            self.0.put(location, payload).await
        }
    }

    let root = Root::from_store(Arc::new(Over::layered(Careless(Arc::new(InMemory::new())))), "careless");
    assert!(matches!(root.probe(), Err(StoreError::UnsafeStore { .. })));
    assert!(root.list(None).unwrap().is_empty());
}

#[test]
fn a_probe_whose_first_answer_was_lost_blames_no_store() {
    for faults in [
        Faults { conflict_with_itself: 1000, ..Faults::default() },
        Faults { conflict_with_itself: 300, lost_answer: 200, ..Faults::default() },
    ] {
        for seed in 0..50 {
            let root = Root::from_store(
                Arc::new(FaultyStore::new(Arc::new(InMemory::new()), faults, seed)),
                "faulty",
            );
            // That the store did not answer is another matter.
            match root.probe() {
                Ok(()) | Err(StoreError::Io { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn an_object_is_put_although_the_answer_is_lost() {
    let faults = Faults { lost_answer: 400, conflict_with_itself: 400, ..Faults::default() };
    let store = Arc::new(FaultyStore::new(Arc::new(InMemory::new()), faults, 7));
    let root = Root::from_store(store.clone(), "faulty");
    for i in 0..200 {
        root.put_same(&path(&format!("{i}")), Bytes::from(format!("content {i}"))).unwrap();
    }
    assert!(store.injected() > 100);
}

#[test]
fn readers_of_formats_see_an_object_by_position() {
    let root = Root::create("memory://x", &Stores::new()).unwrap();
    root.put_same(&path("x"), Bytes::from_static(b"0123456789")).unwrap();
    let object = root.reader(&path("x")).unwrap();
    let mut buf = [0; 3];
    object.read_exact_at(4, &mut buf).unwrap();
    assert_eq!((object.len(), &buf), (10, b"456"));
    object.read_exact_at(10, &mut []).unwrap();
    for (offset, len) in [(8, 3), (11, 0), (u64::MAX, 1)] {
        let error = object.read_exact_at(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{offset}+{len}");
    }
}

#[test]
fn one_file_of_others_is_opened_by_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.pt"), b"abc").unwrap();
    let (root, name) = Root::open_foreign_file(&folder.path().join("model.pt")).unwrap();
    assert_eq!((name.as_ref(), root.get(&name).unwrap().as_ref()), ("model.pt", b"abc".as_ref()));
    assert!(Root::open_foreign_file(Path::new("/")).is_err());
}
