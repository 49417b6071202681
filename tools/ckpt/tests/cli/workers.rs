//! Several processes write one checkpoint, each a share of its files.

use std::process::{Child, Stdio};

use serde_json::Value;

use crate::place::{Answer, Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";

/// Worker `worker` of `workers`, started.
fn start(place: &Place, args: &[&str], env: &[(&str, String)]) -> Child {
    let mut command = place.command(&[args, &["--json"]].concat());
    command.envs(env.iter().map(|(key, value)| (key, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finished(child: Child) -> Value {
    let answer = Answer::of(&child.wait_with_output().unwrap());
    assert_eq!(answer.code, 0, "{answer:#?}");
    answer.json()
}

#[test]
fn four_processes_that_start_at_once_make_one_checkpoint() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    let args = ["reshard", "a@seq:1", "b", "--to", "4x1x2", "--worker", "auto"];
    let workers: Vec<Child> = (0..4)
        .map(|rank| {
            let env = [("RANK", format!("{rank}")), ("WORLD_SIZE", "4".to_owned())];
            start(&place, &args, &env)
        })
        .collect();
    let outcomes: Vec<Value> = workers.into_iter().map(finished).collect();
    let (done, waiting): (Vec<_>, Vec<_>) =
        outcomes.iter().map(|it| &it["result"]).partition(|it| it.get("missing_files").is_none());
    assert!(!done.is_empty(), "{outcomes:#?}");
    for result in done {
        assert_eq!((&result["target"], &result["sequence"]), (&"b@seq:1".into(), &1.into()));
        assert_eq!((&result["report"]["proven"], &result["tensors"]), (&48.into(), &48.into()));
    }
    assert!(
        waiting.iter().all(|it| it["target"] == "b" && it["report"]["fingerprints"] == Value::Array(vec![]))
    );
    let written = |it: &Value| it["result"]["report"]["bytes_written"].as_u64().unwrap();
    assert!(outcomes.iter().all(|it| written(it) > 0), "everyone had a share: {outcomes:#?}");
    assert_eq!(place.json(&["log", "b"])["result"]["records"].as_array().unwrap().len(), 1);
    place.done(&["verify", "b"]);
    assert_eq!(place.json(&["diff", "a", "b", "--level", "hash"])["result"]["same"], true);
}

#[test]
fn a_worker_says_what_is_missing_and_any_other_finishes_it() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    let reshard = ["reshard", "a@seq:1", "b", "--to", "4x1x1"];
    let first = place.done(&[&reshard[..], &["--worker", "1/2", "--verify"]].concat());
    assert!(first.out.contains("partial\tb\tnative\nworker\t1/2\nplan\t"), "{}", first.out);
    place.run(&["inspect", "b"]).refused(10, &["b"]);
    let rest = place.json(&reshard);
    let report = &rest["result"]["report"];
    assert!(
        report["skipped_files"].as_u64() > Some(0) && report["bytes_written"].as_u64() > Some(0),
        "{rest}"
    );
    assert_eq!(rest["result"]["target"], "b@seq:1");
    let late = place.json(&[&reshard[..], &["--worker", "0/2"]].concat());
    assert_eq!(
        (&late["result"]["sequence"], &late["result"]["report"]["bytes_written"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn a_root_is_resharded_in_place_by_two_workers() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "root", "--to", "2x1x2", "--heads", "4"]);
    let reshard = ["reshard", "root@seq:1", "--to", "1x1x2"];
    let first = place.json(&[&reshard[..], &["--worker", "0/2"]].concat());
    assert_eq!(first["result"]["missing_files"].as_u64().map(|it| it > 0), Some(true), "{first}");
    let second = place.json(&[&reshard[..], &["--worker", "1/2"]].concat());
    assert_eq!(second["result"]["target"], "root@seq:2");
    place.done(&["verify", "root@seq:2"]);
}

#[test]
fn shares_that_could_go_wrong_are_refused() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    let reshard = ["reshard", "a", "b", "--to", "4x1x1", "--worker"];
    for moving in ["a", "a@latest", "a@step:0", "a@tag:best"] {
        let args = ["reshard", moving, "b", "--to", "4x1x1", "--worker", "0/2"];
        place.run(&args).refused(if moving == "a@tag:best" { 10 } else { 22 }, &["a"]);
    }
    place.run(&[&reshard[..], &["0/2"]].concat()).refused(22, &["may be another", "a@seq:1"]);
    place
        .run(&["reshard", "a@seq:1", "b", "--to", "4x1x1", "--worker", "auto"])
        .refused(22, &["RANK", "0/4"]);
    place
        .run(&["convert", "a@seq:1", "c", "--as", "torch-dcp", "--worker", "0/2"])
        .refused(22, &["torch-dcp", "one process"]);
    let answer = place.run(&["reshard", "a@seq:1", "b", "--to", "4x1x1", "--worker", "2/2"]);
    assert_eq!((answer.code, answer.err.contains("i/N")), (2, true), "{answer:#?}");
    assert_eq!(place.listed(), ["a"]);
}

#[test]
fn workers_of_one_plan_may_spell_its_places_otherwise() {
    let place = Place::new();
    place.done(&["convert", &fixture(DCP), "a", "--to", "2x1x2", "--heads", "4"]);
    let first = place.json(&["reshard", "a@seq:1", "b", "--to", "4x1x1", "--worker", "0/2"]);
    let second = place.json(&["reshard", "./a@seq:1", "./b/", "--to", "4x1x1", "--worker", "1/2"]);
    assert_eq!(first["result"]["plan"], second["result"]["plan"]);
    assert_eq!(second["result"]["sequence"], 1, "{second}");
    place.done(&["verify", "b"]);
}

#[test]
fn a_foreign_source_that_was_written_again_is_another_plan() {
    let place = Place::new();
    let source = place.copy(DCP, "source");
    let convert = ["convert", "source", "root", "--to", "4x1x1", "--heads", "4", "--worker"];
    let first = place.json(&[&convert[..], &["0/2"]].concat());
    for name in crate::place::names(&source) {
        let file = source.join(name);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, bytes).unwrap();
    }
    let second = place.json(&[&convert[..], &["1/2"]].concat());
    assert_ne!(first["result"]["plan"], second["result"]["plan"]);
    assert!(second["result"]["missing_files"].as_u64() > Some(0), "{second}");
    let again = place.json(&[&convert[..], &["0/2"]].concat());
    assert_eq!(
        (&again["result"]["plan"], &again["result"]["sequence"]),
        (&second["result"]["plan"], &1.into())
    );
}
