//! The link by which cargo finds libtorch from this checkout, and a `LIBTORCH` of the user's own, which goes before it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{process, test};

const NAME: &str = ".libtorch";

/// What the user's `LIBTORCH` names. Cargo sets the variable for us too, to the link; that isn't the user's.
pub(super) fn chosen_by_user(root: &Path) -> Option<PathBuf> {
    let value = PathBuf::from(std::env::var_os("LIBTORCH").filter(|value| !value.is_empty())?);
    (!is_ours(root, &value)).then_some(value)
}

fn is_ours(root: &Path, value: &Path) -> bool {
    let same_folder = || Some(value.parent()?.canonicalize().ok()? == root.canonicalize().ok()?);
    value.file_name().is_some_and(|name| name == NAME) && same_folder().unwrap_or(false)
}

/// A libtorch that isn't of our making, if it looks like one.
pub(super) fn checked(folder: PathBuf) -> Result<PathBuf, Error> {
    if folder.join("lib").is_dir() && folder.join("include/torch").is_dir() {
        eprintln!("LIBTORCH is set, so {} is used and nothing is set up", folder.display());
        return Ok(folder);
    }
    Err(Error::Missing {
        what: format!("a libtorch in {}, which LIBTORCH names,", folder.display()),
        remedy: "unset LIBTORCH and run `cargo xtask setup --libtorch`, or let it name a folder with `lib` and `include`"
            .to_owned(),
    })
}

/// Where the link of this checkout points.
pub(super) fn target(root: &Path) -> Option<PathBuf> {
    fs::read_link(root.join(NAME)).ok()
}

/// Points the link to `home`. Whether it pointed elsewhere before.
pub(super) fn point(root: &Path, home: &Path) -> Result<bool, Error> {
    let before = target(root);
    if before.as_deref() == Some(home) {
        return Ok(false);
    }
    let (link, fresh) = (root.join(NAME), root.join(format!("{NAME}.{}.partial", std::process::id())));
    symlink(home, &fresh).map_err(Error::path("create", &fresh))?;
    fs::rename(&fresh, &link).map_err(|source| {
        drop(fs::remove_file(&fresh));
        Error::path("point to libtorch by", &link)(source)
    })?;
    Ok(before.is_some())
}

/// Cargo can't see that the same path now leads to another libtorch.
pub(super) fn forget_the_other_build() -> Result<(), Error> {
    for profile in ["dev", "release"] {
        let mut clean = test::cargo(&["clean", "--quiet", "--package", "torch-sys", "--profile", profile]);
        process::run(&mut clean, "run it by hand: what was built against another libtorch must go")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_replaced_and_says_so() {
        let place = tempfile::tempdir().unwrap();
        let (root, a, b) = (place.path(), place.path().join("a"), place.path().join("b"));
        assert!(!point(root, &a).unwrap());
        assert!(!point(root, &a).unwrap());
        assert!(point(root, &b).unwrap());
        assert_eq!(target(root), Some(b));
        assert_eq!(fs::read_dir(root).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_of_that_name_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join(NAME)).unwrap();
        fs::write(place.path().join(NAME).join("kept"), "").unwrap();
        let error = point(place.path(), Path::new("/elsewhere")).unwrap_err().to_string();
        assert!(error.contains(NAME), "{error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        assert!(place.path().join(NAME).join("kept").is_file());
    }

    #[test]
    fn what_cargo_sets_is_told_from_what_the_user_sets() {
        let place = tempfile::tempdir().unwrap();
        assert!(is_ours(place.path(), &place.path().join(NAME)));
        assert!(!is_ours(place.path(), &place.path().join("other/.libtorch")));
        assert!(!is_ours(place.path(), Path::new("/opt/libtorch")));
    }

    #[test]
    fn a_libtorch_variable_that_names_none_is_refused_with_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let error = checked(place.path().to_owned()).unwrap_err().to_string();
        assert!(error.contains("LIBTORCH") && error.contains("unset"), "{error}");
        fs::create_dir_all(place.path().join("include/torch")).unwrap();
        fs::create_dir(place.path().join("lib")).unwrap();
        assert_eq!(checked(place.path().to_owned()).unwrap(), place.path());
    }
}
