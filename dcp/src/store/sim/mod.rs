//! A file system in memory that writes down what is done to it, and says what a crash of the machine could leave of that.
//!
//! ```text
//!  LocalStore ─► SimFs (one handle for each process; whose turn it is follows from a seed) ─► Journal of operations
//!                                                                                             │ every prefix
//!  LocalStore ◄─ SimFs::mount ◄─ Tree ◄── Disk::state(Choice) ◄── Disk: what is durable, what is pending
//! ```
//!
//! # What a crash may leave
//!
//! The model is what POSIX promises and nothing more; it is weaker than any journalling file system, so what holds here holds on ext4, XFS,
//! btrfs and the like. It follows the *abstract persistence model* of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI
//! 2014), which finds that applications break where they take more for granted than this; the bound of the search, and crashing at
//! the points where something becomes durable, follow B3, CrashMonkey and ACE (Mohan et al., "Finding Crash-Consistency Bugs with
//! Bounded Black-Box Crash Testing", OSDI 2018). A crash comes between two operations. Then:
//!
//! 1. **Names.** A name in a directory is durable as it was at the last fsync of *that directory*. If it was changed since (create, link,
//!    unlink, rename, mkdir, rmdir), each later value is as possible as the durable one, for each name by itself: any subset of the
//!    pending changes of different names, in whatever order. So an unlink may be there without a link that came before it, in the same
//!    directory or in another one, and a later name without an earlier one. (ALICE: "directory operations can be re-ordered".)
//! 2. **A rename** is two such changes, of the old name and of the new one: a crash may leave both or none of them, and the new name may be there
//!    without the data. No file system of today does the worst of this; nothing here rests on better.
//! 3. **Directories above.** A directory can be reached only if its own name is there: a new directory that was synced itself, but whose parent
//!    was not, is lost with all it holds.
//! 4. **Data.** The content of a file is durable as it was at the last fsync of *the file*; that fsync says nothing of its names, and a sync of
//!    its directory nothing of its data. Of what was written since, each page of 4 KiB is as it was after any of these writes, or torn
//!    between two of them at a sector of 512 bytes.
//! 5. **Length.** It is any of the lengths since the last fsync, whatever became of the data (ALICE: "appends are not atomic"). Bytes
//!    within the length that were never written back are zeros, or what lay in those blocks before.
//! 6. **Atomic** are a sector and one name's entry. What was synced never changes again (disks that lie about that, and bits that rot, are
//!    the matter of digests, not of this).
//!
//! Content of files that have no other names than those of unfinished files (`.staging-…`) is not varied: the store never opens them.
//!
//! # Invariants
//!
//! Everything follows from the calls and the seed: the same calls give the same journal, a [`Choice`] of a [`Disk`] the same [`Tree`]. Time
//! is counted in operations.

mod choice;
mod content;
mod disk;
mod journal;
mod live;
mod tree;
mod turns;

pub use choice::{Choice, NotAChoice};
pub use disk::Disk;
pub use journal::{Ino, Op};
pub use live::SimFs;
pub use tree::{Content, Node, Tree};
pub use turns::{Turn, Turns};

#[cfg(test)]
mod tests;
