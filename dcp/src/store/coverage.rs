//! Which bytes of a file of known size have been written: each exactly once, in any order, by many threads.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint written ranges of a file of `size` bytes, neighbours merged.
#[derive(Debug)]
pub(crate) struct Coverage {
    size: u64,
    /// Start to end of each range; no two touch.
    written: BTreeMap<u64, u64>,
}

impl Coverage {
    pub(crate) const fn new(size: u64) -> Self {
        Self { size, written: BTreeMap::new() }
    }

    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Claims a range, or says why it cannot be written.
    pub(crate) fn claim(&mut self, range: &Range<u64>) -> Result<(), &'static str> {
        if range.end > self.size || range.start > range.end {
            return Err("outside of the size that the blob was declared with");
        }
        if range.is_empty() {
            return Ok(());
        }
        let before = self.written.range(..range.end).next_back().map(|(&start, &end)| (start, end));
        if before.is_some_and(|(_, end)| end > range.start) {
            return Err("twice");
        }
        let start = before.filter(|&(_, end)| end == range.start).map_or(range.start, |(start, _)| start);
        let end = self.written.remove(&range.end).unwrap_or(range.end);
        self.written.insert(start, end);
        Ok(())
    }

    /// Whether exactly the first `size` bytes were written.
    pub(crate) fn is_exactly(&self, size: u64) -> bool {
        self.written.iter().all(|(&start, &end)| start == 0 && end == size)
            && (size == 0 || !self.written.is_empty())
    }

    /// The first bytes that nobody has written.
    pub(crate) fn gap(&self) -> Option<Range<u64>> {
        let mut ranges = self.written.iter().map(|(&start, &end)| start..end);
        match ranges.next() {
            None => (self.size > 0).then_some(0..self.size),
            Some(first) if first.start > 0 => Some(0..first.start),
            Some(first) if first.end < self.size => {
                Some(first.end..ranges.next().map_or(self.size, |next| next.start))
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_file_is_whole_exactly_when_every_byte_was_claimed_once(
            size in 0_u64..40, writes in prop::collection::vec((0_u64..45, 0_u64..12), 0..40),
        ) {
            let mut coverage = Coverage::new(size);
            let mut model = vec![false; usize::try_from(size).unwrap()];
            for (start, len) in writes {
                let bytes = (start..start + len).map(|at| usize::try_from(at).unwrap());
                let inside = start + len <= size;
                let free = inside && bytes.clone().all(|at| !model[at]);
                prop_assert_eq!(coverage.claim(&(start..start + len)).is_ok(), free);
                if free {
                    bytes.for_each(|at| model[at] = true);
                }
                let hole = model.iter().position(|written| !written);
                let end = hole.map(|from| from + model[from..].iter().position(|w| *w).unwrap_or(model.len() - from));
                let expected = hole.zip(end).map(|(from, to)| from as u64..to as u64);
                prop_assert_eq!(coverage.gap(), expected);
                let whole = model.iter().rposition(|written| *written).map_or(0, |last| last + 1);
                let prefix = model.iter().take(whole).all(|written| *written);
                prop_assert_eq!(coverage.is_exactly(whole as u64), prefix);
                prop_assert!(!coverage.is_exactly(whole as u64 + 1));
            }
        }
    }

    #[test]
    fn a_range_that_overflows_is_refused() {
        assert!(Coverage::new(u64::MAX).claim(&Range { start: 5, end: 2 }).is_err());
        assert!(Coverage::new(3).claim(&(0..u64::MAX)).is_err());
    }
}
