//! Scenes: what each rank was doing when it gave up, read from the files that transports leave.

use std::{fs, path::Path};

use serde::Serialize;

use crate::{Error, Result};

/// One rank's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scene {
    /// The rank.
    pub rank: usize,
    /// When it failed after its start, in seconds, and why; `None` where it was ended by others.
    pub failed: Option<(f64, String)>,
    /// What it waited for, and since when.
    pub waiting: Option<String>,
    /// Its last action, and when that began.
    pub last: Option<(f64, String)>,
}

/// All scenes of a folder, by rank; none where there is no folder.
///
/// # Errors
/// `Io` for what can't be read.
pub fn read_scenes(folder: &Path) -> Result<Vec<Scene>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::from(error).at(folder.display())),
    };
    let mut scenes = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Error::from(error).at(folder.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rank = name.strip_prefix("rank_").and_then(|rest| rest.strip_suffix(".scene.txt"));
        if let Some(rank) = rank.and_then(|rank| rank.parse().ok()) {
            let text = fs::read_to_string(&path).map_err(|error| Error::from(error).at(path.display()))?;
            scenes.push(read(rank, &text));
        }
    }
    scenes.sort_by_key(|scene| scene.rank);
    Ok(scenes)
}

/// Lines that are not understood are passed over: a scene that tells less is better than none.
fn read(rank: usize, text: &str) -> Scene {
    let failed = text.lines().find_map(|line| {
        let (at, why) = line.strip_prefix("failed at ")?.split_once(" s: ")?;
        Some((at.parse().ok()?, why.to_owned()))
    });
    let waiting = text.lines().find_map(|line| line.strip_prefix("waiting for "));
    let last = text.lines().next_back().and_then(|line| {
        let (at, what) = line.trim_start().split_once(" s  ")?;
        Some((at.parse().ok()?, what.to_owned()))
    });
    Scene { rank, failed, waiting: waiting.filter(|what| *what != "nothing").map(str::to_owned), last }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rank 1 at 12.500 s after its start\nfailed at 12.499 s: rank 0 did not send\nwaiting for activations \
                        from rank 0 since 2.500 s (10.000 s long)\nlast actions, oldest first (3 older ones forgotten):\n    \
                        2.100000 s  1F0\n    2.500000 s  1RECV_F1\n";

    #[test]
    fn a_scene_says_what_the_rank_waited_for_and_did_last() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rank_00001.scene.txt"), TEXT).unwrap();
        fs::write(folder.path().join("other.txt"), "no scene").unwrap();
        let scenes = read_scenes(folder.path()).unwrap();
        assert_eq!(scenes.len(), 1);
        let scene = &scenes[0];
        assert_eq!((scene.rank, scene.failed.as_ref().unwrap().1.as_str()), (1, "rank 0 did not send"));
        assert_eq!(scene.last, Some((2.5, "1RECV_F1".to_owned())));
        assert!(scene.waiting.as_ref().unwrap().starts_with("activations from rank 0"));
        assert!(read_scenes(&folder.path().join("absent")).unwrap().is_empty());
    }
}
