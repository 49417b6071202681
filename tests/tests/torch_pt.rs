//! Archives that Rust wrote, loaded by torch with `weights_only=True`: the same values, types, nesting and order as in
//! the file that torch itself wrote; a real optimizer resumes from them.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use dcp::{
    Cancel, Format, Silent, Source, TargetSpec, TargetTensor,
    engine::{CopyPlan, RunOptions, SourceRef, run},
    formats::{OpenOptions, fit, open, torch_pt::PtSink},
};
use reshard::Region;
use serde_json::Value;

/// The interpreter that has torch: given by `cargo xtask test`, else asked of `cargo xtask setup --python`.
fn python() -> PathBuf {
    if let Some(python) = std::env::var_os("CKPT_PYTHON") {
        return python.into();
    }
    let setup = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "xtask", "--", "setup", "--python"])
        .output();
    let folder = String::from_utf8(setup.unwrap().stdout).unwrap();
    Path::new(folder.trim()).join("bin/python3")
}

/// What torch says, or why it objects.
fn torch(how: &str, files: &[&Path]) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/check_pt.py");
    let output = Command::new(python()).arg(script).arg(how).args(files).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Writes everything that `source` holds into one archive.
fn write(source: &dyn Source, target: &Path) {
    let catalog = source.catalog();
    let tensors = catalog.registry.entries().iter().map(|entry| TargetTensor {
        entry: entry.clone(),
        regions: vec![(Region::whole(&entry.shape).unwrap(), 0)],
    });
    let mut spec = TargetSpec {
        tensors: tensors.collect(),
        objects: catalog.objects.clone(),
        step: catalog.step,
        mesh: None,
        split: None,
        plan_digest: "0123456789abcdef".repeat(4),
        extra: catalog.extra.clone(),
        codecs: dcp::codec::Codecs::NONE,
    };
    assert!(fit(&mut spec, Format::Pt).is_empty(), "an archive holds everything");
    let sources = (0..spec.tensors.len()).map(SourceRef::plain).collect();
    let plan = CopyPlan { spec, sources };
    let mut sink = PtSink::new(target);
    run(source, &mut sink, &plan, &RunOptions::default(), &Silent, &Cancel::new()).unwrap();
}

fn written(name: &str) -> (tempfile::TempDir, PathBuf) {
    let source = open(&fixtures::path(name), OpenOptions::new()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("ours.pt");
    write(source.as_ref(), &target);
    (folder, target)
}

#[test]
fn torch_loads_from_our_archive_what_it_loads_from_its_own() {
    let mut compared = 0;
    for name in fixtures::all().into_iter().filter(|name| name.starts_with("pt/") && name.ends_with(".pt")) {
        let (_folder, ours) = written(&name);
        torch("same", &[&ours, &fixtures::path(&name)]).unwrap_or_else(|why| panic!("{name}: {why}"));
        compared += 1;
    }
    assert_eq!(compared, 7);
}

#[test]
fn a_comparison_of_different_files_fails() {
    let (_folder, ours) = written("pt/tied.pt");
    let why = torch("same", &[&ours, &fixtures::path("pt/state_dict.pt")]).unwrap_err();
    assert!(why.contains("AssertionError"), "{why}");
}

#[test]
fn a_real_optimizer_resumes_from_our_archive() {
    let (_folder, ours) = written("pt/training.pt");
    torch("resume", &[&ours]).unwrap();
}

#[test]
fn checkpoints_of_other_formats_become_archives_that_torch_loads_with_weights_only() {
    for name in [
        "pt/dtensor",
        "hf/llama_bin",
        "hf/llama_sharded",
        "safetensors/single.safetensors",
        "torch_dcp/fsdp2_tp2",
        "torch_dcp/dtypes",
        "torch_dcp/objects",
    ] {
        let (_folder, ours) = written(name);
        let said = torch("digests", &[&ours]).unwrap_or_else(|why| panic!("{name}: {why}"));
        let found: BTreeMap<String, Value> = serde_json::from_str(&said).unwrap();
        let expected = fixtures::expected(name).tensors;
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (key, tensor) in expected {
            let wanted =
                serde_json::json!({"dtype": tensor.dtype, "shape": tensor.shape, "sha256": tensor.sha256});
            assert_eq!(found[&key], wanted, "{name} {key}");
        }
    }
}
