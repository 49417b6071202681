//! Tests on real file systems: the one that tests' folders are on, and one in memory.

use std::io::Read;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::super::fs::{read_full, write_full};
use super::super::super::{FileSystem, Links};
use super::super::DiskFs;
use super::super::block::{BLOCK, GRAIN};
use super::*;

/// [`LARGE`], as a length in memory.
const LARGE_LEN: usize = 8 << 20;

/// A folder where tests have theirs, usually on a disk, and one in memory where there is such a thing.
fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().unwrap()];
    folders.extend(tempfile::tempdir_in("/dev/shm").ok());
    folders
}

fn create(folder: &Path) -> (Written, PathBuf) {
    let tree = Arc::new(Tree::open(folder, Links::Refuse).unwrap());
    let path = folder.join("x");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    (Written::new(file, &tree, "x"), path)
}

fn content(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 253).unwrap()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn large_files_go_around_the_cache_on_disks_and_not_in_memory() {
    for folder in folders() {
        let (file, _) = create(folder.path());
        file.reserve(LARGE).unwrap();
        write_full(&file, b"abc", 0).unwrap();
        let (kind, is_around) = (FileSystem::of(folder.path()).unwrap().name, file.begun().is_some());
        match kind {
            "ext4" | "xfs" => assert!(is_around, "{kind}"),
            "tmpfs" | "ramfs" => assert!(!is_around, "{kind}"),
            _ => {}
        }
    }
}

#[test]
fn small_files_do_not() {
    for folder in folders() {
        let (file, path) = create(folder.path());
        file.reserve(LARGE - 1).unwrap();
        write_full(&file, b"abc", LARGE - 4).unwrap();
        assert!(file.begun().is_none());
        assert_eq!(content(&path)[LARGE_LEN - 4..][..3], *b"abc");
    }
}

#[test]
fn a_file_that_grows_large_is_whole_whichever_way_its_bytes_went() {
    for folder in folders() {
        let ((file, path), bytes) = (create(folder.path()), sample(11 * BLOCK + 4321));
        for (nth, part) in bytes.chunks(777_777).enumerate() {
            write_full(&file, part, nth as u64 * 777_777).unwrap();
        }
        assert_eq!(file.stat().unwrap().size, bytes.len() as u64);
        file.fsync().unwrap();
        assert!(content(&path) == bytes);
    }
}

#[test]
fn what_was_written_is_read_before_it_is_durable() {
    for folder in folders() {
        let (file, _) = create(folder.path());
        file.reserve(LARGE).unwrap();
        write_full(&file, &vec![1; 3 * GRAIN], 5).unwrap();
        let mut found = [9; 8];
        assert_eq!(file.read_at(&mut found, 2).unwrap(), 8);
        assert_eq!(found, [0, 0, 0, 1, 1, 1, 1, 1]);
        // In the middle of what the cache now has of it.
        write_full(&file, &vec![2; 2 * GRAIN], GRAIN as u64).unwrap();
        let mut found = vec![0; 3 * GRAIN];
        read_full(&file, &mut found, 5).unwrap();
        assert!(found[..GRAIN - 5].iter().all(|it| *it == 1));
        assert!(found[GRAIN - 5..][..2 * GRAIN].iter().all(|it| *it == 2));
    }
}

#[test]
fn a_file_that_is_dropped_has_what_was_written_to_it() {
    for folder in folders() {
        let ((file, path), bytes) = (create(folder.path()), sample(9 * BLOCK + 1));
        file.reserve(bytes.len() as u64).unwrap();
        write_full(&file, &bytes, 0).unwrap();
        drop(file);
        assert!(content(&path) == bytes);
    }
}

#[test]
fn a_file_whose_name_is_gone_or_anothers_goes_through_the_cache() {
    for folder in folders() {
        let ((file, path), bytes) = (create(folder.path()), sample(9 * BLOCK));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"another").unwrap();
        write_full(&file, &bytes, 0).unwrap();
        file.fsync().unwrap();
        assert!(file.begun().is_none());
        assert_eq!(content(&path), b"another");
        let mut found = vec![0; bytes.len()];
        read_full(&file, &mut found, 0).unwrap();
        assert!(found == bytes);
    }
}

#[test]
fn as_a_blob_of_a_store_it_is_whole() {
    use super::super::super::{LocalStore, SeededNonces, object_path};
    for folder in folders() {
        let (bytes, name) = (sample(10 * BLOCK + 99), object_path("a/b").unwrap());
        let disk = DiskFs::open(folder.path(), Links::Refuse).unwrap();
        let store = LocalStore::over(disk, "root", Arc::new(SeededNonces::new(1)));
        let blob = store.blob(&name, bytes.len() as u64).unwrap();
        let head = 1000;
        blob.write_at(head as u64, &bytes[head..]).unwrap();
        blob.write_at(0, &bytes[..head]).unwrap();
        blob.finish().unwrap();
        assert!(content(&folder.path().join("a/b")) == bytes);
    }
}

fn writes() -> impl Strategy<Value = Vec<(usize, usize, u8, u8)>> {
    let offset = prop_oneof![0..5 * BLOCK, (0..80_usize).prop_map(|grain| grain * GRAIN)];
    let len = prop_oneof![1..5000_usize, 1..2 * BLOCK, (1..32_usize).prop_map(|grains| grains * GRAIN)];
    prop::collection::vec((offset, len, any::<u8>(), 0..10_u8), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_writes_and_reads_are_those_of_a_plain_file(writes in writes()) {
        for folder in folders() {
            let ((file, path), mut plain) = (create(folder.path()), Vec::new());
            file.reserve(LARGE).unwrap();
            plain.resize(LARGE_LEN, 0);
            for (offset, len, fill, then) in &writes {
                let bytes = vec![*fill; *len];
                write_full(&file, &bytes, *offset as u64).unwrap();
                plain[*offset..][..*len].copy_from_slice(&bytes);
                match then {
                    0 => file.fsync().unwrap(),
                    1 | 2 => {
                        let mut found = vec![0; 2 * len];
                        let from = offset.saturating_sub(len / 2);
                        let read = read_full(&file, &mut found, from as u64).unwrap();
                        prop_assert!(found[..read] == plain[from..][..read]);
                    }
                    _ => {}
                }
            }
            file.fsync().unwrap();
            prop_assert!(content(&path) == plain);
        }
    }
}
