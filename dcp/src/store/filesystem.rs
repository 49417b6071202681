//! What file system a folder is on, and what that means for a store in it.
//!
//! Everything here rests on three things that a file system must do: confirm that a file and a name are durable (`fsync` of the file and of its
//! directory), refuse a second hard link of one name, and show to all machines what one of them has written. Local ones do; network ones differ.

use std::io;
use std::path::Path;

use serde::Serialize;

/// How far a file system can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// What was confirmed survives a crash of the machine.
    Durable,
    /// It does if it is set up so, which cannot be seen from here.
    Depends,
    /// Nothing survives a restart.
    Volatile,
}

/// What is known about the file system of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileSystem {
    /// What it is called.
    pub name: &'static str,
    /// How far it can be relied on.
    pub trust: Trust,
    /// What that means, in a sentence or two.
    pub meaning: &'static str,
    /// Bytes that this user can still write.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Files that can still be made; none where there is no such limit.
    pub free_files: Option<u64>,
    /// Whether it is mounted for reading only.
    pub read_only: bool,
}

type Kind = (u64, &'static str, Trust, &'static str);

const LOCAL: &str = "A commit is on the disk when it is reported: files and directories are confirmed by fsync. It belongs to this machine alone.";
const NFS: &str = "The server confirms what is durable, if it exports with `sync` (an `async` export loses confirmed commits when the server crashes). \
    Clients see new names after their attribute cache expires; creation is still decided by the server.";

/// By the magic numbers of Linux (`statfs(2)`, and those of file systems outside of the kernel).
const KINDS: &[Kind] = &[
    (0xef53, "ext4", Trust::Durable, LOCAL),
    (0x5846_5342, "xfs", Trust::Durable, LOCAL),
    (0x9123_683e, "btrfs", Trust::Durable, LOCAL),
    (0xf2f5_2010, "f2fs", Trust::Durable, LOCAL),
    (
        0x2fc1_2fc1,
        "zfs",
        Trust::Durable,
        "A commit is durable when it is reported, unless the dataset has `sync=disabled`.",
    ),
    (
        0x0102_1994,
        "tmpfs",
        Trust::Volatile,
        "It lies in memory: everything is gone after a restart, whatever was confirmed. Copy what you want to keep.",
    ),
    (
        0x8584_58f6,
        "ramfs",
        Trust::Volatile,
        "It lies in memory: everything is gone after a restart, whatever was confirmed. Copy what you want to keep.",
    ),
    (
        0x794c_7630,
        "overlay",
        Trust::Depends,
        "The writable layer of a container: commits are as durable as the disk below, and usually gone with the container. Mount a volume for checkpoints.",
    ),
    (0x6969, "nfs", Trust::Depends, NFS),
    (
        0xff53_4d42,
        "cifs",
        Trust::Depends,
        "Over SMB, hard links and confirmation depend on the server; a probe that passes shows the links only.",
    ),
    (
        0xfe53_4d42,
        "smb2",
        Trust::Depends,
        "Over SMB, hard links and confirmation depend on the server; a probe that passes shows the links only.",
    ),
    (
        0x0bd0_0bd0,
        "lustre",
        Trust::Durable,
        "Confirmed commits survive crashes of clients and servers, and all clients see them at once. Clients set the times of files: keep their clocks together, ages are counted from them.",
    ),
    (
        0x4750_4653,
        "gpfs",
        Trust::Durable,
        "Confirmed commits survive crashes of nodes, and all nodes see them at once. Nodes set the times of files: keep their clocks together, ages are counted from them.",
    ),
    (
        0x00c3_6400,
        "ceph",
        Trust::Durable,
        "Confirmed commits are on several disks, and all clients see them at once.",
    ),
    (
        0x1983_0326,
        "beegfs",
        Trust::Depends,
        "Commits are durable where the servers sync on close or fsync (`tuneRemoteFSync`, on by default).",
    ),
    (
        0x6573_5546,
        "fuse",
        Trust::Depends,
        "A program in user space decides what fsync and a hard link mean. A mounted bucket often has no hard links and confirms nothing: use its URL instead.",
    ),
    (
        0x0102_1997,
        "9p",
        Trust::Depends,
        "A share of the host of a virtual machine: durable if the host is told to sync, which its cache mode decides.",
    ),
];

const UNKNOWN: &str = "This kind is not known here. If the probe passes, creation is decided by it; whether fsync reaches a disk is for its documentation to say.";

impl FileSystem {
    /// That of a folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let told = rustix::fs::statvfs(folder)?;
        let (_, name, trust, meaning) = kind(folder)?;
        Ok(Self {
            name,
            trust,
            meaning,
            free_bytes: told.f_bavail.saturating_mul(told.f_frsize),
            total_bytes: told.f_blocks.saturating_mul(told.f_frsize),
            free_files: (told.f_files > 0).then_some(told.f_favail),
            read_only: told.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }
}

#[cfg(target_os = "linux")]
fn kind(folder: &Path) -> io::Result<Kind> {
    // The width and the sign of this number differ from machine to machine; the magic numbers have 32 bits.
    let magic = i128::from(rustix::fs::statfs(folder)?.f_type) & 0xffff_ffff;
    Ok(kind_of(u64::try_from(magic).unwrap_or(0)))
}

#[cfg(not(target_os = "linux"))]
fn kind(_: &Path) -> io::Result<Kind> {
    Ok(kind_of(0))
}

fn kind_of(magic: u64) -> Kind {
    let known = KINDS.iter().find(|(known, ..)| *known == magic).copied();
    known.unwrap_or((magic, "unknown", Trust::Depends, UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_its_kind_and_its_space() {
        let folder = tempfile::tempdir().unwrap();
        let found = FileSystem::of(folder.path()).unwrap();
        assert!(found.total_bytes >= found.free_bytes && found.total_bytes > 0, "{found:?}");
        assert!(!found.read_only);
        assert_eq!(FileSystem::of(Path::new("/no/such/folder")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn kinds_are_told_apart_and_an_unknown_one_is_not_trusted() {
        assert_eq!((kind_of(0x6969).1, kind_of(0x6969).2), ("nfs", Trust::Depends));
        assert_eq!((kind_of(1).1, kind_of(1).2), ("unknown", Trust::Depends));
        let mut magics: Vec<u64> = KINDS.iter().map(|kind| kind.0).collect();
        magics.sort_unstable();
        magics.dedup();
        assert_eq!(magics.len(), KINDS.len());
        #[cfg(target_os = "linux")]
        assert_eq!(kind(Path::new("/dev/shm")).map(|it| it.2).ok(), Some(Trust::Volatile));
    }
}
