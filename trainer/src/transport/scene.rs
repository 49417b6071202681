//! The scene of a failure: the last actions of a rank, what it waits for and since when.
//!
//! Invariants: a bounded ring, so that it can stay on in every run; written to `rank_00003.scene.txt` at the first
//! failure of this rank and not again, so that what follows from a failure does not cover it; before that once when
//! another rank has failed.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What one rank did last. Other ranks of the process may read it.
#[derive(Debug)]
pub(crate) struct Scene {
    rank: usize,
    started: Instant,
    capacity: usize,
    dump: Option<PathBuf>,
    /// Whether it was written; held while writing.
    dumped: Mutex<bool>,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    actions: VecDeque<(Duration, String)>,
    forgotten: u64,
    waiting: Option<(Duration, String)>,
    failure: Option<(Duration, String)>,
}

/// A wait in progress: ends when dropped.
#[must_use = "the wait ends when this is dropped"]
pub(crate) struct Waiting<'a>(&'a Scene);

impl Scene {
    /// An empty scene; times count from `started`.
    pub(crate) fn new(rank: usize, started: Instant, capacity: usize, dump: Option<PathBuf>) -> Self {
        let (dumped, ring) = (Mutex::default(), Mutex::default());
        Self { rank, started, capacity: capacity.max(1), dump, dumped, ring }
    }

    /// Remembers an action.
    pub(crate) fn note(&self, action: &dyn fmt::Display) {
        let now = self.started.elapsed();
        let mut ring = self.ring();
        let mut text = if ring.actions.len() < self.capacity {
            String::new()
        } else {
            ring.forgotten += 1;
            ring.actions.pop_front().map(|(_, text)| text).unwrap_or_default()
        };
        text.clear();
        // Writing to a string does not fail; a Display of the caller's that does leaves a shorter text.
        let _ = write!(text, "{action}");
        ring.actions.push_back((now, text));
    }

    /// Says what the rank waits for from now on.
    pub(crate) fn wait(&self, what: &dyn fmt::Display) -> Waiting<'_> {
        let now = self.started.elapsed();
        self.ring().waiting = Some((now, what.to_string()));
        Waiting(self)
    }

    /// Remembers the first failure, and writes the scene where a folder is given.
    pub(crate) fn fail(&self, why: &dyn fmt::Display) {
        let now = self.started.elapsed();
        let first = {
            let mut ring = self.ring();
            let first = ring.failure.is_none();
            ring.failure.get_or_insert_with(|| (now, why.to_string()));
            first
        };
        self.save(first);
    }

    /// Writes the scene to its folder, once: for a rank that has not failed itself.
    pub(crate) fn dump(&self) {
        self.save(false);
    }

    /// A failure of its own is written over what was written because another rank had failed.
    fn save(&self, again: bool) {
        let Some(folder) = &self.dump else { return };
        let mut dumped = self.dumped.lock().unwrap_or_else(PoisonError::into_inner);
        if *dumped && !again {
            return;
        }
        *dumped = true;
        if let Err(error) = self.write(folder) {
            self.note(&format_args!("the scene was not written to {}: {error}", folder.display()));
        }
    }

    /// In a few words: what it waits for, or did last.
    pub(crate) fn brief(&self) -> String {
        let ring = self.ring();
        let ago = |then: Duration| self.started.elapsed().saturating_sub(then).as_secs_f64();
        match (&ring.waiting, ring.actions.back()) {
            (Some((since, what)), _) => format!("waiting for {what} since {:.1} s", ago(*since)),
            (None, Some((at, what))) => format!("last seen {:.1} s ago at {what}", ago(*at)),
            (None, None) => "has done nothing yet".to_owned(),
        }
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(format!("rank_{:05}.scene.txt", self.rank)), self.to_string())
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.ring().waiting = None;
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.ring();
        let now = self.started.elapsed().as_secs_f64();
        writeln!(f, "rank {} at {now:.3} s after its start", self.rank)?;
        if let Some((at, why)) = &ring.failure {
            writeln!(f, "failed at {:.3} s: {why}", at.as_secs_f64())?;
        }
        match &ring.waiting {
            Some((since, what)) => {
                let since = since.as_secs_f64();
                writeln!(f, "waiting for {what} since {since:.3} s ({:.3} s long)", now - since)?;
            }
            None => writeln!(f, "waiting for nothing")?,
        }
        writeln!(f, "last actions, oldest first ({} older ones forgotten):", ring.forgotten)?;
        ring.actions.iter().try_for_each(|(at, text)| writeln!(f, "{:>12.6} s  {text}", at.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_keeps_the_last_actions_and_the_wait() {
        let scene = Scene::new(3, Instant::now(), 2, None);
        (0..5).for_each(|index| scene.note(&format_args!("F{index}")));
        let waiting = scene.wait(&"activations from rank 2");
        let text = scene.to_string();
        assert!(text.contains("F3\n") && text.contains("F4\n") && !text.contains("F2"), "{text}");
        assert!(
            text.contains("3 older ones forgotten") && text.contains("waiting for activations from rank 2")
        );
        drop(waiting);
        assert!(scene.to_string().contains("waiting for nothing"));
    }

    #[test]
    fn the_first_failure_is_written_and_later_ones_do_not_cover_it() {
        let folder = std::env::temp_dir().join(format!("scene-{}", std::process::id()));
        let scene = Scene::new(12, Instant::now(), 4, Some(folder.clone()));
        let path = folder.join("rank_00012.scene.txt");
        scene.note(&"F3");
        scene.dump();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("failed at"));
        scene.fail(&"first");
        scene.fail(&"second");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("first") && !text.contains("second"), "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
