//! [`Row`]: one line of the result: ours, what it is held beside, their relation, the target, and whether it is met.

use std::fmt;

use serde::Serialize;

use super::Part;
use crate::bench::figure::Target;
use crate::bench::measurement::Spread;

/// What a row's figures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Relation {
    /// Seconds of both; how many times as fast as the other ours is.
    TimesAsFast,
    /// Seconds of both; ours over the other's.
    TimesAsLong,
    /// Seconds of both; ours less the other's, in seconds.
    Longer,
    /// Seconds of ours, as a share of the other's.
    ShareOf,
}

/// One line of the result.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) part: Part,
    pub(super) what: String,
    pub(super) beside: String,
    pub(super) relation: Relation,
    /// Seconds.
    pub(super) ours: Spread,
    /// Seconds.
    pub(super) theirs: Spread,
    /// Round by round.
    pub(super) value: Spread,
    /// The same, of processor time, where it says something.
    pub(super) by_processor: Option<Spread>,
    pub(super) target: Option<Target>,
    pub(super) met: Option<bool>,
}

impl Row {
    /// From the seconds of each round.
    pub(super) fn new(
        (part, relation): (Part, Relation),
        (what, ours): (impl Into<String>, Vec<f64>),
        (beside, theirs): (impl Into<String>, Vec<f64>),
        target: Option<Target>,
    ) -> Self {
        let value = Spread::of(relation.of(&ours, &theirs));
        let met = target.map(|target| target.is_met(value.median));
        let (what, beside) = (what.into(), beside.into());
        let (ours, theirs) = (Spread::of(ours), Spread::of(theirs));
        Self { part, what, beside, relation, ours, theirs, value, by_processor: None, target, met }
    }

    /// With the processor time of each round beside it.
    pub(super) fn with_processor(mut self, ours: &[f64], theirs: &[f64]) -> Self {
        let value = Spread::of(self.relation.of(ours, theirs));
        self.by_processor = value.median.is_finite().then_some(value);
        self
    }
}

impl Row {
    /// Held against its target by processor time, where there is one: for what one thread does, which other work on the machine does
    /// not change.
    pub(super) fn judged_by_processor(mut self) -> Self {
        let value = self.by_processor.as_ref().unwrap_or(&self.value).median;
        self.met = self.target.map(|target| target.is_met(value));
        self
    }
}

impl Relation {
    fn of(self, ours: &[f64], theirs: &[f64]) -> Vec<f64> {
        let one = |(ours, theirs): (&f64, &f64)| match self {
            Self::TimesAsFast => theirs / ours,
            Self::TimesAsLong | Self::ShareOf => ours / theirs,
            Self::Longer => ours - theirs,
        };
        ours.iter().zip(theirs).map(one).collect()
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::TimesAsFast | Self::TimesAsLong => format!("{value:.3}"),
            Self::Longer => format!("{value:.3} s"),
            Self::ShareOf => format!("{:.2} %", value * 1e2),
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::TimesAsFast => "times as fast",
            Self::TimesAsLong => "times as long",
            Self::Longer => "longer",
            Self::ShareOf => "of it",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = self.relation;
        let Spread { median, least, most, .. } = &self.value;
        writeln!(
            f,
            "{:<9} {:>9} {:<44} | {:>9} {}",
            self.part.name(),
            seconds(self.ours.median),
            self.what,
            seconds(self.theirs.median),
            self.beside
        )?;
        let processor = self.by_processor.as_ref();
        let processor = processor
            .map_or_else(String::new, |it| format!("; by processor time {}", relation.shown(it.median)));
        let range = format!("{} to {}", relation.shown(*least), relation.shown(*most));
        write!(f, "{:>19} {} ({range}){processor}", relation.shown(*median), relation.words())?;
        match (self.target, self.met) {
            (Some(target), Some(met)) => {
                let (side, bound) = match target {
                    Target::AtLeast(least) => ("at least", least),
                    Target::AtMost(most) => ("at most", most),
                };
                write!(
                    f,
                    "; target {side} {}: {}",
                    relation.shown(bound),
                    if met { "MET" } else { "NOT MET" }
                )
            }
            _ => Ok(()),
        }
    }
}

fn seconds(value: f64) -> String {
    if value >= 10.0 { format!("{value:.1} s") } else { format!("{:.1} ms", value * 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(relation: Relation, ours: &[f64], theirs: &[f64], target: Target) -> Row {
        let of = (Part::Speed, relation);
        Row::new(of, ("a", ours.to_vec()), ("b", theirs.to_vec()), Some(target))
    }

    #[test]
    fn ratios_are_within_a_round_so_that_a_slow_machine_slows_both() {
        let row = row(Relation::TimesAsFast, &[1.5, 15.0], &[3.0, 30.0], Target::AtLeast(1.9));
        assert_eq!(row.value.rounds, [2.0, 2.0]);
        assert_eq!(row.met, Some(true));
        let text = row.to_string();
        assert!(
            text.contains("2.000 times as fast") && text.contains("target at least 1.900: MET"),
            "{text}"
        );
    }

    #[test]
    fn a_row_says_that_its_target_is_not_met() {
        let late = row(Relation::Longer, &[5.0, 6.0, 7.0], &[3.0, 4.0, 5.0], Target::AtMost(1.0));
        assert_eq!(late.met, Some(false));
        assert!(late.to_string().contains("2.000 s longer") && late.to_string().contains("NOT MET"));
        let share = row(Relation::ShareOf, &[0.2], &[10.0], Target::AtMost(0.01)).to_string();
        assert!(share.contains("2.00 % of it") && share.contains("at most 1.00 %: NOT MET"), "{share}");
    }

    #[test]
    fn processor_time_that_the_system_does_not_tell_is_left_out() {
        let row = row(Relation::TimesAsFast, &[1.0], &[2.0], Target::AtLeast(1.0));
        assert!(row.with_processor(&[f64::NAN], &[2.0]).by_processor.is_none());
    }
}
