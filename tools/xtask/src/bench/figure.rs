//! [`Figure`]: what was measured, and what it is held against.

use serde::Serialize;

use super::Spread;

/// One figure and what it is held against.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) what: String,
    unit: &'static str,
    pub(super) value: Spread,
    /// The target, and whether it is an upper bound.
    target: Option<Target>,
    pub(super) met: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    /// Whether `value` is on its side; not a number never is.
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl Figure {
    pub(super) fn new(
        what: impl Into<String>,
        unit: &'static str,
        value: Spread,
        target: Option<Target>,
    ) -> Self {
        let met = target.map(|target| target.is_met(value.median));
        let figure = Self { what: what.into(), unit, value, target, met };
        figure.print();
        figure
    }

    fn print(&self) {
        let target = match self.target {
            Some(Target::AtMost(most)) => format!("at most {most}"),
            Some(Target::AtLeast(least)) => format!("at least {least}"),
            None => String::new(),
        };
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        println!(
            "  {:<62} {:>9.3} {:<6} ({:.3} to {:.3})  {target} {met}",
            self.what, self.value.median, self.unit, self.value.least, self.value.most
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_on_its_own_side_only() {
        let of = |value, target| Figure::new("x", "s", Spread::of([value]), Some(target)).met;
        assert_eq!(of(1.0, Target::AtMost(2.0)), Some(true));
        assert_eq!(of(3.0, Target::AtMost(2.0)), Some(false));
        assert_eq!(of(3.0, Target::AtLeast(2.0)), Some(true));
        assert_eq!(of(1.0, Target::AtLeast(2.0)), Some(false));
        assert_eq!(of(f64::NAN, Target::AtMost(2.0)), Some(false));
    }
}
