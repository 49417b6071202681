//! What measurements stand on: folders of their own, and the programs that are measured, built optimised.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{process, repository, test};

/// An empty folder of our own below this one, with a name for each `purpose`: two may have the same folder given.
pub(super) fn scratch(folder: &Path, purpose: &str) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder).map_err(Error::path("create", folder))?;
    let folder = fs::canonicalize(folder).map_err(Error::path("find", folder))?;
    let own = folder.join(format!("ckpt-bench-{purpose}-{}", std::process::id()));
    fresh(&own)?;
    Ok(own)
}

/// Builds our half; where it is.
pub(super) fn program() -> Result<PathBuf, Error> {
    let mut command =
        test::cargo(&["bench", "--package", "dcp", "--features", "testing", "--bench", "store"]);
    command
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit());
    let output = process::output(&mut command)?;
    if !output.status.success() {
        return Err(process::failed(&command, &output.status.to_string(), "the build failed"));
    }
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let mut built = messages.filter(|message| message["target"]["name"] == "store");
    let path = built.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.ok_or_else(|| process::failed(&command, "no program", "cargo did not say where it built it"))
}

pub(super) fn ckpt() -> Result<PathBuf, Error> {
    process::run(
        &mut test::cargo(&["build", "--release", "--quiet", "--package", "ckpt"]),
        "the build failed",
    )?;
    Ok(super::target_folder().join("release").join(format!("ckpt{}", std::env::consts::EXE_SUFFIX)))
}

/// Mean number of runnable threads in the last minute.
pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Uses so much memory once, and frees it: what is measured next gets it again, with pages behind it. On a virtual machine whose host takes
/// back what is free, the first touch of a page may cost several times as much as any later one (8 times, where this was written), and what
/// is measured would be how long ago somebody else ran. One more than the gigabytes that a turn writes, as it has buffers too.
pub(super) fn warm(gigabytes: &str) -> Result<(), Error> {
    const PAGE: usize = 4096;
    let whole =
        gigabytes.parse::<f64>().ok().filter(|it| (0.0..1e6).contains(it)).ok_or_else(|| Error::Missing {
            what: format!("a number of gigabytes in {gigabytes:?}"),
            remedy: "give one, such as --gigabytes 3".to_owned(),
        })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let mut memory = vec![0_u8; ((whole + 1.0) * 1e9) as usize];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// An empty folder.
pub(super) fn fresh(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(Error::path("create", folder))
}

/// A path as text.
pub(super) fn text(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::Missing {
        what: "a folder whose name is text".to_owned(),
        remedy: format!("choose another than {}", path.display()),
    })
}

/// A number of such an answer, or of any other.
pub(super) fn number(answer: &serde_json::Value, key: &str) -> Result<f64, Error> {
    answer[key].as_f64().ok_or_else(|| Error::Missing {
        what: format!("{key} in {answer}"),
        remedy: "the program and this one are of different versions; build both anew".to_owned(),
    })
}

/// What a program of ours answers on its last line.
pub(super) fn answer(program: &Path, words: &[&str]) -> Result<serde_json::Value, Error> {
    let mut command = std::process::Command::new(program);
    command.args(words).current_dir(repository::root());
    let output = process::output(&mut command)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(process::failed(&command, &output.status.to_string(), &said));
    }
    let line = output.stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    serde_json::from_slice(line).map_err(|source| Error::Answer { command: process::shown(&command), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_has_an_empty_folder_of_its_own_below_the_same_one() {
        let given = std::env::temp_dir().join(format!("ckpt-ground-{}", std::process::id()));
        let [memory, disk] =
            ["reshard-memory", "reshard-disk"].map(|purpose| scratch(&given, purpose).unwrap());
        assert_ne!(memory, disk);
        fs::write(memory.join("left"), "behind").unwrap();
        assert_eq!(scratch(&given, "reshard-memory").unwrap(), memory);
        assert_eq!(fs::read_dir(&memory).unwrap().count(), 0);
        fs::remove_dir_all(&given).unwrap();
    }
}
