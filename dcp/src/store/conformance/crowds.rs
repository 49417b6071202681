//! Many that want the same, and many of them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;

use super::{Outcome, at, names};
use crate::store::error::StoreError;
use crate::store::root::{Put, Root};

const THREADS: usize = 8;

/// Eight threads create the same names at the same moment: each name is created by one, and holds what that one put.
///
/// # Errors
/// What the store says.
pub fn of_many_creates_one_succeeds(root: &Root) -> Outcome {
    const NAMES: usize = 24;
    let barrier = Barrier::new(THREADS);
    let race = |thread: usize| -> Result<Vec<usize>, StoreError> {
        let mut won = Vec::new();
        let mut failed = None;
        for n in 0..NAMES {
            // Every thread comes to every barrier, or the others would wait for good.
            barrier.wait();
            match at(&format!("race/{n}"))
                .and_then(|name| root.put_create(&name, Bytes::from(vec![thread.to_le_bytes()[0]; 100])))
            {
                Ok(Put::Created) => won.push(n),
                Ok(Put::Exists) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(won), Err)
    };
    let winners: Vec<_> = thread::scope(|scope| {
        let race = &race;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || race(thread))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked"))
            .collect::<Result<_, _>>()
    })?;
    let mut winner_of = vec![None; NAMES];
    for (thread, won) in winners.into_iter().enumerate() {
        for n in won? {
            let before = winner_of.get_mut(n).and_then(|winner| winner.replace(thread));
            assert_eq!(before, None, "two threads created name {n}");
        }
    }
    for (n, winner) in winner_of.into_iter().enumerate() {
        let winner = winner.ok_or("nobody created a name")?;
        let content = root.get(&at(&format!("race/{n}"))?)?;
        assert!(content.iter().all(|byte| usize::from(*byte) == winner) && content.len() == 100, "name {n}");
    }
    Ok(())
}

/// More objects than a store lists in one answer: all are listed, each once, by either way of listing; and all are deleted.
///
/// # Errors
/// What the store says.
pub fn more_than_a_page_is_listed_and_deleted(root: &Root) -> Outcome {
    const OBJECTS: usize = 1_003;
    let next = AtomicUsize::new(0);
    let fill = || -> Result<(), StoreError> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= OBJECTS {
                return Ok(());
            }
            root.put_same(&at(&format!("many/{n:05}"))?, Bytes::from_static(b"123"))?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(fill)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| -> Outcome { Ok(thread.join().map_err(|_| "a thread panicked")??) })
    })?;
    root.put_same(&at("many-not/x")?, Bytes::from_static(b"1"))?;
    let expected: Vec<_> = (0..OBJECTS).map(|n| format!("many/{n:05}")).collect();
    assert_eq!(names(root, Some("many"))?, expected);
    let below = root.list_dir(Some(&at("many")?))?;
    assert_eq!(below.objects.iter().map(|object| object.path.to_string()).collect::<Vec<_>>(), expected);
    assert_eq!(root.list_dir(None)?.dirs, [at("many")?, at("many-not")?]);
    assert_eq!(root.delete_all(&at("many")?)?, 3 * OBJECTS as u64);
    assert_eq!(names(root, None)?, ["many-not/x"]);
    Ok(())
}
