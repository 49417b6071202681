//! The snippet in the docs that writes a baseline from `named_parameters()`, run on a real model: the checkpoint that
//! the same model saved agrees with it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;

use dcp::formats::{OpenOptions, open};
use fqn::baseline::{Observed, check, read};

/// The Python block of `fqn::baseline`'s documentation.
fn snippet() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fqn/src/baseline.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let block = text.split("//! ```python").nth(1).unwrap().split("//! ```").next().unwrap();
    block
        .lines()
        .map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or_default().to_owned() + "\n")
        .collect()
}

#[test]
fn a_checkpoint_agrees_with_the_baseline_that_python_wrote_of_its_model() {
    let place = tempfile::tempdir().unwrap();
    let (model, out) = (fixtures::path("hf/llama_sharded"), place.path().join("baseline.json"));
    let script = format!(
        "{}\nimport sys, torch\nfrom transformers import LlamaForCausalLM\nmodel = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)\nbaseline(model, sys.argv[2])\n",
        snippet()
    );
    let ran = fixtures::python().args(["-c", &script]).arg(&model).arg(&out).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let baseline = read(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let source = open(&model, OpenOptions::new()).unwrap();
    let registry = &source.catalog().registry;
    let report = check(&baseline, Observed { registry, pieces: &[] });
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.agreeing, registry.len());
}

#[test]
fn the_readme_shows_the_same_snippet() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    assert!(std::fs::read_to_string(readme).unwrap().contains(&snippet()));
}
