//! [`Policy`]: what a run shall keep. Rules add up: what one of them keeps stays.

use std::{
    fmt,
    num::{NonZeroU64, NonZeroUsize},
    str::FromStr,
    time::Duration,
};

use serde::Serialize;

use crate::{Error, Result, commit::Label};

/// What a run shall keep, beside what always stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The newest so many of the run's line.
    pub last: Option<NonZeroUsize>,
    /// Of each so many training steps the first checkpoint of the line.
    pub every: Option<NonZeroU64>,
    /// Whatever is no older than this, by the times of the store.
    pub within: Option<Duration>,
    /// The best by what their savers measured.
    pub best: Vec<Best>,
}

/// The best so many by a metric: `loss:min:3`, `eval/accuracy:max`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Best {
    /// The metric.
    pub metric: Label,
    /// Which values are good.
    pub order: Order,
    /// How many.
    pub count: NonZeroUsize,
}

/// Which values of a metric are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Small ones, as of a loss.
    Min,
    /// Large ones, as of an accuracy.
    Max,
}

/// A text that means no [`Best`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not METRIC:min[:COUNT] or METRIC:max[:COUNT], such as loss:min:3")]
pub struct PolicyError(String);

impl Policy {
    /// The newest so many of the line.
    #[must_use]
    pub fn last(count: NonZeroUsize) -> Self {
        Self { last: Some(count), ..Self::default() }
    }

    /// Whether there is a rule in it.
    ///
    /// # Errors
    /// `Incompatible` when there is none, or one that keeps nothing.
    pub fn check(&self) -> Result<()> {
        let rules = self.last.is_some() || self.every.is_some() || self.within.is_some();
        if !rules && self.best.is_empty() {
            return Err(
                Error::incompatible("a policy without a rule keeps nothing").hint("say what shall stay")
            );
        }
        if self.within == Some(Duration::ZERO) {
            return Err(Error::incompatible("no checkpoint is younger than nothing: this rule keeps none")
                .hint("give a period, such as 14d"));
        }
        Ok(())
    }

    /// Whether the times of the store are needed to decide.
    pub(super) const fn needs_times(&self) -> bool {
        self.within.is_some()
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.metric, self.order, self.count)
    }
}

impl FromStr for Best {
    type Err = PolicyError;

    /// Names of metrics may hold colons, so this reads from the right.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let no = || PolicyError(text.chars().take(160).collect());
        let (rest, last) = text.rsplit_once(':').ok_or_else(no)?;
        let order = |word: &str| match word {
            "min" => Some(Order::Min),
            "max" => Some(Order::Max),
            _ => None,
        };
        let (metric, order, count) = match order(last) {
            Some(order) => (rest, order, NonZeroUsize::MIN),
            None => {
                let count = last.parse().map_err(|_| no())?;
                let (metric, word) = rest.rsplit_once(':').ok_or_else(no)?;
                (metric, order(word).ok_or_else(no)?, count)
            }
        };
        Ok(Self { metric: metric.parse().map_err(|_| no())?, order, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_named_by_metric_order_and_count() {
        for (text, said) in [
            ("loss:min:3", "loss:min:3"),
            ("loss:min", "loss:min:1"),
            ("eval/a:b:max:2", "eval/a:b:max:2"),
            ("min:max", "min:max:1"),
        ] {
            assert_eq!(text.parse::<Best>().unwrap().to_string(), said);
        }
        for text in [
            "",
            "loss",
            "loss:",
            "loss:3",
            "loss:low:3",
            "loss:min:0",
            "loss:min:-1",
            ":min",
            "a b:min",
            "loss:min:3:x",
        ] {
            let error = text.parse::<Best>().unwrap_err();
            assert!(error.to_string().contains("loss:min:3"), "{error}");
        }
    }

    #[test]
    fn a_policy_that_keeps_nothing_is_refused() {
        assert!(Policy::default().check().is_err());
        assert!(Policy { within: Some(Duration::ZERO), ..Policy::default() }.check().is_err());
        assert!(Policy::last(NonZeroUsize::MIN).check().is_ok());
    }
}
