//! [`Progress`]: a name matched segment by segment, so that names with the same beginning share the work.
//!
//! Every alternative is an automaton whose states are its segments; all that may be next are kept, so nothing is ever tried again.

use smallvec::SmallVec;

use super::{Pattern, Segment, glob};

/// How far a pattern has got in a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Alternatives and the segments of theirs that may be next, ascending; their number where none is.
    next: SmallVec<[(u32, u32); 4]>,
}

impl Pattern {
    /// Before the first segment of a name.
    pub(crate) fn start(&self) -> Progress {
        let mut next = SmallVec::new();
        (0..self.alternatives.len()).for_each(|of| self.enter(&mut next, of, 0));
        Progress { next }
    }

    /// After one more segment of it.
    pub(crate) fn step(&self, before: &Progress, text: &str) -> Progress {
        let mut next = SmallVec::new();
        for &(of, at) in &before.next {
            let (of, at) = (of as usize, at as usize);
            match self.segment(of, at) {
                Some(Segment::Many(name)) => {
                    self.enter(&mut next, of, at);
                    // One that needs a segment has it now.
                    if name.is_some() {
                        self.enter(&mut next, of, at + 1);
                    }
                }
                Some(segment) if glob::fits(segment, text) => self.enter(&mut next, of, at + 1),
                Some(_) | None => {}
            }
        }
        next.sort_unstable();
        next.dedup();
        Progress { next }
    }

    /// Whether the segments so far are a whole match.
    pub(crate) fn is_match(&self, progress: &Progress) -> bool {
        progress.next.iter().any(|&(of, at)| self.segment(of as usize, at as usize).is_none())
    }

    /// Whether more segments can make one.
    pub(crate) fn goes_on(&self, progress: &Progress) -> bool {
        progress.next.iter().any(|&(of, at)| self.segment(of as usize, at as usize).is_some())
    }

    fn segment(&self, of: usize, at: usize) -> Option<&Segment> {
        self.alternatives.get(of)?.segments.get(at)
    }

    /// A segment that may be next, and those behind it that need not wait for one.
    fn enter(&self, next: &mut SmallVec<[(u32, u32); 4]>, of: usize, mut at: usize) {
        loop {
            if let (Ok(of), Ok(at)) = (u32::try_from(of), u32::try_from(at)) {
                next.push((of, at));
            }
            if !matches!(self.segment(of, at), Some(Segment::Many(None))) {
                return;
            }
            at += 1;
        }
    }
}
