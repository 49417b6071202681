//! The README says what the command prints, and names only commands and options that exist.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// Runs the command in the repository's root, in an environment of its own.
fn ckpt(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt"));
    command.args(arguments).current_dir(root()).env_clear().env("NO_COLOR", "1").output().unwrap()
}

/// Blocks that claim to be the output of a command: the command, and the block's text.
fn outputs(text: &str) -> Vec<(String, String)> {
    let claims = text.split("<!-- output of: ckpt ").skip(1);
    let claims = claims.map(|rest| {
        let (command, rest) = rest.split_once(" -->").unwrap();
        let block = rest.split("```").nth(1).unwrap();
        (command.to_owned(), block.split_once('\n').unwrap().1.to_owned())
    });
    claims.collect()
}

#[test]
fn what_the_readme_shows_is_what_the_command_prints() {
    let claims = outputs(&readme());
    assert!(claims.len() >= 2);
    for (command, shown) in claims {
        let arguments: Vec<&str> = command.split(' ').collect();
        let output = ckpt(&arguments);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.trim_end(), shown.trim_end(), "ckpt {command}");
    }
}

#[test]
fn every_command_of_the_readme_exists_with_its_options() {
    let text = readme();
    let lines = text.lines().filter(|line| line.starts_with("ckpt "));
    let mut seen = 0;
    for line in lines {
        let line = line.split(" #").next().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let verb: Vec<&str> = if words[1] == "fqn" { words[1..3].to_vec() } else { vec![words[1]] };
        let help = ckpt(&[&verb[..], &["--help"]].concat());
        assert!(help.status.success(), "{line}");
        let help = String::from_utf8(help.stdout).unwrap();
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(option), "{option} of {line:?} is not in\n{help}");
        }
        seen += 1;
    }
    assert!(seen >= 10, "{seen} commands");
}
