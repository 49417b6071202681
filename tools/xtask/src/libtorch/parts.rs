//! Which files of the wheels make a libtorch, and where they go.
//!
//! Files are hard links where the file system allows it: an environment in the same cache shares its bytes. So nothing
//! here ever writes into a file that it has taken.

use std::fs;
use std::path::Path;

use super::Build;
use crate::error::Error;

/// Paths that begin with `from` in the wheels, and what they begin with in the entry. A `from` that ends in a slash
/// is a folder with all that it holds; any other names files of one folder by how they begin.
struct Part {
    from: &'static str,
    to: &'static str,
}

const fn part(from: &'static str, to: &'static str) -> Part {
    Part { from, to }
}

const CPU: [Part; 8] = [
    part("torch/include/", "include/"),
    part("torch/lib/libtorch_cpu.", "lib/libtorch_cpu."),
    part("torch/lib/libc10.", "lib/libc10."),
    part("torch/lib/libgomp", "lib/libgomp"),
    // macOS: its libtorch names no CUDA, so it is taken as it is, and its OpenMP is LLVM's.
    part("torch/lib/libtorch.dylib", "lib/libtorch.dylib"),
    part("torch/lib/libomp", "lib/libomp"),
    part("nvidia/cu13/lib/libcudart.so.", "lib/libcudart.so."),
    part("nvidia/cu13/lib/libcupti.so.", "lib/libcupti.so."),
];
const CUDA: [Part; 3] =
    [part("torch/include/", "torch/include/"), part("torch/lib/", "torch/lib/"), part("nvidia/", "nvidia/")];

fn of(build: Build) -> &'static [Part] {
    match build {
        Build::Cpu => &CPU,
        Build::Cuda => &CUDA,
    }
}

/// How the paths begin that `build` needs.
pub(super) fn prefixes(build: Build) -> Vec<&'static str> {
    of(build).iter().map(|part| part.from).collect()
}

/// Fills `entry` with what `build` needs of `site`, a folder of packages.
pub(super) fn take(build: Build, site: &Path, entry: &Path) -> Result<(), Error> {
    for Part { from, to } in of(build) {
        if from.ends_with('/') {
            tree(&site.join(from), &entry.join(to))?;
        } else {
            beginning_with(&site.join(from), &entry.join(to))?;
        }
    }
    if build == Build::Cpu && cfg!(target_os = "linux") {
        stand_in(entry)?;
    }
    Ok(())
}

/// The wheel's `libtorch.so` links CUDA and holds nothing; the linker takes this line for the library.
fn stand_in(entry: &Path) -> Result<(), Error> {
    let script = entry.join("lib/libtorch.so");
    fs::write(&script, "INPUT(libtorch_cpu.so libc10.so)\n").map_err(Error::path("write", &script))
}

fn tree(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(Error::path("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::path("list", from))? {
        let entry = entry.map_err(Error::path("list", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            tree(&source, &target)?;
        } else {
            file(&source, &target)?;
        }
    }
    Ok(())
}

fn beginning_with(from: &Path, to: &Path) -> Result<(), Error> {
    let (Some((folder, start)), Some((target, new_start))) = (split(from), split(to)) else { return Ok(()) };
    if !folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(target).map_err(Error::path("create", target))?;
    for entry in fs::read_dir(folder).map_err(Error::path("list", folder))? {
        let entry = entry.map_err(Error::path("list", folder))?;
        if let Some(rest) = entry.file_name().to_str().and_then(|name| name.strip_prefix(start)) {
            file(&entry.path(), &target.join(format!("{new_start}{rest}")))?;
        }
    }
    Ok(())
}

fn split(path: &Path) -> Option<(&Path, &str)> {
    Some((path.parent()?, path.file_name()?.to_str()?))
}

fn file(source: &Path, target: &Path) -> Result<(), Error> {
    if fs::hard_link(source, target).is_ok() {
        return Ok(());
    }
    fs::copy(source, target).map(drop).map_err(Error::path("copy to", target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn site(folder: &Path) -> PathBuf {
        let site = folder.join("site");
        for path in [
            "torch/include/ATen/ATen.h",
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libc10.so",
            "torch/lib/libc10_cuda.so",
            "torch/lib/libtorch.so",
            "torch/lib/libtorch_cuda.so",
            "torch/lib/libgomp.so.1",
            "nvidia/cu13/lib/libcudart.so.13",
            "nvidia/cu13/lib/libcupti.so.13",
            "nvidia/nccl/lib/libnccl.so.2",
        ] {
            let path = site.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "of the wheel").unwrap();
        }
        site
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_cpu_build_has_no_cuda_but_the_two_libraries_that_are_linked() {
        let place = tempfile::tempdir().unwrap();
        let (site, entry) = (site(place.path()), place.path().join("entry"));
        take(Build::Cpu, &site, &entry).unwrap();
        assert_eq!(
            names(&entry.join("lib")),
            [
                "libc10.so",
                "libcudart.so.13",
                "libcupti.so.13",
                "libgomp.so.1",
                "libtorch.so",
                "libtorch_cpu.so"
            ]
        );
        assert!(entry.join("include/ATen/ATen.h").is_file());
        assert_eq!(fs::read_to_string(site.join("torch/lib/libtorch.so")).unwrap(), "of the wheel");
        assert!(fs::read_to_string(entry.join("lib/libtorch.so")).unwrap().starts_with("INPUT("));
    }

    #[test]
    fn the_cuda_build_keeps_where_its_libraries_look_for_each_other() {
        let place = tempfile::tempdir().unwrap();
        let (site, entry) = (site(place.path()), place.path().join("entry"));
        take(Build::Cuda, &site, &entry).unwrap();
        assert!(entry.join("torch/lib/../../nvidia/nccl/lib/libnccl.so.2").is_file());
        assert_eq!(fs::read_to_string(entry.join("torch/lib/libtorch.so")).unwrap(), "of the wheel");
    }
}
