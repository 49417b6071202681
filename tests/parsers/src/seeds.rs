//! Inputs to begin from: what the fixtures hold.

use std::path::{Path, PathBuf};

/// Largest seed: mutations of large files take long and find little.
const LARGEST: u64 = 192 << 10;

/// All files below a folder of the fixtures whose path fits, in order of their names.
pub(crate) fn files(folder: &str, fits: fn(&str) -> bool) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    walk(&fixtures::path(folder), &mut found);
    found.sort();
    let small = |path: &PathBuf| path.metadata().is_ok_and(|it| it.len() <= LARGEST);
    let wanted = found.iter().filter(|path| path.to_str().is_some_and(fits) && small(path));
    wanted.filter_map(|path| std::fs::read(path).ok()).collect()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}

/// Texts as bytes.
pub(crate) fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
