//! [`Cursor`]: which rule decides where, for whoever walks down a value: each key is matched once, however many leaves lie below it.

use super::RankScheme;
use crate::pattern::Progress;

/// A place in a tree of leaves, and what a scheme says of it.
#[derive(Debug, Clone)]
pub struct Cursor<'s> {
    scheme: &'s RankScheme,
    /// Of the place and all above it, the outermost first.
    levels: Vec<Level>,
}

/// What a scheme says of all leaves at a place and below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// No rule can cover any of them.
    Nothing,
    /// One rule, by its position, decides on all of them.
    Rule(usize),
    /// It depends on the leaf.
    Mixed,
}

#[derive(Debug, Clone, Default)]
struct Level {
    /// The first rule that covers it.
    decided: Option<usize>,
    /// Rules before that one which may cover leaves below, ascending.
    live: Vec<(usize, Progress)>,
}

impl RankScheme {
    /// At the root.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        let start = |(at, rule): (usize, &super::RankRule)| (at, rule.pattern.start());
        let live = self.rules().iter().enumerate().map(start).collect();
        Cursor { scheme: self, levels: vec![Level { decided: None, live }] }
    }

    /// At the place that `path` leads to.
    #[must_use]
    pub fn at<S: AsRef<str>>(&self, path: &[S]) -> Cursor<'_> {
        let mut cursor = self.cursor();
        path.iter().for_each(|key| cursor.push(key.as_ref()));
        cursor
    }
}

impl Cursor<'_> {
    /// Goes down to a key. One with dots is as good as several.
    pub fn push(&mut self, key: &str) {
        let mut segments = key.split('.');
        let first = segments.next().unwrap_or_default();
        let empty = Level::default();
        let level = self.levels.last().unwrap_or(&empty);
        let level = segments.fold(self.below_one(level, first), |level, next| self.below_one(&level, next));
        self.levels.push(level);
    }

    /// Goes back up, never above where it began.
    pub fn pop(&mut self) {
        if self.levels.len() > 1 {
            self.levels.pop();
        }
    }

    /// The position of the rule that decides on a leaf here; `None` where none covers it.
    #[must_use]
    pub fn rule(&self) -> Option<usize> {
        self.levels.last()?.decided
    }

    /// What is said of all leaves from here on.
    #[must_use]
    pub fn below(&self) -> Below {
        match self.levels.last().map(|level| (level.decided, level.live.is_empty())) {
            Some((_, false)) => Below::Mixed,
            Some((Some(rule), true)) => Below::Rule(rule),
            _ => Below::Nothing,
        }
    }

    /// Positions of all rules that may decide on a leaf from here on.
    pub fn rules(&self) -> impl Iterator<Item = usize> {
        let level = self.levels.last().into_iter();
        level.flat_map(|level| level.live.iter().map(|(at, _)| *at).chain(level.decided))
    }

    fn below_one(&self, level: &Level, text: &str) -> Level {
        let mut made = Level { decided: level.decided, live: Vec::new() };
        for (at, progress) in &level.live {
            let Some(rule) = self.scheme.rules().get(*at) else { continue };
            let next = rule.pattern.step(progress, text);
            if rule.pattern.is_match(&next) {
                // It covers all below too, so later ones have no say.
                made.decided = Some(*at);
                break;
            }
            if rule.pattern.goes_on(&next) {
                made.live.push((*at, next));
            }
        }
        made
    }
}
