//! A folder with a small run in it, and the real binary.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_ckpt-train");

const RUN: &str = "\
data.folder = \"text\"

[model]
kind = \"llama\"
dim = 32
layers = 4
heads = 8
kv_heads = 4
head_dim = 8
ffn = 64

[training]
steps = 4
global_batch = 8
seq_len = 16

[exact]
virtual_tp = 2

[checkpoint]
interval = 2

[comm]
start_timeout = \"30s\"
";

/// A folder with text, a configuration and whatever a run leaves there.
pub(crate) struct Place(tempfile::TempDir);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The code, and words on stderr.
    #[track_caller]
    pub(crate) fn is(&self, code: i32, words: &[&str]) {
        let Self { code: found, out, err } = self;
        assert_eq!(*found, Some(code), "{err}\n{out}");
        for word in words {
            assert!(err.contains(word), "{word:?} is not in\n{err}");
        }
    }

    #[track_caller]
    pub(crate) fn leaves_out(&self, words: &[&str]) {
        for word in words {
            assert!(!self.err.contains(word), "{word:?} is in\n{}", self.err);
        }
    }
}

/// In memory where that can be had: a disk that other tests write to keeps saves waiting for longer than ranks that are told
/// to hang may be waited for.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(folder());
        fs::create_dir(place.path().join("text")).unwrap();
        place.text(20_000);
        fs::write(place.path().join("run.toml"), RUN).unwrap();
        place
    }

    /// Writes a text of so many bytes.
    pub(crate) fn text(&self, bytes: u32) {
        let byte = |at: u32| b"etaoin shrdlu\n"[(at.wrapping_mul(2_654_435_761) >> 13) as usize % 14];
        fs::write(self.path().join("text/a.txt"), (0..bytes).map(byte).collect::<Vec<_>>()).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A command in this folder, outside of any launcher.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).stdin(Stdio::null());
        for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "LOG_RANK"] {
            command.env_remove(name);
        }
        command
    }

    /// `ckpt-train train` in one process.
    pub(crate) fn train(&self, settings: &[&str]) -> Answer {
        let mut command = self.command(EXE);
        Answer::of(command.args(["train", "-c", "run.toml"]).args(settings).output().unwrap())
    }

    /// `ckpt-train launch`.
    pub(crate) fn launch(&self, options: &[&str], settings: &[&str]) -> Answer {
        let mut command = self.command(EXE);
        command.arg("launch").args(options).args(["--", "-c", "run.toml"]).args(settings);
        Answer::of(command.output().unwrap())
    }

    /// One rank that is started by hand.
    pub(crate) fn rank(&self, rank: usize, world: usize, port: u16, settings: &[&str]) -> Child {
        let mut command = self.command(EXE);
        command.args(["train", "-c", "run.toml"]).args(settings);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Bits of the losses by step, as rank 0 recorded them.
    pub(crate) fn curve(&self) -> BTreeMap<u64, u32> {
        let path = self.path().join("metrics/rank_00000.jsonl");
        trainer::metrics::curve(&path, "loss_metrics/global_avg_loss").unwrap()
    }

    /// All files below a folder, with their bytes.
    pub(crate) fn files(&self, folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut folders) = (BTreeMap::new(), vec![self.path().join(folder)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let bytes = fs::read(&path).unwrap();
                    files.insert(path, bytes);
                }
            }
        }
        files
    }
}

/// Losses of a run of so many steps that nothing disturbs, in one process.
pub(crate) fn undisturbed(steps: &str) -> BTreeMap<u64, u32> {
    let place = Place::new();
    place.train(&[steps]).is(0, &[]);
    place.curve()
}
