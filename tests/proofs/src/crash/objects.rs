//! What every object of a recording was put as.
//!
//! An object never changes and its name is never used again, so the content that a name got, whenever that was, is the only one that it
//! may ever have.

use std::collections::BTreeMap;

use dcp::store::sim::{Choice, Disk, Op};

/// All objects that ever had a name, by that name: taken from the disk that loses nothing.
pub(super) fn of(journal: &[Op]) -> BTreeMap<String, Vec<u8>> {
    let (mut disk, mut objects) = (Disk::new(), BTreeMap::new());
    for op in journal {
        disk.apply(op);
        if matches!(op, Op::Link { .. }) {
            let tree = disk.state(Choice::Corner(1));
            for (path, _) in tree.iter().filter(|(path, _)| !path.contains(".staging-")) {
                if let Some(bytes) = tree.file(path).filter(|_| !objects.contains_key(path)) {
                    objects.insert(path.to_owned(), bytes.to_vec());
                }
            }
        }
    }
    objects
}
