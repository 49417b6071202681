//! The README names only verbs and options of `ckpt-train` that exist, and a configuration that it takes.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap()
}

fn ckpt_train(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ckpt-train")).args(arguments).output().unwrap()
}

#[test]
fn every_command_of_the_readme_exists_with_its_options() {
    let text = readme();
    let of = |arguments: &[&str]| String::from_utf8(ckpt_train(arguments).stdout).unwrap();
    let configured = of(&["train", "--help"]) + &of(&["config", "keys"]);
    let mut seen = 0;
    for line in text.lines().filter(|line| line.starts_with("ckpt-train ")) {
        let words: Vec<&str> = line.split(" #").next().unwrap().split_whitespace().skip(1).collect();
        let verb = if ["config", "data", "schedule"].contains(&words[0]) { &words[..2] } else { &words[..1] };
        let help = ckpt_train(&[verb, &["--help"]].concat());
        assert!(help.status.success(), "{line}");
        let help = String::from_utf8(help.stdout).unwrap() + &configured;
        for option in words.iter().filter(|word| word.len() > 2 && word.starts_with("--")) {
            let name = option.split('=').next().unwrap();
            let known = if name.contains('.') { &name[2..] } else { name };
            assert!(help.contains(known), "{option} of {line:?}");
        }
        seen += 1;
    }
    assert!(seen >= 6, "{seen} commands");
}

#[test]
fn the_configuration_of_the_readme_is_taken() {
    let text = readme();
    let shown = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    fs::write(file.path(), shown).unwrap();
    let answer = ckpt_train(&["config", "-c", file.path().to_str().unwrap()]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
}
