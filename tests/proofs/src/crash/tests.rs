//! The proof itself: what it says is bad is bad, and a state can be found again.

use super::{trial::tried_in, *};

#[test]
fn a_state_is_found_again_by_its_text() {
    for text in ["save/3/117/drawn-5", "4@forget-continued/3/0/all-12"] {
        assert_eq!(text.parse::<Way>().unwrap().to_string(), text);
    }
    for wrong in
        ["", "save/3/117", "sav/3/117/all-1", "save/3/x/all-1", "save/3/117/some-1", "x@save/3/1/all-1"]
    {
        assert!(wrong.parse::<Way>().is_err(), "{wrong:?}");
    }
}

#[test]
fn the_same_schedule_is_the_same_recording() {
    let journal = |schedule| Scenario::Save.record(schedule, None).unwrap().unwrap().journal;
    assert_eq!(journal(5), journal(5));
    assert_ne!(journal(5), journal(7));
}

#[test]
fn whoever_is_there_at_once_every_schedule_is_carried_out() {
    // In some, what one process notes something about was retired by another one that collects.
    for n in 0..80 {
        let recorded = Scenario::Busy.record(schedule(1, n), None);
        assert!(recorded.unwrap_or_else(|error| panic!("schedule {n}: {error}")).is_some());
    }
}

#[test]
fn a_process_that_ends_before_it_is_killed_is_no_recording() {
    assert!(Scenario::Continued.record(10, None).unwrap().is_some());
    assert!(Scenario::Continued.record(9_999, None).unwrap().is_none());
}

fn number_of(mutation: &str) -> usize {
    Mutation::all().iter().position(|it| it.to_string() == mutation).unwrap()
}

#[test]
fn a_missing_sync_of_the_record_is_found_and_its_state_is_bad_again() {
    let number = number_of("no fsync of the record");
    let row = tried(number, Mutation::all()[number]).unwrap();
    let (way, what) = row.found.unwrap();
    assert_eq!(again(way.parse().unwrap()).unwrap().unwrap().what, what);
    let whole = way.split_once('@').unwrap().1;
    assert!(again(whole.parse().unwrap()).unwrap().is_none(), "without the mutation it is not");
}

#[test]
fn an_error_that_a_process_meets_while_it_runs_is_told_and_finds_no_mutation() {
    let number = number_of("the part before the blob");
    // Whoever commits looks for what the parts name, so this save never gets to its end.
    let row = tried_in([Scenario::Save], number, Mutation::all()[number]).unwrap();
    assert_eq!((row.scenario.as_deref(), &row.found, row.states), (None, &None, 0));
    assert!(row.beside().ends_with("no such object)"), "{row:?}");
}
