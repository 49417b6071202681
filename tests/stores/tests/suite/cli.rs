//! `ckpt` on a bucket, from end to end.

use std::any::Any;
use std::process::{Command, Output};

use serde_json::Value;
use stores::{BUCKET, Moto};

const DCP: &str = "torch_dcp/fsdp2_tp2";

/// A server, an empty folder to run in, and what the command is told.
pub(crate) struct Place {
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: tempfile::TempDir,
    _server: Box<dyn Any>,
}

impl Place {
    fn new() -> Self {
        let server = Moto::start().unwrap_or_else(|error| panic!("{error}"));
        Self::with(server.environment(), server)
    }

    pub(crate) fn with(environment: Vec<(String, String)>, server: impl Any) -> Self {
        Self { environment, folder: tempfile::tempdir().unwrap(), _server: Box::new(server) }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-with-stores"));
        command
            .env_clear()
            .env("NO_COLOR", "1")
            .envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.current_dir(self.folder.path()).args(arguments).output().unwrap()
    }

    /// What it answers as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "ckpt {arguments:?}: {}\n{out}{err}", output.status);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
    }

    /// What it complains of, and its exit code.
    fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(arguments);
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!err.contains("panicked") && !err.contains("hunter2"), "{err}");
        (output.status.code(), err)
    }
}

fn fixture(name: &str) -> String {
    fixtures::path(name).to_str().unwrap().to_owned()
}

fn root(name: &str) -> String {
    format!("s3://{BUCKET}/{name}")
}

#[test]
fn a_checkpoint_goes_into_a_bucket_through_it_and_out_of_it() {
    let place = Place::new();
    let (a, b) = (root("runs/a"), root("runs/b"));
    let first = place.json(&["convert", &fixture(DCP), &a, "--to", "2x1x2", "--heads", "4", "--verify"]);
    assert_eq!(
        (&first["result"]["target"], &first["result"]["verified"]["tensors"]),
        (&format!("{a}@seq:1").into(), &48.into())
    );
    assert_eq!(place.json(&["inspect", &a])["result"]["mesh"], "dp=2 pp=1 tp=2");
    let verified = place.json(&["verify", &format!("{a}@latest")]);
    assert_eq!(verified["result"]["findings"], Value::Array(Vec::new()), "{verified}");
    let second = place.json(&["reshard", &a, &b, "--to", "4x1x1", "--verify"]);
    assert_eq!(second["result"]["report"]["proven"], 48);
    assert_eq!(place.json(&["reshard", &a, "--to", "1x1x2"])["result"]["target"], format!("{a}@seq:2"));
    for (one, other) in [(&*a, &*b), (&*fixture(DCP), &*b), (&*format!("{a}@seq:1"), &*format!("{a}@seq:2"))]
    {
        assert_eq!(place.json(&["diff", one, other])["result"]["same"], true, "{one} {other}");
    }
    for (format, target) in [("torch-dcp", "dcp"), ("safetensors", "file.safetensors")] {
        let out = place.json(&["convert", &b, target, "--as", format, "--only", "model", "--verify"]);
        assert_eq!(out["result"]["verified"]["tensors"], out["result"]["tensors"], "{format}");
    }
}

#[test]
fn a_model_in_a_bucket_is_exported_for_hugging_face() {
    let place = Place::new();
    let (titan, hf) = (root("titan"), fixture("hf/llama_sharded"));
    place.json(&["convert", &hf, &titan, "--names", "torchtitan", "--to", "1x2x2"]);
    place.json(&["export", &titan, "out", "--config", &hf]);
    assert_eq!(place.json(&["diff", &hf, "out"])["result"]["same"], true);
}

#[test]
fn what_is_not_in_a_bucket_is_not_found_and_other_things_are_left_alone() {
    let place = Place::new();
    let (code, err) = place.refused(&["inspect", &root("nothing")]);
    assert_eq!(code, Some(10), "{err}");
    assert!(err.contains(&root("nothing")), "{err}");
    let (code, err) = place.refused(&["inspect", "s3://no-such-bucket/x"]);
    assert_eq!(code, Some(10), "{err}");
    assert!(err.contains("no-such-bucket") && err.contains("bucket"), "{err}");
    // A place that holds something else does not become a root.
    let stores = super::stores(place.environment.clone());
    let other = dcp::store::Root::create(&root("site"), &stores).unwrap();
    other.put_same(&dcp::store::object_path("index.html").unwrap(), "<html>".into()).unwrap();
    let (code, err) = place.refused(&["convert", &fixture(DCP), &root("site")]);
    assert_eq!(code, Some(11), "{err}");
    assert!(err.contains("index.html"), "{err}");
    let (code, err) = place.refused(&["convert", &fixture(DCP), &root("x"), "--as", "torch-dcp"]);
    assert_eq!(code, Some(21), "{err}");
}

#[test]
fn wrong_credentials_end_with_the_code_for_access() {
    let server = Moto::start_strict().unwrap_or_else(|error| panic!("{error}"));
    let place = Place::with(server.environment(), server);
    for arguments in
        [&["inspect", &root("x")][..], &["convert", &fixture(DCP), &root("x")], &["verify", &root("x")]]
    {
        let (code, err) = place.refused(arguments);
        assert_eq!(code, Some(12), "{err}");
        assert!(err.contains("InvalidAccessKeyId"), "{err}");
    }
}
