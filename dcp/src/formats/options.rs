//! [`OpenOptions`]: how much of a checkpoint is looked at when it is opened, and what is forgiven.

use crate::commit::Retry;

/// How a checkpoint is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How far to look.
    pub depth: Depth,
    /// What to do about missing pieces.
    pub strictness: Strictness,
    /// How patiently what a store lists and does not give yet is waited for.
    pub retry: Retry,
}

/// How far opening looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// Where every byte is: data can be read.
    #[default]
    Data,
    /// Names, shapes and sizes only, for looking: cheap even for hundreds of thousands of entries on a slow disk.
    /// Offsets of chunks are only near their bytes, and reading data is refused.
    Catalog,
}

/// What opening does about files that are missing or cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Refuses, naming the first: what every command wants that uses the data.
    #[default]
    Strict,
    /// Leaves out the chunks concerned and lets the audit name them all: what a check wants.
    Lenient,
}

impl OpenOptions {
    /// To use the data: everything is resolved, nothing is forgiven.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how far to look.
    #[must_use]
    pub const fn depth(mut self, depth: Depth) -> Self {
        self.depth = depth;
        self
    }

    /// Sets what is forgiven.
    #[must_use]
    pub const fn strictness(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self
    }

    /// Sets how patiently what a store lists and does not give yet is waited for.
    #[must_use]
    pub const fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Whether missing pieces are left to the audit.
    #[must_use]
    pub fn is_lenient(self) -> bool {
        self.strictness == Strictness::Lenient
    }
}
