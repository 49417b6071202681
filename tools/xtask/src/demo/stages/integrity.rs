//! Looking inside, finding a flipped bit that torch doesn't, and sealing without rewriting a byte.

use super::super::workplace::Workplace;
use super::{NEWEST, SEALED};

/// The tensor that is damaged.
const VICTIM: &str = "model.model.layers.3.mlp.up_proj.weight";
/// Exit code for damaged data.
const CORRUPT: i32 = 20;

pub(super) fn inspect_and_verify(work: &mut Workplace) {
    let answer = work.ckpt(&["inspect", NEWEST]);
    work.expect("inspect", &answer, 0);
    let answer = work.ckpt_json(&["inspect", NEWEST, "--tensors"]);
    let schema = answer.json()["schema"].as_str().unwrap_or_default().to_owned();
    work.report.check("inspect --json names its schema", schema.starts_with("ckpt.inspect/"), &answer.said());
    let reference = work.reference();
    let names: Vec<_> =
        reference["checkpoints"]["6"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    let missing: Vec<_> = names.iter().filter(|name| !answer.out.contains(&format!("\"{name}\""))).collect();
    let all = format!("inspect knows all {} tensors that torch saved", names.len());
    work.report.check(all, missing.is_empty() && !names.is_empty(), &format!("missing: {missing:?}"));
    let answer = work.ckpt(&["verify", NEWEST]);
    work.expect("verify finds it whole", &answer, 0);
    flip_a_bit(work);
}

fn flip_a_bit(work: &mut Workplace) {
    let answer = work.python("flip_bit_loads_silently.py", &[NEWEST, "flipped", VICTIM, "--element", "1234"]);
    work.expect("torch loads a flipped bit without a word", &answer, 0);
    let answer = work.ckpt(&["verify", "flipped"]);
    work.expect("verify refuses the copy with exit code 20", &answer, CORRUPT);
    let said = format!("{}{}", answer.out, answer.err);
    work.report.check("and names the tensor", said.contains(VICTIM), &answer.said());
}

pub(super) fn seal(work: &mut Workplace) {
    let before = work.digests(NEWEST);
    let answer = work.ckpt(&["seal", NEWEST, "--into", SEALED]);
    work.expect("seal", &answer, 0);
    let untouched = before == work.digests(NEWEST) && !before.is_empty();
    work.report.check("not one byte of the folder changed", untouched, "files of the sealed folder differ");
    let (sealed, source) = (work.measure("its seal", SEALED), before.len());
    work.report.check("the seal is small", sealed < 4 << 20, &format!("{sealed} bytes for {source} files"));
    let answer = work.ckpt(&["verify", SEALED]);
    work.expect("the sealed checkpoint verifies by its own hashes", &answer, 0);
    let answer = work.ckpt_json(&["diff", SEALED, NEWEST]);
    work.expect("and holds the same values as the folder", &answer, 0);
}
