//! The text form of a [`Stacking`]: `MEMBERS=STACK@AXIS`.

use std::{fmt, str::FromStr};

use super::{StackError, Stacking};

/// A pair as it is written on a command line and in rules files.
///
/// Around `=` there may be spaces, and `=>` is read as well; without `@` the dimension is the first. The text is the same for
/// both ways.
impl FromStr for Stacking {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let wrong = |why| StackError::Text { text: text.escape_default().to_string(), why };
        let halves = text.split_once("=>").or_else(|| text.split_once('='));
        let (apart, stacked) = halves.ok_or_else(|| {
            wrong("MEMBERS=STACK@AXIS is, for example 'layers.{layer}.experts.{expert}.w1.weight=layers.{layer}.moe.w1@0'")
        })?;
        Self::of(apart, stacked)
    }
}

impl Stacking {
    /// A pair whose stacked name ends with `@` and the dimension, the first where it doesn't.
    ///
    /// # Errors
    /// A dimension that is no number; as [`Self::new`].
    pub fn of(apart: &str, stacked: &str) -> Result<Self, StackError> {
        let (name, axis) = stacked.rsplit_once('@').unwrap_or((stacked, "0"));
        let axis = axis.trim().parse().map_err(|_| StackError::Text {
            text: stacked.escape_default().to_string(),
            why: "behind @ stands the number of the stack's dimension that its members lie along",
        })?;
        Self::new(apart.trim(), name.trim(), axis)
    }

    /// What its members are, as a word: `layers` or `experts`.
    #[must_use]
    pub const fn members(&self) -> &'static str {
        match self.index {
            super::Index::Layer => "layers",
            super::Index::Expert => "experts",
        }
    }

    /// Names of the members, as a pattern.
    #[must_use]
    pub fn member_names(&self) -> &str {
        self.apart.0.as_str()
    }

    /// Names of the stacks, as a pattern.
    #[must_use]
    pub fn stack_names(&self) -> &str {
        self.stacked.0.as_str()
    }
}

impl fmt::Display for Stacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}@{}", self.member_names(), self.stack_names(), self.axis)
    }
}
