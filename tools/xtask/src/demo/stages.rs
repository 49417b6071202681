//! The six stages of the command. Each calls the programs as a user would and checks what they did.

mod formats;
mod integrity;
mod meshes;

use super::Stage;
use super::workplace::{NEWEST_STEP, Workplace};

/// The checkpoint that training leaves, and the one before it.
const NEWEST: &str = "run/step-6";
const OLDER: &str = "run/step-4";
/// The manifest that `seal` writes for the newest one.
const SEALED: &str = "sealed";

/// In order, with their titles.
pub(super) const ALL: [(&str, Stage); 6] = [
    ("real PyTorch trains on dp2,tp2 and saves", train),
    ("look inside, and prove it whole", integrity::inspect_and_verify),
    ("seal: hashes and fingerprints for the untouched folder", integrity::seal),
    ("another mesh, and another, and back to one", meshes::reshard),
    ("out again: Hugging Face, and PyTorch on another mesh", formats::export),
    ("what changed between two steps", compare),
];

fn train(work: &mut Workplace) {
    if work.reused() {
        println!("(the training of an earlier run is used again)");
    } else {
        let answer = work.python("demo_train.py", &["run"]);
        work.expect("four gloo processes trained a Llama and saved two steps", &answer, 0);
    }
    let reference = work.reference();
    let loss = |step: &str| reference["losses"][step].as_f64().unwrap_or(f64::NAN);
    let detail = reference["losses"].to_string();
    work.report.check("the loss falls", loss("6") < loss("1"), &detail);
    work.measure("torch DCP checkpoint of step 6", NEWEST);
}

/// Has the independent Python reader recover every tensor of a native root.
fn recovered(work: &mut Workplace, root: &str) {
    let answer = work.python("check_native.py", &[root, "run", NEWEST_STEP]);
    work.expect("an independent reader recovers every tensor bit for bit", &answer, 0);
}

fn compare(work: &mut Workplace) {
    let answer = work.ckpt(&["diff", OLDER, NEWEST, "--top", "5"]);
    work.expect("two steps differ, and diff says so by its exit code", &answer, 1);
    let answer = work.ckpt_json(&["diff", OLDER, NEWEST]);
    work.expect_all_tensors("every tensor is accounted for", &answer, 1);
    let same = work.ckpt_json(&["diff", NEWEST, NEWEST]);
    work.expect_all_tensors("a checkpoint doesn't differ from itself", &same, 0);
}
