//! A whole file system at one moment, by names.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use super::super::name::STAGING;
use super::journal::Ino;

/// The bytes of a file. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Content(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    hash: OnceLock<u64>,
}

impl Content {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Inner { bytes, hash: OnceLock::new() }))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    fn hashed(&self) -> u64 {
        *self.0.hash.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.0.bytes.hash(&mut hasher);
            hasher.finish()
        })
    }
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub enum Node {
    /// A directory.
    Dir,
    /// A file: which one (it may have several names), its content, and when it was last written, counted in operations.
    File(Ino, Content, u64),
}

/// A whole file system at one moment: every name below the root, with what it stands for. A directory comes before what is in it.
#[derive(Debug, Clone, Default)]
pub struct Tree(pub(super) BTreeMap<String, Node>);

impl Tree {
    /// All names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The content of a file.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        match self.0.get(path)? {
            Node::Dir => None,
            Node::File(_, content, _) => Some(content.bytes()),
        }
    }

    /// A number that tells states apart as the store can: names, and the content of files that are not unfinished.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (path, node) in &self.0 {
            path.hash(&mut hasher);
            match node {
                Node::Dir => 0_u64.hash(&mut hasher),
                Node::File(..) if is_unfinished(path) => 1_u64.hash(&mut hasher),
                Node::File(_, content, _) => (2_u64, content.hashed()).hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}

/// Whether a path is that of a file which the store is still writing.
pub(super) fn is_unfinished(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(STAGING))
}
