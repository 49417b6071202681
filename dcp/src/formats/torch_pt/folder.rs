//! Which files of a folder are one checkpoint of `torch.save`.

use std::{fs, path::Path};

use crate::{Error, ErrorKind, Place, Result};

/// Endings of archives.
const ENDINGS: [&str; 2] = [".pt", ".pth"];

/// The archives in `folder`, in the order of the numbers in their names.
///
/// # Errors
/// `NotFound` where there is none; what the system says.
pub(super) fn archives(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).place(folder.display())? {
        let entry = entry.place(folder.display())?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_file = fs::metadata(entry.path()).is_ok_and(|found| found.is_file());
        if is_file && ENDINGS.iter().any(|end| name.ends_with(end)) {
            names.push(name);
        }
    }
    // By length first, so that rank_10 comes after rank_9.
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    if names.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("{}: no .pt or .pth file", folder.display())));
    }
    Ok(names)
}
