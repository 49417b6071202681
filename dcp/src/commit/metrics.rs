//! What a checkpoint is judged by: a few named numbers that its saver gave, such as a loss.
//!
//! They are part of the log's state, which readers compare; so they are finite, there is one zero, and a number reads back as exactly the one
//! that was written (`serde_json`'s `float_roundtrip`).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::Label;

/// Named numbers of a checkpoint.
pub type Metrics = BTreeMap<Label, Finite>;

/// The most metrics that a saver may give: they stay in every folded state while the checkpoint lives.
pub const MOST_METRICS: usize = 32;

/// A number that is neither infinite nor NaN, so that any two can be compared.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Finite(f64);

/// A number that no metric can have.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{0} is no finite number, and nothing can be compared with it")]
pub struct NotFinite(f64);

impl Finite {
    /// The number.
    ///
    /// # Errors
    /// For infinities and NaN.
    pub fn new(number: f64) -> Result<Self, NotFinite> {
        // Adding a positive zero makes the negative one positive.
        if number.is_finite() { Ok(Self(number + 0.0)) } else { Err(NotFinite(number)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Finite {
    type Error = NotFinite;

    fn try_from(number: f64) -> Result<Self, NotFinite> {
        Self::new(number)
    }
}

impl From<Finite> for f64 {
    fn from(number: Finite) -> Self {
        number.0
    }
}

impl Ord for Finite {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Finite {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Finite {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Finite {}

impl fmt::Display for Finite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Finite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_compared_is_no_metric() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Finite::new(number).is_err());
        }
        assert!(serde_json::from_str::<Finite>("1e999").is_err());
        assert!(serde_json::from_str::<Finite>("null").is_err());
        assert_eq!(Finite::new(-0.0), Finite::new(0.0));
        assert_eq!(serde_json::to_string(&Finite::new(-0.0).unwrap()).unwrap(), "0.0");
    }

    proptest! {
        #[test]
        fn a_number_reads_back_as_it_was_written(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let number = Finite::new(number).unwrap();
            let text = serde_json::to_string(&number).unwrap();
            prop_assert_eq!(serde_json::from_str::<Finite>(&text).unwrap().get().to_bits(), number.get().to_bits());
        }
    }
}
