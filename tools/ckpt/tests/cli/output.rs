//! What the command prints, whatever the verb: modes, help, colour, completions.

use crate::place::{Place, fixture};

const DCP: &str = "torch_dcp/fsdp2_tp2";

#[test]
fn help_topics_and_verbs_are_explained_and_others_refused() {
    let place = Place::new();
    let codes = place.done(&["help", "exit-codes"]).out;
    for code in ["   0  ", "  20  ", " 130  "] {
        assert!(codes.contains(code), "{codes}");
    }
    for topic in ["targets", "meshes", "formats", "placement", "convert"] {
        assert!(place.done(&["help", topic]).out.lines().count() > 3, "{topic}");
    }
    place.run(&["help", "nonsense"]).refused(10, &["nonsense", "exit-codes"]);
    assert!(place.done(&["completions", "bash"]).out.contains("_ckpt"));
}

#[test]
fn data_goes_to_stdout_and_nothing_but_data() {
    let place = Place::new();
    for mode in ["human", "plain", "json"] {
        let answer = place.done(&["inspect", &fixture(DCP), "--format", mode]);
        assert!(answer.err.is_empty(), "{answer:#?}");
        assert!(!answer.out.is_empty() && !answer.out.contains('\u{1b}'), "{mode}");
    }
    let coloured = place.done(&["inspect", &fixture(DCP), "--format", "human", "--color", "always"]);
    assert!(coloured.out.contains('\u{1b}'));
}

#[test]
fn a_failure_in_json_mode_is_a_record_on_stderr() {
    let answer = Place::new().run(&["inspect", "absent", "--json"]);
    assert_eq!((answer.code, answer.out.as_str()), (10, ""));
    let record: serde_json::Value = serde_json::from_str(&answer.err).unwrap();
    assert_eq!((&record["message_type"], &record["code"]), (&"exit_error".into(), &10.into()));
    assert!(record["message"].as_str().unwrap().contains("absent") && record["hint"].is_string());
}

#[test]
fn quiet_prints_what_the_next_command_takes() {
    let place = Place::new();
    let target = place.done(&["convert", &fixture(DCP), "out", "--quiet"]).out;
    assert_eq!(target, "out@seq:1\n");
    place.done(&["verify", target.trim()]);
}
