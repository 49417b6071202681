//! Bad files: each is refused at the step that its model names, by kind, saying where the fault is, and in words that are
//! harmless to a terminal. None makes anything panic.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use dcp::{
    Cancel, ErrorKind, Severity, Silent,
    formats::{OpenOptions, Strictness, open},
    ops::verify::{VerifyOptions, verify},
};
use fixtures::{Hostile, Refusal};

/// What a refusal says: its kind, and all of its words.
struct Said {
    kind: Refusal,
    words: String,
}

fn kind(kind: ErrorKind) -> Refusal {
    match kind {
        ErrorKind::NotFound => Refusal::NotACheckpoint,
        ErrorKind::Corrupt => Refusal::Corrupt,
        ErrorKind::Unsupported => Refusal::Unsupported,
        other => unreachable!("a hostile file is no matter of {other:?}"),
    }
}

fn of(error: &dcp::Error) -> Said {
    Said { kind: kind(error.kind()), words: format!("{error} {}", error.hint_text().unwrap_or_default()) }
}

fn at_open(case: &Hostile) -> Option<Said> {
    open(&fixtures::path(&case.name), OpenOptions::new()).err().as_ref().map(of)
}

/// What `verify` finds, which opens leniently so that it can name everything.
fn at_verify(case: &Hostile) -> Option<Said> {
    let lenient = OpenOptions::new().strictness(Strictness::Lenient);
    let source = match open(&fixtures::path(&case.name), lenient) {
        Ok(source) => source,
        Err(error) => return Some(of(&error)),
    };
    let report = verify(&*source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let words: String = errors.map(|finding| serde_json::to_string(finding).unwrap()).collect();
    (!words.is_empty()).then_some(Said { kind: Refusal::Corrupt, words })
}

fn judge(case: &Hostile, said: Option<Said>, step: &str) -> Option<String> {
    let Some(said) = said else { return Some(format!("{} ({}): accepted at {step}", case.name, case.fault)) };
    let harmless = !said.words.chars().any(char::is_control);
    let located = case.names.iter().all(|name| said.words.contains(name.as_str()));
    let right = said.kind == case.refusal;
    (!(harmless && located && right)).then(|| {
        format!(
            "{} ({}): at {step} as {:?}, want {:?} naming {:?}: {:?}",
            case.name, case.fault, said.kind, case.refusal, case.names, said.words
        )
    })
}

#[test]
fn every_bad_file_is_refused_by_kind_and_place_at_the_step_it_must_be() {
    let cases = fixtures::hostile();
    assert!(cases.len() > 40);
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| match case.at.as_str() {
            "open" => judge(case, at_open(case), "open"),
            _ => judge(case, at_open(case).or_else(|| at_verify(case)), "verify"),
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn verify_names_every_bad_file_too() {
    let wrong: Vec<String> =
        fixtures::hostile().iter().filter_map(|case| judge(case, at_verify(case), "verify")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
