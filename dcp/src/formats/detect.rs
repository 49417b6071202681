//! Which format a path holds, decided by content: names of files only say where to look.
//!
//! ```text
//!  folder: commits/…                      native store (root)      manifest-<sha256>.sqlite   native store (step)
//!          .metadata | __R.metadata       torch DCP                *.safetensors, index       Hugging Face
//!          pytorch_model.bin | *.pt       torch.save archives
//!  file:   PK\3\4 + data.pkl  .pt         u64 + `{`  safetensors   pickle  .metadata
//! ```
//!
//! A folder that looks like two formats is refused, not guessed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{blobs::open_regular, hf, native::is_piece, torch_dcp};
use crate::{Error, ErrorKind, Format, Place, Result, read_at::ReadAt};

/// What was found at a path, and why it is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detected {
    /// The format.
    pub format: Format,
    /// What to open: the path asked for, or the folder of the file asked for.
    pub path: PathBuf,
    /// What was seen: `.metadata and 4 .distcp files`.
    pub why: String,
}

/// Detects the format of what is at `path`.
///
/// # Errors
/// `NotFound`: nothing there, or nothing known; the message lists what was looked for. `Incompatible`: two formats
/// in one folder. What the system says.
pub fn detect(path: &Path) -> Result<Detected> {
    let found = fs::metadata(path).place(path.display())?;
    if found.is_dir() { folder(path) } else { file(path) }
}

fn folder(path: &Path) -> Result<Detected> {
    let mut found = Vec::new();
    found.extend(native(path).map(|why| (Format::Native, why)));
    let dcp = torch_dcp::Listing::read(path)?;
    if dcp.is_checkpoint() {
        let blobs = dcp.sizes.keys().filter(|name| name.ends_with(".distcp")).count();
        let metadata = if dcp.is_per_rank() {
            format!("metadata of {} ranks", dcp.rank_metadata.len())
        } else {
            ".metadata".to_owned()
        };
        found.push((Format::TorchDcp, format!("{metadata} and {blobs} .distcp files")));
    }
    let listed = hf::Folder::list(path)?;
    found.extend(listed.weights.as_ref().map(|weights| (Format::Hf, weights_text(weights, &listed))));
    let archives =
        dcp.sizes.keys().filter(|name| [".pt", ".pth"].iter().any(|end| name.ends_with(end))).count();
    if archives > 0 && found.is_empty() {
        found.push((Format::Pt, format!("{archives} torch.save archives")));
    }
    if found.is_empty() {
        found.extend(attempts(path).map(|why| (Format::Native, why)));
    }
    match found.as_slice() {
        [(format, why)] => Ok(Detected { format: *format, path: path.to_path_buf(), why: why.clone() }),
        [] => Err(nothing(path, &dcp)),
        several => {
            let names: Vec<String> =
                several.iter().map(|(format, why)| format!("{} ({why})", format.name())).collect();
            Err(Error::incompatible(format!(
                "{}: holds several formats: {}",
                path.display(),
                names.join("; ")
            ))
            .hint("give the path of one: a file of it, or a folder that holds only it"))
        }
    }
}

fn weights_text(weights: &hf::Weights, folder: &hf::Folder) -> String {
    match weights {
        hf::Weights::Indexed(index) => format!("{index} and {} safetensors files", folder.safetensors.len()),
        hf::Weights::Single => "model.safetensors".to_owned(),
        hf::Weights::Loose => format!("{} safetensors files without an index", folder.safetensors.len()),
        hf::Weights::TorchBin(name) => name.clone(),
    }
}

/// A root has a commit log; a step has a manifest named by its digest. One record will do: a log may have many.
fn native(path: &Path) -> Option<String> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let is_record = |name: String| {
        name.strip_suffix(".json")
            .is_some_and(|digits| digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    if names(&path.join("commits")).any(is_record) {
        return Some("a commit log".to_owned());
    }
    let manifest = names(path).find(|name| {
        let digest = name.strip_prefix("manifest-").and_then(|rest| rest.strip_suffix(".sqlite"));
        digest.is_some_and(|digest| digest.len() == 64)
    });
    manifest.map(|name| format!("a step's {name}"))
}

/// What a save or a copy that was stopped leaves of a native store: steps without a log, or a step without its manifest.
fn attempts(path: &Path) -> Option<String> {
    let names = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let is_attempt = |folder: &Path| {
        let pieces = |dir: &'static str| names(folder.join(dir)).map(move |name| format!("{dir}/{name}"));
        ["data", "blocks", "parts"].into_iter().flat_map(pieces).any(|name| is_piece(&name))
    };
    if is_attempt(path) {
        return Some("a step without its manifest".to_owned());
    }
    let steps = names(path.to_path_buf())
        .filter(|name| name.starts_with("step-"))
        .map(|name| path.join(name))
        .filter(|step| native(step).is_some() || is_attempt(step))
        .count();
    (steps > 0).then(|| format!("{steps} steps without a commit log"))
}

fn nothing(path: &Path, listing: &torch_dcp::Listing) -> Error {
    let text = format!(
        "{}: not a checkpoint: no commits/ or manifest (native store), no .metadata (torch DCP), no *.safetensors or \
         pytorch_model.bin (Hugging Face), no *.pt (torch.save)",
        path.display()
    );
    let error = Error::new(ErrorKind::NotFound, text);
    if listing.sizes.keys().any(|name| name.ends_with(".distcp")) {
        return error
            .hint("there are .distcp files without .metadata: the save that wrote them never finished");
    }
    let inner = inner_checkpoints(path);
    match inner.as_slice() {
        [] => error,
        [one] => error.hint(format!("{} inside it is one", one.display())),
        [first, .., last] => error.hint(format!(
            "{} folders inside it are: {} … {}",
            inner.len(),
            first.display(),
            last.display()
        )),
    }
}

/// Folders one level down that are checkpoints: `step-100`, `step-200`, …
fn inner_checkpoints(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        path.is_dir()
            && (native(path).is_some()
                || torch_dcp::Listing::read(path).is_ok_and(|listing| listing.is_checkpoint())
                || hf::Folder::list(path).is_ok_and(|folder| folder.weights.is_some()))
    };
    let mut found: Vec<PathBuf> = entries.filter(is_one).collect();
    found.sort();
    found
}

/// Bytes that tell what a file is.
const MAGIC_LEN: usize = 16;

fn file(path: &Path) -> Result<Detected> {
    let opened = open_regular(path).place(path.display())?;
    let mut magic = [0; MAGIC_LEN];
    let len = usize::try_from(opened.len()).unwrap_or(MAGIC_LEN).min(MAGIC_LEN);
    opened.read_exact_at(0, magic.get_mut(..len).unwrap_or_default())?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is = |format, why: &str| Ok(Detected { format, path: path.to_path_buf(), why: why.to_owned() });
    // A part of a checkpoint stands for the whole: its folder.
    let is_index = [".safetensors.index.json", ".bin.index.json"].iter().any(|end| name.ends_with(end));
    if name == torch_dcp::METADATA || name.ends_with(".distcp") || is_index {
        let parent =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        return folder(parent);
    }
    if magic.starts_with(b"PK\x03\x04") {
        return is(Format::Pt, "a zip archive");
    }
    if is_safetensors(magic, opened.len()) {
        return is(Format::Safetensors, "a safetensors header");
    }
    if name.ends_with(".safetensors") && opened.len() > 0 {
        // Content that says nothing: the name decides, and the adapter says what is wrong with the header.
        return is(Format::Safetensors, "its name");
    }
    let text = format!("{}: not a checkpoint", path.display());
    if magic.starts_with(&[0x80]) {
        return Err(Error::unsupported(format!(
            "{text} that is read: a bare pickle, as torch before 1.6 saved"
        ))
        .hint("load and save it once with a current torch"));
    }
    let looked = "neither a torch.save archive (PK…) nor a safetensors file (length, then a JSON header)";
    let error = Error::new(ErrorKind::NotFound, format!("{text}: {looked}"));
    Err(if magic.starts_with(b"SQLite format 3\0") {
        error.hint("a manifest: give the path of its folder")
    } else {
        error
    })
}

fn is_safetensors(magic: [u8; MAGIC_LEN], len: u64) -> bool {
    let [a, b, c, d, e, f, g, h, open, ..] = magic;
    let header = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    open == b'{' && header <= super::safetensors::MAX_HEADER_BYTES && len > 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        dir
    }

    #[test]
    fn every_fixture_is_detected_as_what_it_is() {
        for name in fixtures::all() {
            let wanted = match fixtures::expected(&name).format.as_str() {
                "torch_dcp" | "torch_dcp_safetensors" => Format::TorchDcp,
                "hf" | "hf_sharded" | "hf_bin" => Format::Hf,
                "safetensors" => Format::Safetensors,
                "pt" | "pt_ranks" => Format::Pt,
                other => panic!("{name} is of the unknown format {other}"),
            };
            let found = detect(&fixtures::path(&name)).unwrap();
            assert_eq!(found.format, wanted, "{name}: {}", found.why);
            assert!(!found.why.is_empty());
        }
    }

    #[test]
    fn a_part_of_a_checkpoint_stands_for_the_whole() {
        let folder = fixtures::path("torch_dcp/uneven");
        for part in [".metadata", "__0_0.distcp"] {
            let found = detect(&folder.join(part)).unwrap();
            assert_eq!((found.format, &found.path), (Format::TorchDcp, &folder));
        }
    }

    #[test]
    fn a_native_root_and_step_are_told_apart_from_other_folders() {
        let root = made(&[("commits/00000000000000000042.json", b"{}")]);
        assert_eq!(detect(root.path()).unwrap().format, Format::Native);
        let step = made(&[(&format!("manifest-{}.sqlite", "a".repeat(64)), b"")]);
        assert_eq!(detect(step.path()).unwrap().format, Format::Native);
        let other = made(&[("commits/today.json", b"{}")]);
        assert_eq!(detect(other.path()).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn nothing_known_lists_what_was_looked_for_and_what_lies_inside() {
        let empty = made(&[("readme.txt", b"hello")]);
        let text = detect(empty.path()).unwrap_err().to_string();
        assert!(
            [".metadata", "safetensors", "commits/", "*.pt"].iter().all(|part| text.contains(part)),
            "{text}"
        );
        let steps = made(&[("step-1/.metadata", b""), ("step-2/.metadata", b"")]);
        let error = detect(steps.path()).unwrap_err();
        assert!(error.hint_text().unwrap().contains("2 folders inside"), "{error:?}");
        let torn = made(&[("__0_0.distcp", b"x")]);
        assert!(detect(torn.path()).unwrap_err().hint_text().unwrap().contains("never finished"));
        assert_eq!(detect(&empty.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn two_formats_in_one_folder_are_refused_by_name() {
        let both = made(&[(".metadata", b""), ("model.safetensors", b"")]);
        let error = detect(both.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("torch-dcp") && error.to_string().contains("hf"), "{error}");
    }

    #[test]
    fn a_file_is_judged_by_its_first_bytes_and_not_by_its_name() {
        let dir = made(&[
            ("a.safetensors", b"PK\x03\x04 and more"),
            ("b.pt", b"\x02\0\0\0\0\0\0\0{}"),
            ("c", b"hello"),
        ]);
        assert_eq!(detect(&dir.path().join("a.safetensors")).unwrap().format, Format::Pt);
        assert_eq!(detect(&dir.path().join("b.pt")).unwrap().format, Format::Safetensors);
        assert_eq!(detect(&dir.path().join("c")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
