//! Looking inside, finding a flipped bit that torch doesn't, and sealing without rewriting a byte.

use serde_json::Value;

use super::super::workplace::{Answer, Workplace};
use super::{NEWEST, SEALED, recovered};

/// The tensor that is damaged, and its name in the state dict that torch saved.
const VICTIM: &str = "model.layers.3.mlp.up_proj.weight";
const SAVED_AS: &str = "model.model.layers.3.mlp.up_proj.weight";
/// Exit code for damaged data.
const CORRUPT: i32 = 20;

pub(super) fn inspect_and_verify(work: &mut Workplace) {
    let answer = work.ckpt(&["inspect", NEWEST]);
    work.expect("inspect", &answer, 0);
    let answer = work.ckpt_json(&["inspect", NEWEST, "--tensors"]);
    work.expect_all_tensors("inspect --json lists every tensor that torch saved", &answer, 0);
    let saved = work.saved_tensors();
    let parameters = saved.iter().filter_map(|name| name.strip_prefix("model."));
    let missing: Vec<_> = parameters.filter(|name| !answer.out.contains(&format!("\"{name}\""))).collect();
    work.report.check(
        "by the names of the model",
        missing.is_empty() && !saved.is_empty(),
        &format!("{missing:?}"),
    );
    let answer = work.ckpt(&["verify", NEWEST]);
    work.expect("verify finds it whole", &answer, 0);
    flip_a_bit(work);
}

fn flip_a_bit(work: &mut Workplace) {
    let answer =
        work.python("flip_bit_loads_silently.py", &[NEWEST, "flipped", SAVED_AS, "--element", "1234"]);
    work.expect("torch loads a flipped bit without a word", &answer, 0);
    let answer = work.ckpt(&["verify", "flipped"]);
    work.expect("verify refuses the copy with exit code 20", &answer, CORRUPT);
    let answer = work.ckpt_json(&["verify", "flipped"]);
    let detail = format!("{:#?}\n{}", blamed(&answer), answer.said());
    work.report.check(
        "and names that tensor alone, with the index range",
        names_the_victim(&answer),
        &detail,
    );
}

/// Tensor and range of each finding.
fn blamed(answer: &Answer) -> Vec<(String, String)> {
    let json = answer.json();
    let findings = json["result"]["findings"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    findings.iter().map(|finding| (text(&finding["tensor"]), text(&finding["range"]))).collect()
}

fn names_the_victim(answer: &Answer) -> bool {
    let blamed = blamed(answer);
    let named = |(tensor, range): &(String, String)| tensor.contains(VICTIM) && range.contains('[');
    !blamed.is_empty() && blamed.iter().all(named)
}

pub(super) fn seal(work: &mut Workplace) {
    let before = work.digests(NEWEST);
    let answer = work.ckpt(&["seal", NEWEST, "--into", SEALED]);
    work.expect("seal", &answer, 0);
    let untouched = before == work.digests(NEWEST) && !before.is_empty();
    work.report.check("not one byte of the folder changed", untouched, "files of the sealed folder differ");
    let sealed = work.measure("its seal", SEALED);
    let small = (1..4 << 20).contains(&sealed);
    work.report.check("the seal is small: no tensor was copied", small, &format!("{sealed} bytes"));
    recovered(work, SEALED);
    let answer = work.ckpt_json(&["verify", SEALED]);
    work.expect_all_tensors("the sealed checkpoint verifies by its own hashes", &answer, 0);
    let answer = work.ckpt_json(&["diff", SEALED, NEWEST, "--level", "values"]);
    work.expect_all_tensors("and holds the same values as the folder", &answer, 0);
}
