//! [`plan()`]: which checkpoints of a run stay and which go, each with all its reasons. Pure.
//!
//! A run's *line* is what it would fall back along: the newest checkpoint and its ancestors. What the run has not gone on from lies *beside* it
//! (it fell back behind it, for whatever reason); such checkpoints count for no place of the newest ones and for no interval of steps. They stay
//! while they are newer than the oldest of the newest ones that stay, and as one of the best if no more are better in the whole run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use serde::Serialize;

use super::{
    policy::{Best, Order, Policy},
    times::Times,
};
use crate::commit::{Checkpoint, Finite, Label, Seq, State};

/// What is to become of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Its number.
    pub seq: Seq,
    /// Its training step.
    pub step: u64,
    /// Whether the run goes on from it, directly or in the end.
    pub on_line: bool,
    /// Seconds since it was committed, where that mattered and is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Why it stays; it goes if there is no reason.
    pub stays: Vec<Stay>,
    /// What would have kept it, and why it does not.
    pub goes: Vec<Go>,
}

/// Why a checkpoint stays.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Stay {
    /// It is the newest of its run, which resumes from it.
    Newest,
    /// It is the newest of its run that was read in full and found whole.
    NewestVerified,
    /// It is pinned.
    Pinned,
    /// It has names.
    Tagged {
        /// The names.
        tags: Vec<Label>,
    },
    /// It is among the newest of the line.
    Last {
        /// Its place, the newest first.
        place: usize,
        /// How many stay.
        count: usize,
    },
    /// It is beside the line, and not older than all that stay as the newest ones.
    Beside {
        /// How many of the line stay.
        count: usize,
    },
    /// It is the first of an interval of steps.
    Every {
        /// Where the interval begins.
        from: u64,
        /// Its length.
        steps: u64,
    },
    /// It is young.
    Within {
        /// The period, in seconds.
        seconds: u64,
    },
    /// The store did not tell how old it is.
    AgeUnknown,
    /// It is among the best.
    Best {
        /// By what.
        metric: Label,
        /// Which values are good.
        order: Order,
        /// Its value.
        value: Finite,
        /// Its place, the best first.
        place: usize,
        /// How many stay.
        count: usize,
    },
}

/// Why a rule does not keep a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Go {
    /// The run has not gone on from it, and went on long since.
    Beside,
    /// So many of the line are newer.
    Last {
        /// Its place.
        place: usize,
        /// How many stay.
        count: usize,
    },
    /// Another stands for its interval of steps.
    Every {
        /// The other one.
        kept: Seq,
        /// The length of the interval.
        steps: u64,
    },
    /// It is too old.
    Older {
        /// The period, in seconds.
        seconds: u64,
    },
    /// Enough are better.
    NotBest {
        /// By what.
        metric: Label,
        /// Which values are good.
        order: Order,
        /// Its value.
        value: Finite,
        /// Its place.
        place: usize,
        /// How many stay.
        count: usize,
    },
    /// Nobody measured it.
    NoMetric {
        /// What.
        metric: Label,
    },
}

impl Decision {
    /// Whether it stays.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        !self.stays.is_empty()
    }
}

/// Decides on all checkpoints of a run, the newest first.
#[must_use]
pub fn plan(state: &State, run: &Label, times: &Times, policy: &Policy) -> Vec<Decision> {
    let of_run: Vec<(Seq, &Checkpoint)> = state
        .checkpoints
        .iter()
        .rev()
        .filter(|(_, checkpoint)| checkpoint.run == *run)
        .map(|(seq, checkpoint)| (*seq, checkpoint))
        .collect();
    let line: Vec<(Seq, &Checkpoint)> = state.line(run).collect();
    let on_line: BTreeSet<Seq> = line.iter().map(|(seq, _)| *seq).collect();
    let decision = |(seq, checkpoint): &(Seq, &Checkpoint)| Decision {
        seq: *seq,
        step: checkpoint.step,
        on_line: on_line.contains(seq),
        age_seconds: policy.within.and_then(|_| times.age(*seq)).map(|age| age.as_secs()),
        stays: Vec::new(),
        goes: Vec::new(),
    };
    let mut decisions: Vec<Decision> = of_run.iter().map(decision).collect();
    always(state, &of_run, &mut decisions);
    if let Some(count) = policy.last {
        last(&line, count, &mut decisions);
    }
    if let Some(steps) = policy.every {
        every(&line, steps, &mut decisions);
    }
    if let Some(period) = policy.within {
        within(times, period, &mut decisions);
    }
    let rules: BTreeSet<&Best> = policy.best.iter().collect();
    for rule in rules {
        best(&of_run, rule, &mut decisions);
    }
    decisions
}

/// What stays under any policy.
fn always(state: &State, of_run: &[(Seq, &Checkpoint)], decisions: &mut [Decision]) {
    let mut tags: BTreeMap<Seq, Vec<Label>> = BTreeMap::new();
    for (tag, seq) in &state.tags {
        tags.entry(*seq).or_default().push(tag.clone());
    }
    let verified = of_run.iter().find(|(_, checkpoint)| checkpoint.verified.is_some()).map(|(seq, _)| *seq);
    for (at, (decision, (seq, checkpoint))) in decisions.iter_mut().zip(of_run).enumerate() {
        let stays = &mut decision.stays;
        stays.extend((at == 0).then_some(Stay::Newest));
        stays.extend((verified == Some(*seq)).then_some(Stay::NewestVerified));
        stays.extend(checkpoint.pinned.then_some(Stay::Pinned));
        stays.extend(tags.remove(seq).map(|tags| Stay::Tagged { tags }));
    }
}

fn last(line: &[(Seq, &Checkpoint)], count: NonZeroUsize, decisions: &mut [Decision]) {
    let count = count.get();
    let places: BTreeMap<Seq, usize> = line.iter().map(|(seq, _)| *seq).zip(1..).collect();
    // Where the line is shorter than what shall stay, nothing is old yet.
    let oldest = count.checked_sub(1).and_then(|at| line.get(at)).map(|(seq, _)| *seq);
    for decision in decisions {
        match places.get(&decision.seq) {
            Some(&place) if place <= count => decision.stays.push(Stay::Last { place, count }),
            Some(&place) => decision.goes.push(Go::Last { place, count }),
            None if oldest.is_none_or(|oldest| decision.seq > oldest) => {
                decision.stays.push(Stay::Beside { count });
            }
            None => beside(&mut decision.goes),
        }
    }
}

/// The first of each interval, so that what was once chosen stays chosen; of one step the newest, which is what its revision means.
fn every(line: &[(Seq, &Checkpoint)], steps: NonZeroU64, decisions: &mut [Decision]) {
    let mut first: BTreeMap<u64, (u64, Reverse<Seq>)> = BTreeMap::new();
    for (seq, checkpoint) in line {
        let this = (checkpoint.step, Reverse(*seq));
        first.entry(checkpoint.step / steps).and_modify(|found| *found = this.min(*found)).or_insert(this);
    }
    let steps = steps.get();
    for decision in decisions {
        let interval = decision.step / steps;
        match first.get(&interval) {
            _ if !decision.on_line => beside(&mut decision.goes),
            Some((_, Reverse(kept))) if *kept == decision.seq => {
                decision.stays.push(Stay::Every { from: interval.saturating_mul(steps), steps });
            }
            Some((_, Reverse(kept))) => decision.goes.push(Go::Every { kept: *kept, steps }),
            None => {}
        }
    }
}

/// One who lies beside the line is told so once.
fn beside(goes: &mut Vec<Go>) {
    if !goes.contains(&Go::Beside) {
        goes.push(Go::Beside);
    }
}

fn within(times: &Times, period: Duration, decisions: &mut [Decision]) {
    let seconds = period.as_secs();
    for decision in decisions {
        match times.age(decision.seq) {
            None => decision.stays.push(Stay::AgeUnknown),
            Some(age) if age <= period => decision.stays.push(Stay::Within { seconds }),
            Some(_) => decision.goes.push(Go::Older { seconds }),
        }
    }
}

fn best(of_run: &[(Seq, &Checkpoint)], rule: &Best, decisions: &mut [Decision]) {
    let Best { metric, order, count } = rule;
    let count = count.get();
    let mut measured: Vec<(Finite, Seq)> = of_run
        .iter()
        .filter_map(|(seq, checkpoint)| Some((*checkpoint.metrics.get(metric)?, *seq)))
        .collect();
    // Of equals the newest is the best.
    measured.sort_by(|(a, at), (b, bt)| {
        let by_value = if *order == Order::Min { a.cmp(b) } else { b.cmp(a) };
        by_value.then(bt.cmp(at))
    });
    let on_line: BTreeSet<Seq> = decisions.iter().filter(|it| it.on_line).map(|it| it.seq).collect();
    let (mut of_line, mut places) = (0, BTreeMap::new());
    for (of_all, (value, seq)) in measured.into_iter().enumerate() {
        let line = on_line.contains(&seq);
        of_line += usize::from(line);
        places.insert(seq, (value, if line { of_line } else { of_all + 1 }));
    }
    for decision in decisions {
        let (metric, order) = (metric.clone(), *order);
        match places.get(&decision.seq) {
            Some(&(value, place)) if place <= count => {
                decision.stays.push(Stay::Best { metric, order, value, place, count });
            }
            Some(&(value, place)) => decision.goes.push(Go::NotBest { metric, order, value, place, count }),
            None => decision.goes.push(Go::NoMetric { metric }),
        }
    }
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::NewestVerified => f.write_str("newest verified"),
            Self::Pinned => f.write_str("pinned"),
            Self::Tagged { tags } => {
                let tags: Vec<&str> = tags.iter().map(Label::as_str).collect();
                write!(f, "tagged {}", tags.join(" "))
            }
            Self::Last { place, count } => write!(f, "{place} of the last {count}"),
            Self::Beside { count } => write!(f, "beside the line, not older than the last {count}"),
            Self::Every { from, steps } => write!(f, "first from step {from} on, every {steps}"),
            Self::Within { seconds } => write!(f, "younger than {}", period(*seconds)),
            Self::AgeUnknown => f.write_str("its age is not known"),
            Self::Best { metric, order, value, place, count } => {
                write!(f, "{place} of the best {count} by {metric} {order} ({value})")
            }
        }
    }
}

impl fmt::Display for Go {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside => f.write_str("beside the line"),
            Self::Last { place, count } => write!(f, "number {place}, {count} stay"),
            Self::Every { kept, steps } => write!(f, "seq:{kept} stands for its {steps} steps"),
            Self::Older { seconds } => write!(f, "older than {}", period(*seconds)),
            Self::NotBest { metric, order, value, place, count } => {
                write!(f, "number {place} by {metric} {order} ({value}), {count} stay")
            }
            Self::NoMetric { metric } => write!(f, "has no {metric}"),
        }
    }
}

/// `14d`, `36h`, `90m`, `5s`: the largest unit that is exact.
fn period(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let exact = units.iter().find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    exact.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}
