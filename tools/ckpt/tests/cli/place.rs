//! [`Place`]: an empty folder to run the command in, and what an [`Answer`] of it says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of its own for one test.
pub(crate) struct Place(tempfile::TempDir);

/// What a run answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command, ready to run in this folder, with an environment of its own.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt"));
        command.args(args).current_dir(self.0.path()).env_clear();
        command.env("NO_COLOR", "1").env("COLUMNS", "100").env("TZ", "UTC");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Answer {
        Answer::of(&self.command(args).output().unwrap())
    }

    /// Runs what must succeed.
    pub(crate) fn done(&self, args: &[&str]) -> Answer {
        let answer = self.run(args);
        assert_eq!(answer.code, 0, "ckpt {}: {answer:#?}", args.join(" "));
        answer
    }

    /// Runs what must succeed and answers in JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.done(&[args, &["--json"]].concat()).json()
    }

    /// Names in this folder, hidden ones too, sorted.
    pub(crate) fn listed(&self) -> Vec<String> {
        names(self.0.path())
    }

    /// Copies a fixture here, so that it can be damaged.
    pub(crate) fn copy(&self, fixture: &str, name: &str) -> PathBuf {
        let (from, to) = (fixtures::path(fixture), self.path(name));
        if from.is_file() {
            std::fs::copy(&from, &to).unwrap();
            return to;
        }
        std::fs::create_dir(&to).unwrap();
        for file in names(&from) {
            std::fs::copy(from.join(&file), to.join(&file)).unwrap();
        }
        to
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The text of a fixture's path.
pub(crate) fn fixture(name: &str) -> String {
    fixtures::path(name).to_str().unwrap().to_owned()
}

impl Answer {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Asserts a refusal: this code, an `error` line that holds all of `words`, and a hint.
    pub(crate) fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        assert!(self.err.starts_with("error  "), "{self:#?}");
        assert!(self.err.contains("\nhint   "), "nothing says what to do: {self:#?}");
        let missing: Vec<_> = words.iter().filter(|word| !self.err.contains(**word)).collect();
        assert!(missing.is_empty(), "{missing:?} not in {}", self.err);
        assert!(!self.err.contains("panicked"), "{self:#?}");
    }
}
