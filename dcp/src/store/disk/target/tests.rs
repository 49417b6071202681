//! Tests of what goes which way, with files that refuse.

use super::super::block::BLOCK;
use super::super::gathered::Gathered;
use super::super::pool::Pool;
use super::*;

fn writable(path: &str) -> File {
    File::options().write(true).open(path).unwrap()
}

/// A file whose way around the cache is `around`.
fn over(around: File) -> (Gathered<Target>, File) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let read = file.try_clone().unwrap();
    (Gathered::new(Target::new(&file, around), Arc::new(Pool::new(4))), read)
}

#[test]
fn memory_and_offsets_must_fit_what_the_file_system_asks_for() {
    for (told, fits) in [((512, 512), true), ((4, 4096), true), ((4096, 65_536), true)] {
        assert_eq!(takes_blocks(Some(told), None), fits, "{told:?}");
    }
    for told in [(0, 0), (512, 0), (0, 512), (8192, 512), (4096, 128 << 10), (3, 512)] {
        assert!(!takes_blocks(Some(told), Some(ALWAYS[0])), "{told:?}");
    }
}

#[test]
fn where_the_system_does_not_say_only_known_file_systems_are_trusted() {
    assert!(takes_blocks(None, Some(0xef53)) && takes_blocks(None, Some(0x5846_5342)));
    assert!(!takes_blocks(None, Some(0x0102_1994)) && !takes_blocks(None, Some(0x6969)));
    assert!(!takes_blocks(None, None));
}

#[test]
fn a_disk_that_is_full_is_told_when_it_settles_and_ever_after() {
    let (file, _) = over(writable("/dev/full"));
    // It was taken, as by a page cache.
    file.write(&vec![1; BLOCK], 0).unwrap();
    for _ in 0..2 {
        assert_eq!(file.settle().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert!(file.write(b"x", 0).is_err(), "and no later write is taken");
}

#[test]
fn an_error_of_the_way_around_is_not_taken_for_a_refusal() {
    let (file, _) = over(File::open("/dev/null").unwrap());
    file.write(&vec![1; BLOCK], 0).unwrap();
    assert_eq!(file.settle().unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

#[cfg(target_os = "linux")]
#[test]
fn what_the_system_refuses_to_write_around_the_cache_goes_through_it() {
    // A number is expected there: other bytes are an invalid argument.
    let (file, read) = over(writable("/proc/self/oom_score_adj"));
    let bytes: Vec<u8> = (0..3 * BLOCK + 7).map(|at| u8::try_from(at % 239).unwrap()).collect();
    file.write(&bytes, 0).unwrap();
    file.settle().unwrap();
    let mut found = vec![0; bytes.len()];
    read.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
}
