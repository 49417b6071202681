//! Tests of the bytes of records.

use super::super::fold::tests::{commit, record};
use super::*;

fn bytes() -> Vec<u8> {
    record(3, commit("step-3")).encode().unwrap()
}

/// Gives changed JSON a check that fits, as another program's record would have.
fn sealed(body: &str) -> Vec<u8> {
    let body = body.strip_suffix('}').unwrap();
    format!("{body}{CHECK}{}{END}", Sha256Digest::of(body.as_bytes())).into_bytes()
}

fn changed(from: &str, to: &str) -> Vec<u8> {
    let json = serde_json::to_string(&record(3, commit("step-3"))).unwrap();
    assert!(json.contains(from), "{json}");
    sealed(&json.replacen(from, to, 1))
}

#[test]
fn a_record_is_one_line_of_json_that_is_read_back_as_it_was() {
    for action in super::super::fold::tests::all_actions() {
        let mut written = record(64, action);
        written.state = Some(State::default());
        let bytes = written.encode().unwrap();
        assert_eq!(Record::decode("x", &bytes).unwrap(), written);
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["check"].as_str().unwrap().len(), 64);
        assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
    }
}

#[test]
fn the_written_form_stays_as_it_is() {
    let text = String::from_utf8(bytes()).unwrap();
    let digest = "07".repeat(32);
    let expected = format!(
        r#"{{"format":1,"must_understand":[],"root":"00000000000000000000000000000009","seq":3,"prev":"{digest}","nonce":"00000000000000000000000000000003","writer":"test","time_ms":0,"run":"main","epoch":0,"parent":null,"action":{{"commit":{{"step":3,"attempt":"step-3","manifest":{{"sha256":"{digest}","size":1}},"directories":["step-3"]}}}}"#
    );
    assert_eq!(text, format!("{expected}{CHECK}{}{END}", Sha256Digest::of(expected.as_bytes())));
}

#[test]
fn what_a_later_minor_form_adds_to_an_action_or_a_state_is_passed_over() {
    let plain = record(3, commit("step-3"));
    let added = changed(r#""directories":["step-3"]"#, r#""directories":["step-3"],"mood":{"a":[1]}"#);
    assert_eq!(Record::decode("x", &added).unwrap(), plain);
    let measured =
        changed(r#""directories":["step-3"]"#, r#""directories":["step-3"],"metrics":{"loss":0.1}"#);
    let Action::Commit(found) = Record::decode("x", &measured).unwrap().action else {
        panic!("another action")
    };
    assert_eq!(found.metrics.values().map(|it| it.get()).collect::<Vec<_>>(), [0.1]);
    let wrong =
        changed(r#""directories":["step-3"]"#, r#""directories":["step-3"],"metrics":{"loss":"low"}"#);
    assert!(matches!(Record::decode("x", &wrong), Err(CommitError::Damaged { .. })));
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let good = bytes();
    for at in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[at / 8] ^= 1 << (at % 8);
        assert!(matches!(Record::decode("x", &bad), Err(CommitError::Damaged { .. })), "bit {at}");
    }
}

#[test]
fn a_record_that_was_cut_or_grew_is_found() {
    let good = bytes();
    for len in 0..good.len() {
        assert!(matches!(Record::decode("x", &good[..len]), Err(CommitError::Damaged { .. })), "{len} bytes");
    }
    assert!(Record::decode("x", &[good.as_slice(), b"\n"].concat()).is_err());
    assert!(Record::decode("x", &[good.as_slice(), &good].concat()).is_err());
}

#[test]
fn unknown_keys_are_ignored_wherever_they_are() {
    for (from, to) in
        [("\"writer\"", "\"color\":{\"a\":[1]},\"writer\""), ("\"step\"", "\"loss\":0.5,\"step\"")]
    {
        assert_eq!(Record::decode("x", &changed(from, to)).unwrap(), record(3, commit("step-3")));
    }
}

#[test]
fn what_must_be_understood_and_is_not_is_refused_by_name() {
    let bad = changed("\"must_understand\":[]", "\"must_understand\":[\"shadow-log\",\"tides\"]");
    let error = Record::decode("commits/3", &bad).unwrap_err();
    assert!(
        matches!(&error, CommitError::NotUnderstood { features, .. } if features == "shadow-log, tides"),
        "{error}"
    );
    assert!(error.to_string().contains("commits/3"));
}

#[test]
fn a_later_format_is_refused_even_where_nothing_else_is_known() {
    let error = Record::decode("x", &sealed(r#"{"format":2,"all":"different"}"#)).unwrap_err();
    assert!(matches!(error, CommitError::Newer { format: 2, known: 1, .. }), "{error}");
}

#[test]
fn content_that_cannot_be_is_refused() {
    for (from, to) in [
        ("\"seq\":3", "\"seq\":0"),
        ("\"seq\":3", "\"seq\":-1"),
        ("\"epoch\":0", "\"epoch\":0,\"epoch\":1"),
        ("\"attempt\":\"step-3\"", "\"attempt\":\"../etc\""),
        ("\"run\":\"main\"", "\"run\":\"a b\""),
        ("{\"commit\"", "{\"conquer\""),
        ("\"nonce\":\"0", "\"nonce\":\"x"),
    ] {
        let decoded = Record::decode("x", &changed(from, to));
        assert!(matches!(decoded, Err(CommitError::Damaged { .. })), "{to}: {decoded:?}");
    }
}
