//! [`Way`]: a way to train, ours or theirs, and [`Ground`]: where both do it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::sizes::Sizes;
use super::turns::Turns;
use crate::bench::target_folder;
use crate::error::Error;
use crate::{python, repository};

/// A way to train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// For people.
    pub(super) name: String,
    ranks: u32,
    side: Side,
    /// Whether it learns, and so has a loss.
    trains: bool,
    /// Variables of its processes.
    variables: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    /// Keys of the configuration.
    Ours(Vec<String>),
    /// Words of `bench_trainer.py`.
    Torch(Vec<&'static str>),
}

impl Way {
    /// Ours, with these keys.
    pub(super) fn ours(name: &str, ranks: u32, keys: &[&str]) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Self { name: name.to_owned(), ranks, side: Side::Ours(keys), trains: true, variables: &[] }
    }

    /// The same, saving at `root` every `interval` steps; 0 for never.
    pub(super) fn saving(mut self, root: &Path, interval: usize) -> Self {
        if let Side::Ours(keys) = &mut self.side {
            keys.push(format!("checkpoint.root={}", root.display()));
            keys.push(format!("checkpoint.interval={interval}"));
        }
        self
    }

    /// Theirs, with these words.
    pub(super) fn torch(name: &str, ranks: u32, words: &[&'static str]) -> Self {
        Self { name: name.to_owned(), ranks, side: Side::Torch(words.to_vec()), trains: true, variables: &[] }
    }

    /// Whether it learns.
    #[cfg(test)]
    pub(super) fn is_training(&self) -> bool {
        self.trains
    }

    /// The same where it only computes, and learns nothing: it has no loss.
    pub(super) fn without_training(self) -> Self {
        Self { trains: false, ..self }
    }

    /// The same in processes with these variables, and so much more of a name.
    pub(super) fn under(mut self, what: &str, variables: &'static [(&'static str, &'static str)]) -> Self {
        self.name.push_str(what);
        self.variables = variables;
        self
    }
}

/// A folder, with text to train on in it.
#[derive(Debug)]
pub(super) struct Ground {
    folder: PathBuf,
}

impl Ground {
    /// In `folder`, which is emptied.
    pub(super) fn new(folder: PathBuf) -> Result<Self, Error> {
        remove(&folder)?;
        let ground = Self { folder };
        let text = ground.text();
        fs::create_dir_all(&text).map_err(Error::path("create", &text))?;
        let file = text.join("text.txt");
        fs::write(&file, letters(1 << 20)).map_err(Error::path("write", &file))?;
        Ok(ground)
    }

    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn text(&self) -> PathBuf {
        self.folder.join("text")
    }

    /// The processes of a way, one for each of its ranks.
    pub(super) fn start(&self, way: &Way, sizes: Sizes) -> Result<Turns, Error> {
        let port = if way.ranks > 1 { Some(free_port()?) } else { None };
        let commands = (0..way.ranks).map(|rank| {
            let mut command = match &way.side {
                Side::Ours(keys) => self.ours(way, keys, sizes),
                Side::Torch(words) => self.torch(way, words, sizes)?,
            };
            command.env("OMP_NUM_THREADS", "1").envs(way.variables.iter().copied());
            if let Some(port) = port {
                command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
                command
                    .env("WORLD_SIZE", way.ranks.to_string())
                    .env("LOCAL_WORLD_SIZE", way.ranks.to_string());
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            }
            Ok(command)
        });
        Turns::start(commands.collect::<Result<_, Error>>()?, way.trains)
    }

    fn ours(&self, way: &Way, keys: &[String], sizes: Sizes) -> Command {
        let mut command = Command::new(target_folder().join("release/examples/in_turns"));
        let unused = way.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        command.args(sizes.for_us(way.ranks)).args([
            format!("data.folder={}", self.text().display()),
            format!("checkpoint.root={}", self.folder.join(unused).display()),
            "checkpoint.interval=0".to_owned(),
            format!("comm.dump_folder={}", self.folder.join("dumps").display()),
        ]);
        command.args(keys);
        command
    }

    fn torch(&self, way: &Way, words: &[&str], sizes: Sizes) -> Result<Command, Error> {
        let mut command = python::environment()?.python();
        command.arg(repository::root().join("tests/python/bench_trainer.py"));
        command.arg(self.text().join("text.txt")).args(sizes.for_torch(way.ranks)).args(words);
        Ok(command)
    }

    /// Leaves nothing behind.
    pub(super) fn clear(&self) -> Result<(), Error> {
        remove(&self.folder)
    }
}

/// Removes a folder, if it is there.
pub(super) fn remove(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::path("remove", folder))?;
    }
    Ok(())
}

/// A port that nobody has at the moment: rank 0 of either side serves the store there.
fn free_port() -> Result<u16, Error> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(Error::path("find a free port of", "127.0.0.1"))
}

/// Text of these many bytes: letters of a generator, so that every run trains on the same.
fn letters(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let letter = || {
        state = state * 48_271 % 2_147_483_647;
        let at = usize::try_from(state % 16).unwrap_or_default();
        b"etaoin shrdlu.\n ".get(at).copied().unwrap_or(b' ')
    };
    std::iter::repeat_with(letter).take(count).collect()
}
