//! Matching: one pass over segments with a single point of return (the last `**`), the same within a segment (the
//! last `*`). Taking the leftmost place for every literal is enough for globs, so no deeper backtracking is needed.

use super::{Alternative, Captures, Segment};

pub(super) fn captures<'n>(alternative: &Alternative, name: &'n str) -> Option<Captures<'n>> {
    if !name.ends_with(&*alternative.suffix) {
        return None;
    }
    Walk { segments: &alternative.segments, name, found: Captures::default() }.run()
}

/// Where to resume when what follows a `**` fails.
struct Return {
    segment: usize,
    /// Byte at which the `**` began, and the end of what it holds now.
    from: usize,
    to: usize,
    captures: usize,
}

struct Walk<'p, 'n> {
    segments: &'p [Segment],
    name: &'n str,
    found: Captures<'n>,
}

impl<'n> Walk<'_, 'n> {
    /// `at` is the byte where the next segment of the name begins; `None` once the name is used up.
    fn run(mut self) -> Option<Captures<'n>> {
        let (mut at, mut segment, mut back) = (Some(0), 0, None::<Return>);
        loop {
            let fits = match (self.segments.get(segment), at) {
                (None, None) => return Some(self.found),
                (Some(Segment::Many(name)), Some(from)) => {
                    back = Some(Return { segment, from, to: from, captures: self.found.0.len() });
                    if name.is_some() {
                        false
                    } else {
                        segment += 1;
                        continue;
                    }
                }
                (Some(Segment::Many(None)), None) => {
                    segment += 1;
                    continue;
                }
                (Some(one), Some(from)) => self.one(one, from),
                (Some(_), None) | (None, Some(_)) => false,
            };
            if fits {
                at = self.next_segment(at?);
                segment += 1;
            } else {
                (at, segment) = self.widen(back.as_mut()?)?;
            }
        }
    }

    /// Gives the last `**` one more segment; `None` when there is no more.
    fn widen(&mut self, back: &mut Return) -> Option<(Option<usize>, usize)> {
        if back.to > self.name.len() {
            return None;
        }
        let end = self.end_of(back.to);
        self.found.0.truncate(back.captures);
        if let Some(Segment::Many(Some(name))) = self.segments.get(back.segment) {
            self.found.0.push((name.clone(), self.name.get(back.from..end)?));
        }
        // One past the end marks a `**` that has taken the whole rest.
        back.to = end + 1;
        Some(((end < self.name.len()).then_some(end + 1), back.segment + 1))
    }

    fn one(&mut self, segment: &Segment, from: usize) -> bool {
        let Some(text) = self.name.get(from..self.end_of(from)) else { return false };
        let fits = fits(segment, text);
        if let (true, Segment::Capture { name, .. }) = (fits, segment) {
            self.found.0.push((name.clone(), text));
        }
        fits
    }

    fn end_of(&self, from: usize) -> usize {
        self.name.get(from..).and_then(|rest| rest.find('.')).map_or(self.name.len(), |dot| from + dot)
    }

    fn next_segment(&self, from: usize) -> Option<usize> {
        let end = self.end_of(from);
        (end < self.name.len()).then_some(end + 1)
    }
}

/// Whether a segment stands for this one of a name; `**` stands for several.
pub(super) fn fits(segment: &Segment, text: &str) -> bool {
    match segment {
        Segment::Literal(literal) => **literal == *text,
        Segment::Glob(pieces) => glob(pieces, text),
        Segment::Indices(set) => crate::fold::index_of(text).is_some_and(|index| set.contains(index)),
        Segment::Capture { digits, .. } => !digits || crate::fold::index_of(text).is_some(),
        Segment::Many(_) => false,
    }
}

/// Literal `pieces` in order, the first at the start and the last at the end, anything between them.
fn glob(pieces: &[Box<str>], text: &str) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(rest) = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last)) else {
        return false;
    };
    let mut rest = rest;
    middle.iter().all(|piece| match rest.find(&**piece) {
        Some(at) => {
            rest = rest.get(at + piece.len()..).unwrap_or_default();
            true
        }
        None => false,
    })
}
