//! [`Schedule`]: the learning rate of a step, with linear warm-up, a cosine or a line down to a floor, or none.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How the rate falls after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decline {
    /// Not at all.
    Constant,
    /// In a straight line.
    Linear,
    /// Along half a cosine.
    Cosine,
}

/// Learning rates as a pure function of the step: nothing of it is state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// How the rate falls.
    pub decline: Decline,
    /// The highest rate, reached at the end of the warm-up.
    pub peak: f64,
    /// The rate at the end and after it.
    pub floor: f64,
    /// Steps that rise linearly.
    pub warmup: u64,
    /// Steps until the floor, warm-up included.
    pub total: u64,
}

impl Schedule {
    /// Checks that the schedule can be followed.
    ///
    /// # Errors
    /// `Config` for rates that are negative or not finite, a floor above the peak, a warm-up longer than the whole.
    pub fn check(&self) -> Result<()> {
        let Self { peak, floor, warmup, total, .. } = *self;
        if !(peak.is_finite() && floor.is_finite() && 0.0 <= floor && floor <= peak) {
            return Err(Error::config(format!("learning rates: peak {peak}, floor {floor}"))
                .hint("0 <= floor <= peak, both finite"));
        }
        if warmup > total {
            return Err(Error::config(format!("a warm-up of {warmup} steps in a schedule of {total}"))
                .hint("warm up in fewer steps, or train for more"));
        }
        Ok(())
    }

    /// The rate of `step`; steps count from 1, as the optimizer's do.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
    pub fn rate(&self, step: u64) -> f64 {
        let Self { decline, peak, floor, warmup, total } = *self;
        if step < warmup {
            return peak * step as f64 / warmup as f64;
        }
        if decline == Decline::Constant {
            return peak;
        }
        if step >= total {
            return if total == warmup && step == total { peak } else { floor };
        }
        let done = (step - warmup) as f64 / (total - warmup) as f64;
        if decline == Decline::Linear {
            return peak - (peak - floor) * done;
        }
        // In pure Rust, so that every machine of a run has the same rate to the bit.
        floor + 0.5 * (peak - floor) * (1.0 + libm::cos(std::f64::consts::PI * done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule =
        Schedule { decline: Decline::Cosine, peak: 1e-3, floor: 1e-4, warmup: 10, total: 110 };

    #[test]
    fn the_rate_rises_linearly_then_follows_a_cosine_to_the_floor() {
        assert_eq!(SCHEDULE.rate(1), 1e-4);
        assert_eq!(SCHEDULE.rate(5), 5e-4);
        assert_eq!(SCHEDULE.rate(10), 1e-3);
        assert!((SCHEDULE.rate(60) - 5.5e-4).abs() < 1e-15);
        assert_eq!(SCHEDULE.rate(110), 1e-4);
        assert_eq!(SCHEDULE.rate(1_000_000), 1e-4);
        assert!((11..110).all(|step| SCHEDULE.rate(step) > SCHEDULE.rate(step + 1)));
    }

    #[test]
    fn without_warm_up_the_first_step_has_nearly_the_peak() {
        let schedule = Schedule { warmup: 0, ..SCHEDULE };
        assert_eq!(schedule.rate(0), 1e-3);
        assert!(schedule.rate(1) < 1e-3 && schedule.rate(1) > 0.99e-3);
    }

    #[test]
    fn schedules_that_cannot_be_followed_are_refused() {
        assert!(SCHEDULE.check().is_ok());
        for wrong in [
            Schedule { floor: 1e-2, ..SCHEDULE },
            Schedule { floor: -1.0, ..SCHEDULE },
            Schedule { peak: f64::NAN, ..SCHEDULE },
            Schedule { warmup: 111, ..SCHEDULE },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
