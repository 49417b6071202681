//! Bounds on what one pickle may cost, whoever wrote it.
//!
//! The bound on memory is counted, not estimated: each pool of the arena charges the [`Budget`] for the bytes
//! it is about to reserve, before it reserves them.

use super::error::PickleErrorKind;

/// Bounds on the size, depth and cost of one pickle.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of input.
    pub input: u64,
    /// Levels of nesting of the finished value; 254 at most.
    pub depth: u8,
    /// Distinct values.
    pub nodes: u32,
    /// Memo entries.
    pub memo: u32,
    /// Memory that the inert tree may take beyond four times the input, in bytes.
    pub memory_floor: u64,
    /// Values met by a walk that follows every reference, beyond 256 for each byte of input.
    pub walk_floor: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            input: 2 << 30,
            depth: 250,
            nodes: 1 << 30,
            memo: 1 << 30,
            memory_floor: 64 << 20,
            walk_floor: 1 << 20,
        }
    }
}

impl Limits {
    pub(super) fn memory(&self, input: u64) -> u64 {
        self.memory_floor.saturating_add(input.saturating_mul(4))
    }

    pub(super) fn walk(&self, input: u64) -> u64 {
        self.walk_floor.saturating_add(input.saturating_mul(256))
    }
}

/// Bytes reserved so far, against the most that may be.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    used: u64,
    peak: u64,
    limit: u64,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self { used: 0, peak: 0, limit }
    }

    /// The most that was reserved at once.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Counts bytes that are given back, such as the stack's when a pickle has been read.
    pub(super) fn release<T>(&mut self, pool: Vec<T>) {
        let bytes = pool.capacity().saturating_mul(size_of::<T>());
        drop(pool);
        self.used = self.used.saturating_sub(bytes as u64);
    }

    /// Makes room for `extra` more elements, growing by an eighth so that little is reserved in vain.
    pub(super) fn room<T>(&mut self, pool: &mut Vec<T>, extra: usize) -> Result<(), PickleErrorKind> {
        if pool.capacity().saturating_sub(pool.len()) >= extra {
            return Ok(());
        }
        let more = extra.max(pool.capacity() / 8).max(16);
        self.charge(more.saturating_mul(size_of::<T>().max(1)))?;
        pool.reserve_exact(more);
        Ok(())
    }

    /// The same for text.
    pub(super) fn room_text(&mut self, pool: &mut String, extra: usize) -> Result<(), PickleErrorKind> {
        if pool.capacity().saturating_sub(pool.len()) >= extra {
            return Ok(());
        }
        let more = extra.max(pool.capacity() / 8).max(64);
        self.charge(more)?;
        pool.reserve_exact(more);
        Ok(())
    }

    /// Counts `bytes` that are about to be reserved.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), PickleErrorKind> {
        let used = self.used.saturating_add(bytes as u64);
        if used > self.limit {
            return Err(PickleErrorKind::Limit { what: "memory for its values (bytes)", limit: self.limit });
        }
        self.used = used;
        self.peak = self.peak.max(used);
        Ok(())
    }
}
