//! Tests of the synchronous view.
use super::*;

fn roots() -> Vec<(Root, Option<tempfile::TempDir>)> {
    let (folder, stores) = (tempfile::tempdir().unwrap(), Stores::new());
    let local = Root::create(folder.path().to_str().unwrap(), &stores).unwrap();
    vec![(local, Some(folder)), (Root::create("memory://test/below", &stores).unwrap(), None)]
}

fn path(name: &str) -> ObjectPath {
    object_path(name).unwrap()
}

#[test]
fn what_was_put_is_read_back_whole_and_in_part() {
    for (root, _folder) in roots() {
        let name = path("a/b");
        assert_eq!(root.get_opt(&name).unwrap(), None);
        assert_eq!(root.put_create(&name, Bytes::from_static(b"0123456789")).unwrap(), Put::Created);
        assert_eq!(root.put_create(&name, Bytes::from_static(b"x")).unwrap(), Put::Exists);
        assert_eq!(root.get(&name).unwrap(), "0123456789");
        assert_eq!(root.get_range(&name, 2..5).unwrap(), "234");
        assert_eq!(root.get_range(&name, 10..10).unwrap(), "");
        let mut buf = [0; 3];
        root.read_exact_at(&name, 7, &mut buf).unwrap();
        assert_eq!(&buf, b"789");
    }
}

#[test]
fn a_blob_is_written_out_of_order_by_many_threads() {
    for (root, _folder) in roots() {
        let name = path("step/data/x");
        let blob = root.blob(&name, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..4_u8 {
                let blob = &blob;
                scope.spawn(move || {
                    for at in (0..64).rev() {
                        blob.write_at(u64::from(worker) * (1 << 18) + at * 4096, &[worker; 4096]).unwrap();
                    }
                });
            }
        });
        assert!(root.get_opt(&name).unwrap().is_none());
        blob.finish().unwrap();
        let expected: Vec<u8> = (0..4_u8).flat_map(|worker| vec![worker; 1 << 18]).collect();
        assert_eq!(root.get(&name).unwrap(), expected);
    }
}
