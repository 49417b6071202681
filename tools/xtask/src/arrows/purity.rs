//! Where words may stand: the model is plain sequential computation, and only the NCCL transport knows `cudarc`.
//!
//! Read from the sources: comments aside (they may say why a thing is absent), tests aside (they put
//! tensors somewhere), names taken apart into their words, so that `tp_rank` and `StageIndex` are found too and
//! `GroupedQuery` is not.

mod lexer;

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// What model code must not name, in the singular.
const FORBIDDEN: [&str; 7] = ["rank", "group", "stage", "mesh", "device", "transport", "collective"];
const PLURALS: [&str; 7] = ["ranks", "groups", "stages", "meshes", "devices", "transports", "collectives"];
const MODEL: &str = "trainer/src/model";
const TRAINER: &str = "trainer/src";
/// A file or a folder of this name, in the folder of transports.
const NCCL: &str = "trainer/src/transport/nccl";

/// A rule that is broken, and where.
pub(super) fn violations(root: &Path) -> Result<Vec<String>, Error> {
    let mut model = sources(&root.join(MODEL))?;
    model.retain(|path| !path.ends_with("tests.rs"));
    let mut broken = Vec::new();
    if model.is_empty() {
        broken.push(format!("{MODEL} holds no Rust file: there is no model code to check"));
    }
    for path in &model {
        let found = words(&read(path)?, |word| FORBIDDEN.contains(&word) || PLURALS.contains(&word));
        broken.extend(
            found
                .into_iter()
                .map(|(line, word)| format!("{}: model code names `{word}`", place(root, path, line))),
        );
    }
    for path in sources(&root.join(TRAINER))?.iter().filter(|path| !is_nccl(root, path)) {
        let found = words(&read(path)?, |word| word == "cudarc");
        let outside = "`cudarc` outside of the NCCL transport";
        broken.extend(found.into_iter().map(|(line, _)| format!("{}: {outside}", place(root, path, line))));
    }
    Ok(broken)
}

fn is_nccl(root: &Path, path: &Path) -> bool {
    let nccl = root.join(NCCL);
    path.starts_with(&nccl) || path == nccl.with_extension("rs")
}

fn place(root: &Path, path: &Path, line: usize) -> String {
    format!("{}:{line}", path.strip_prefix(root).unwrap_or(path).display())
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::path("read", path))
}

/// The Rust files below `folder`, sorted; none if it isn't there.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop().filter(|folder| folder.is_dir()) {
        for entry in fs::read_dir(&folder).map_err(Error::path("list", &folder))? {
            let path = entry.map_err(Error::path("list", &folder))?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// `(line, word)` of each word of the code, in lower case, that `wanted` takes.
fn words(source: &str, wanted: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let code = lexer::without_comments(source);
    let mut in_tests = false;
    let mut found = Vec::new();
    for (line, number) in code.lines().zip(1..) {
        in_tests = if in_tests { line != "}" } else { opens_tests(line) };
        if !in_tests {
            found.extend(
                lexer::words(line).into_iter().filter(|word| wanted(word)).map(|word| (number, word)),
            );
        }
    }
    found
}

/// The inline module of tests; rustfmt puts its end at the first column.
fn opens_tests(line: &str) -> bool {
    line.starts_with("mod tests {")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, String)> {
        words(source, |word| FORBIDDEN.contains(&word) || PLURALS.contains(&word))
    }

    fn only(source: &str) -> String {
        let found = found(source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        found[0].1.clone()
    }

    #[test]
    fn each_forbidden_word_is_found_alone_and_inside_a_name() {
        for word in FORBIDDEN.into_iter().chain(PLURALS) {
            let capital = word[..1].to_uppercase() + &word[1..];
            assert_eq!(only(&format!("let x = {word};")), word);
            assert_eq!(only(&format!("let tp_{word}_0 = 1;")), word);
            assert_eq!(only(&format!("use a::{capital}Index;")), word);
            assert_eq!(only(&format!("const A_{}: u8 = 0;", word.to_uppercase())), word);
            assert_eq!(only(&format!("let x = \"the {word}\"; // fine")), word);
        }
    }

    #[test]
    fn comments_and_words_that_merely_contain_one_are_fine() {
        let source = "//! No rank here.\n/* a /* nested */ mesh */\nlet grouped = GroupedQuery::staged(\"//\", 'd');\n\
                      /// Of a device.\nlet ranked = \"a \\\" b\"; // group\n";
        assert_eq!(found(source), []);
    }

    #[test]
    fn a_comment_sign_inside_text_hides_nothing() {
        assert_eq!(
            found("let a = \"//\"; let rank = 0;\nlet b = r#\"/*\"#; let mesh = '\"'; let stage = 1;").len(),
            3
        );
        assert_eq!(found("fn f<'a>(x: &'a str) {} // \"\nlet group = 0;").first().map(|it| it.0), Some(2));
    }

    #[test]
    fn tests_may_put_tensors_somewhere_and_code_after_them_may_not() {
        let source = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use tch::Device;\n}\nfn b(rank: u8) {}\n";
        assert_eq!(found(source), [(7, "rank".to_owned())]);
        assert_eq!(found("#[cfg(test)]\nmod tests;\nlet device = 0;\n").len(), 1);
    }

    #[test]
    fn a_tree_with_a_rank_in_its_model_or_cudarc_elsewhere_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(violations(root.path()).unwrap()[0].contains("no model code"));
        write("trainer/src/model/block.rs", "fn forward() {}\n");
        write("trainer/src/transport/nccl.rs", "use cudarc::nccl;\n");
        write("trainer/src/transport/nccl/group.rs", "use cudarc::nccl;\n");
        assert_eq!(violations(root.path()).unwrap(), Vec::<String>::new());
        write("trainer/src/model/deep/head.rs", "fn f() {}\nfn g(rank: usize) {}\n");
        write("trainer/src/run.rs", "use cudarc::driver;\n");
        assert_eq!(
            violations(root.path()).unwrap(),
            [
                "trainer/src/model/deep/head.rs:2: model code names `rank`",
                "trainer/src/run.rs:1: `cudarc` outside of the NCCL transport"
            ]
        );
    }
}
