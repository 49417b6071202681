//! The folder that the demo works in, and the programs that it calls: `ckpt`, and Python with torch; `ckpt-train` is called in
//! [`super::trainer`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::Half;
use super::report::Report;
use crate::error::Error;
use crate::python::Environment;
use crate::{process, repository};

/// So many lines of a command's output are shown.
const SHOWN: usize = 32;

/// Where training writes, and what it writes last.
const TRAINING: &str = "run";
const REFERENCE: &str = "run/reference.json";
/// The last step that training saves.
pub(super) const NEWEST_STEP: &str = "6";
/// Where the trainer's half of the demo writes.
pub(super) const TRAINER: &str = "train";

/// State of a run.
#[derive(Debug)]
pub(crate) struct Workplace {
    /// Where everything is written; commands run in it.
    pub(crate) folder: PathBuf,
    /// What has been found.
    pub(crate) report: Report,
    environment: Environment,
    target: PathBuf,
    texts: PathBuf,
    reused: bool,
}

/// How a command ended and what it said.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// Exit code; -1 after a signal.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Answer {
    /// Both streams, for a failed check.
    pub(crate) fn said(&self) -> String {
        let tail = |text: &str| {
            text.lines().rev().take(20).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        format!("exit code {}\n{}\n{}", self.code, tail(&self.out), tail(&self.err))
    }

    /// Standard output as JSON; null when it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_default()
    }
}

impl Workplace {
    /// The folder, emptied of what the halves that are `run` write; but, if `reuse` says so, for PyTorch's training of an
    /// earlier run.
    pub(crate) fn new(
        folder: PathBuf,
        environment: Environment,
        reuse: bool,
        run: impl Fn(Half) -> bool,
    ) -> Result<Self, Error> {
        fs::create_dir_all(&folder).map_err(Error::path("create", &folder))?;
        let reused = reuse && folder.join(REFERENCE).is_file();
        for entry in fs::read_dir(&folder).map_err(Error::path("list", &folder))?.flatten() {
            let half = if entry.file_name() == TRAINER { Half::Train } else { Half::Ckpt };
            if run(half) && !(reused && entry.file_name() == TRAINING) {
                fs::remove_dir_all(entry.path()).map_err(Error::path("remove", entry.path()))?;
            }
        }
        let target = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        let target = target.unwrap_or_else(|| repository::root().join("target/debug"));
        Ok(Self { folder, report: Report::default(), environment, target, texts: PathBuf::new(), reused })
    }

    /// Has the trainer train on this folder of texts, or else on the licence texts of the pinned torch.
    pub(crate) fn train_on(&mut self, folder: Option<&Path>) -> Result<(), Error> {
        self.texts = match folder {
            Some(folder) => folder.canonicalize().map_err(Error::path("find", folder))?,
            None => licences(&self.environment)?,
        };
        Ok(())
    }

    /// Where the trainer's texts are.
    pub(crate) fn texts(&self) -> &Path {
        &self.texts
    }

    /// Whether training was done by an earlier run.
    pub(crate) const fn reused(&self) -> bool {
        self.reused
    }

    /// Runs `ckpt` for people, shows what it prints, and returns it.
    pub(crate) fn ckpt(&self, arguments: &[&str]) -> Answer {
        println!("$ ckpt {}", arguments.join(" "));
        let answer = self.call(self.command(arguments, &["--format", "human"]));
        let lines: Vec<&str> = answer.out.lines().collect();
        lines.iter().take(SHOWN).for_each(|line| println!("  {line}"));
        if lines.len() > SHOWN {
            println!("  … {} more lines", lines.len() - SHOWN);
        }
        answer
    }

    /// Runs `ckpt` with `--json`, quietly.
    pub(crate) fn ckpt_json(&self, arguments: &[&str]) -> Answer {
        println!("$ ckpt {} --json", arguments.join(" "));
        self.call(self.command(arguments, &["--json"]))
    }

    fn command(&self, arguments: &[&str], more: &[&str]) -> Command {
        let mut command = self.program("ckpt");
        command.args(arguments).args(more);
        command
    }

    /// A program of ours, to be given arguments.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.target.join(format!("{name}{}", std::env::consts::EXE_SUFFIX)))
    }

    /// Runs one of the scripts in `tests/python`.
    pub(crate) fn python(&self, script: &str, arguments: &[&str]) -> Answer {
        println!("$ python {script} {}", arguments.join(" "));
        let mut command = self.interpreter();
        command.arg(repository::root().join("tests/python").join(script)).args(arguments);
        let answer = self.call(command);
        answer.out.lines().for_each(|line| println!("  {line}"));
        answer
    }

    /// Python with torch, to be given arguments.
    pub(crate) fn interpreter(&self) -> Command {
        self.environment.python()
    }

    /// Runs a command in the folder.
    pub(crate) fn call(&self, mut command: Command) -> Answer {
        match process::output(command.current_dir(&self.folder)) {
            Ok(output) => Answer {
                code: output.status.code().unwrap_or(-1),
                out: String::from_utf8_lossy(&output.stdout).into_owned(),
                err: String::from_utf8_lossy(&output.stderr).into_owned(),
            },
            Err(error) => Answer { code: -1, out: String::new(), err: error.to_string() },
        }
    }

    /// Checks that a command ended with `code` and said something: a program that does nothing must pass no check.
    pub(crate) fn expect(&mut self, what: &str, answer: &Answer, code: i32) {
        let said = !(answer.out.trim().is_empty() && answer.err.trim().is_empty());
        self.report.check(what, answer.code == code && said, &answer.said());
    }

    /// Checks that `ckpt VERB … --json` ended with `code`, names its schema, and speaks of every tensor that was saved.
    pub(crate) fn expect_all_tensors(&mut self, what: &str, answer: &Answer, code: i32) {
        let json = answer.json();
        let schema = json["schema"].as_str().is_some_and(|name| name.starts_with("ckpt."));
        let (tensors, saved) = (accounted(&json["result"]), self.saved_tensors().len());
        let passed = answer.code == code && schema && tensors == saved && saved > 0;
        self.report.check(what, passed, &format!("{tensors} of {saved} tensors\n{}", answer.said()));
    }

    /// The flat names of all tensors that torch saved at the newest step.
    pub(crate) fn saved_tensors(&self) -> Vec<String> {
        let reference = self.reference();
        let names = reference["checkpoints"][NEWEST_STEP].as_object();
        names.into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    /// Records what `name` takes on disk.
    pub(crate) fn measure(&mut self, what: &str, name: &str) -> u64 {
        let bytes = self.files(name).iter().map(|path| fs::metadata(path).map_or(0, |data| data.len())).sum();
        self.report.size(what, bytes);
        bytes
    }

    /// SHA-256 of every file under `name`.
    pub(crate) fn digests(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let digest =
            |path: &PathBuf| fs::read(path).map_or_else(|_| Vec::new(), |data| Sha256::digest(data).to_vec());
        self.files(name).into_iter().map(|path| (path.clone(), digest(&path))).collect()
    }

    fn files(&self, name: &str) -> Vec<PathBuf> {
        let mut open = vec![self.folder.join(name)];
        let mut files = Vec::new();
        while let Some(path) = open.pop() {
            match fs::read_dir(&path) {
                Ok(entries) => open.extend(entries.flatten().map(|entry| entry.path())),
                Err(_) => files.push(path),
            }
        }
        files
    }

    /// What training recorded.
    pub(crate) fn reference(&self) -> serde_json::Value {
        let text = fs::read(self.folder.join(REFERENCE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// Real prose that is the same wherever the pinned torch is installed: the licence texts that it comes with.
fn licences(environment: &Environment) -> Result<PathBuf, Error> {
    let site = environment.site_packages()?;
    let packages = fs::read_dir(&site).map_err(Error::path("list", &site))?;
    let named = |name: &str| name.starts_with("torch-") && name.ends_with(".dist-info");
    let mut found = packages.flatten().filter(|entry| named(&entry.file_name().to_string_lossy()));
    let folder = found.next().map(|entry| entry.path().join("licenses")).filter(|folder| folder.is_dir());
    folder.ok_or_else(|| Error::Missing {
        what: format!("the folder of torch's licence texts in {}", site.display()),
        remedy: "give another folder of text by --data".to_owned(),
    })
}

/// How many tensors a result accounts for: by its counts where it has some, else by its list.
fn accounted(result: &serde_json::Value) -> usize {
    let Some(counts) = result["counts"].as_object() else { return count(&result["tensors"]) };
    counts.values().map(count).sum()
}

/// A number, or how many entries a list has.
fn count(value: &serde_json::Value) -> usize {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.or_else(|| value.as_array().map(Vec::len)).unwrap_or(0)
}
