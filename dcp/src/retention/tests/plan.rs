//! Properties of what a policy comes to.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU64,
    time::SystemTime,
};

use proptest::prelude::*;

use super::*;
use crate::{
    commit::{Checkpoint, FORMAT, Finite, ManifestRef, Record, Retire, RootId, State},
    digest::Sha256Digest,
    store::Nonce,
};

#[derive(Debug, Clone)]
struct Made {
    state: State,
    times: Times,
}

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn checkpoint(number: u64, run: &str, step: u64) -> Checkpoint {
    Checkpoint {
        run: run.parse().unwrap(),
        epoch: 0,
        parent: None,
        ancestor: None,
        step,
        attempt: format!("step-{number}").parse().unwrap(),
        manifest: ManifestRef { sha256: Sha256Digest::of(b""), size: 1 },
        directories: BTreeSet::new(),
        metrics: BTreeMap::new(),
        pinned: false,
        verified: None,
    }
}

/// Checkpoints of two runs, with lines that fall back, metrics, marks, and times in any order.
fn any_root() -> impl Strategy<Value = Made> {
    let one = (
        prop::sample::select(vec!["a", "a", "b"]),
        0_u64..60,
        0_usize..4,
        prop::option::weighted(0.8, -3_i32..3),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.2), prop::bool::weighted(0.1)),
        prop::option::weighted(0.9, 0_u64..1000),
    );
    prop::collection::vec(one, 0..16).prop_map(|drafts| {
        let (mut state, mut stored) = (State::default(), Vec::new());
        for (number, (run, step, back, loss, (pinned, verified, tagged), written)) in (1_u64..).zip(drafts) {
            let mut made = checkpoint(number, run, step);
            let before: Vec<Seq> = state
                .checkpoints
                .iter()
                .rev()
                .filter(|(_, it)| it.run == made.run)
                .map(|(at, _)| *at)
                .collect();
            // Mostly the one before, sometimes one further back, sometimes none.
            made.ancestor = before.get(back.saturating_sub(1)).copied();
            made.metrics
                .extend(loss.map(|it| ("loss".parse().unwrap(), Finite::new(f64::from(it)).unwrap())));
            (made.pinned, made.verified) = (pinned, verified.then(|| seq(number)));
            if tagged {
                state.tags.insert(format!("t{number}").parse().unwrap(), seq(number));
            }
            stored.extend(written.map(|second| (seq(number), at(second))));
            state.checkpoints.insert(seq(number), made);
        }
        Made { state, times: Times::new(stored, at(1000)) }
    })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let best = prop::sample::select(vec!["loss:min:1", "loss:max:2", "loss:min:3", "other:min"]);
    let number = |most: u64| prop::option::of(1..most);
    (number(6), number(30), number(1200), prop::collection::vec(best, 0..3)).prop_map(
        |(last, every, within, best)| Policy {
            last: last.and_then(|it| NonZeroUsize::new(usize::try_from(it).unwrap())),
            every: every.and_then(NonZeroU64::new),
            within: within.map(Duration::from_secs),
            best: best.into_iter().map(|it| it.parse().unwrap()).collect(),
        },
    )
}

fn runs() -> [Label; 2] {
    ["a".parse().unwrap(), "b".parse().unwrap()]
}

fn kept(made: &Made, policy: &Policy) -> BTreeSet<Seq> {
    let each = runs().into_iter().flat_map(|run| plan(&made.state, &run, &made.times, policy));
    each.filter(Decision::is_kept).map(|decision| decision.seq).collect()
}

/// Retires as the log does, which must agree.
fn apply_retire(state: &mut State, gone: Seq) {
    let run = state.checkpoints[&gone].run.clone();
    let record = Record {
        format: FORMAT,
        must_understand: Vec::new(),
        root: RootId::new(Nonce::from_bits(9)),
        seq: seq(100),
        prev: None,
        nonce: Nonce::from_bits(1),
        writer: String::new(),
        time_ms: 0,
        run,
        epoch: 0,
        parent: None,
        action: Action::Retire(Retire { checkpoint: gone }),
        state: None,
    };
    state.apply(&record).unwrap();
}

proptest! {
    #[test]
    fn what_must_stay_stays_under_any_policy_and_everything_has_a_reason(made in any_root(), policy in any_policy()) {
        for run in runs() {
            let decisions = plan(&made.state, &run, &made.times, &policy);
            let of_run = made.state.checkpoints.values().filter(|it| it.run == run).count();
            prop_assert_eq!(decisions.len(), of_run);
            prop_assert!(decisions.is_sorted_by(|a, b| a.seq > b.seq));
            prop_assert!(decisions.first().is_none_or(Decision::is_kept), "the newest");
            let verified = decisions.iter().find(|it| made.state.checkpoints[&it.seq].verified.is_some());
            prop_assert!(verified.is_none_or(Decision::is_kept), "the newest verified");
            for decision in &decisions {
                let checkpoint = &made.state.checkpoints[&decision.seq];
                let held = checkpoint.pinned || made.state.tags.values().any(|it| *it == decision.seq);
                prop_assert!(!held || decision.is_kept());
                let rules = policy != Policy::default();
                prop_assert!(!rules || !decision.stays.is_empty() || !decision.goes.is_empty(), "no reason");
            }
        }
    }

    #[test]
    fn the_log_agrees_with_all_that_goes_and_a_second_time_nothing_goes(made in any_root(), policy in any_policy()) {
        let keep = kept(&made, &policy);
        let mut after = made.clone();
        for gone in made.state.checkpoints.keys().filter(|it| !keep.contains(it)) {
            apply_retire(&mut after.state, *gone);
        }
        prop_assert_eq!(after.state.checkpoints.keys().copied().collect::<BTreeSet<_>>(), keep.clone());
        prop_assert_eq!(kept(&after, &policy), keep);
    }

    #[test]
    fn a_policy_that_keeps_more_forgets_nothing_else(made in any_root(), policy in any_policy(), which in 0_u8..5) {
        let mut more = policy.clone();
        match which {
            0 => more.last = Some(policy.last.map_or(NonZeroUsize::MIN, |it| it.saturating_add(1))),
            1 => more.within = Some(policy.within.unwrap_or_default() + Duration::from_secs(100)),
            2 => more.best.iter_mut().for_each(|it| it.count = it.count.saturating_add(1)),
            3 => more.best.push("loss:min:2".parse().unwrap()),
            _ => more.every = policy.every.or(NonZeroU64::new(7)),
        }
        let (less, more) = (kept(&made, &policy), kept(&made, &more));
        prop_assert!(less.is_subset(&more), "{:?} {:?}", less, more);
    }

    #[test]
    fn the_order_of_rules_and_times_does_not_matter(made in any_root(), policy in any_policy()) {
        let mut turned = policy.clone();
        turned.best.reverse();
        turned.best.extend(policy.best.first().cloned());
        let stored: Vec<_> = made.state.checkpoints.keys().filter_map(|it| Some((*it, made.times.written(*it)?))).collect();
        let other = Made { times: Times::new(stored.into_iter().rev(), at(1000)), ..made.clone() };
        for run in runs() {
            prop_assert_eq!(
                plan(&made.state, &run, &made.times, &policy),
                plan(&other.state, &run, &other.times, &turned)
            );
        }
    }
}

#[test]
fn of_each_interval_the_first_stays_and_of_one_step_the_newest() {
    let mut state = State::default();
    let mut before = None;
    for (number, step) in [(1, 0), (2, 5), (3, 10), (4, 10), (5, 19), (6, 25), (7, 31)] {
        let mut made = checkpoint(number, "a", step);
        made.ancestor = before.replace(seq(number));
        state.checkpoints.insert(seq(number), made);
    }
    let policy = Policy { every: NonZeroU64::new(10), ..Policy::default() };
    let decisions = plan(&state, &runs()[0], &Times::new([], at(0)), &policy);
    let kept: Vec<u64> = decisions.iter().filter(|it| it.is_kept()).map(|it| it.seq.get()).collect();
    assert_eq!(kept, [7, 6, 4, 1]);
    assert_eq!(decisions[4].goes, [Go::Every { kept: seq(4), steps: 10 }]);
    assert_eq!(decisions[4].goes[0].to_string(), "seq:4 stands for its 10 steps");
}

#[test]
fn one_of_the_best_that_was_left_beside_the_line_takes_no_place_on_it() {
    let mut state = State::default();
    for (number, ancestor, loss) in [(1, None, 5.0), (2, Some(1), 1.0), (3, Some(1), 4.0), (4, Some(3), 3.0)]
    {
        let mut made = checkpoint(number, "a", number);
        made.ancestor = ancestor.map(seq);
        made.metrics.insert("loss".parse().unwrap(), Finite::new(loss).unwrap());
        state.checkpoints.insert(seq(number), made);
    }
    let policy = Policy { best: vec!["loss:min:2".parse().unwrap()], ..Policy::default() };
    let decisions = plan(&state, &runs()[0], &Times::new([], at(0)), &policy);
    let kept: Vec<u64> = decisions.iter().filter(|it| it.is_kept()).map(|it| it.seq.get()).collect();
    assert_eq!(kept, [4, 3, 2], "4 and 3 of the line, 2 beside it");
}
