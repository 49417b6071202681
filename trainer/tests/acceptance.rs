//! Every test that `ACCEPTANCE.md` names exists, in the package that it names.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Folders of each package's sources; `schedule` lies within `trainer`.
const PACKAGES: [(&str, &str); 4] = [
    ("trainer", "trainer"),
    ("schedule", "trainer/schedule"),
    ("ckpt", "tools/ckpt"),
    ("xtask", "tools/xtask"),
];

/// All Rust sources below a folder, one after the other.
fn sources(folder: &Path) -> String {
    let (mut text, mut folders): (String, Vec<PathBuf>) = (String::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_rust = path.extension().is_some_and(|it| it == "rs");
            if path.is_dir() {
                folders.push(path);
            } else if is_rust {
                text += &fs::read_to_string(path).unwrap();
            }
        }
    }
    text
}

/// Whether there is a function of this name with an attribute before it, as tests have, also those within macros.
fn has_test(code: &str, name: &str) -> bool {
    let begin = format!("fn {name}(");
    code.match_indices(&begin).any(|(at, _)| code[..at].trim_end().ends_with(']'))
}

#[test]
fn every_test_of_the_acceptance_list_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = fs::read_to_string(root.join("trainer/ACCEPTANCE.md")).unwrap();
    let code: BTreeMap<&str, String> = PACKAGES
        .iter()
        .map(|(name, folder)| {
            let of = |part: &str| Some(root.join(folder).join(part)).filter(|path| path.is_dir());
            let parts = ["src", "tests"].into_iter().filter_map(of);
            (*name, parts.map(|path| sources(&path)).collect())
        })
        .collect();
    let quoted = list.split('`').skip(1).step_by(2);
    let named: Vec<(&str, &str)> = quoted.filter_map(|text| text.split_once("::")).collect();
    let lost: Vec<String> = named
        .iter()
        .filter(|(package, _)| *package != "package")
        .filter(|(package, test)| !code.get(package).is_some_and(|code| has_test(code, test)))
        .map(|(package, test)| format!("{package}::{test}"))
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(named.len() > 60, "{}", named.len());
    for item in (1..=12).map(|item| format!("| {item} |")).chain((1..=18).map(|item| format!("| E{item} |")))
    {
        assert!(list.contains(&item), "{item}");
    }
}
