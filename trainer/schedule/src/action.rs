//! [`Action`]: one cell of a schedule, and its text as torch's IR writes it: `2F0`, `1UNSHARD`, `3SEND_F1`.

use std::{fmt, str::FromStr};

use super::ScheduleError;

/// What a rank does to one stage (and one microbatch). Microbatches are numbered within the data-parallel replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action {
    /// The stage.
    pub stage: usize,
    /// What.
    pub step: Step,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Forward.
    F(usize),
    /// Gradient of the inputs.
    I(usize),
    /// Gradient of the weights.
    W(usize),
    /// Both.
    B(usize),
    /// Activations to the next stage's rank.
    SendF(usize),
    /// Activations from the stage before.
    RecvF(usize),
    /// Gradients to the stage before.
    SendB(usize),
    /// Gradients from the next stage.
    RecvB(usize),
    /// Gathers the stage's weights, to stay.
    Unshard,
    /// Frees them.
    Reshard,
    /// Sums the stage's gradients over the data-parallel group.
    ReduceGrad,
}

impl Step {
    /// The microbatch, of those that have one.
    #[must_use]
    pub const fn microbatch(self) -> Option<usize> {
        match self {
            Self::F(m) | Self::I(m) | Self::W(m) | Self::B(m) => Some(m),
            Self::SendF(m) | Self::RecvF(m) | Self::SendB(m) | Self::RecvB(m) => Some(m),
            Self::Unshard | Self::Reshard | Self::ReduceGrad => None,
        }
    }
}

impl Action {
    /// `step` on `stage`.
    #[must_use]
    pub const fn new(stage: usize, step: Step) -> Self {
        Self { stage, step }
    }

    /// Whether it computes: F, I, W or B.
    #[must_use]
    pub const fn computes(&self) -> bool {
        matches!(self.step, Step::F(_) | Step::I(_) | Step::W(_) | Step::B(_))
    }

    /// Whether it gives the gradient of the stage's inputs: I or B.
    #[must_use]
    pub const fn is_backward(&self) -> bool {
        matches!(self.step, Step::I(_) | Step::B(_))
    }

    /// The action of the other side, of those that communicate.
    #[must_use]
    pub const fn partner(&self) -> Option<Self> {
        match self.step {
            Step::SendF(m) => Some(Self::new(self.stage + 1, Step::RecvF(m))),
            Step::RecvF(m) => match self.stage.checked_sub(1) {
                Some(before) => Some(Self::new(before, Step::SendF(m))),
                None => None,
            },
            Step::SendB(m) => match self.stage.checked_sub(1) {
                Some(before) => Some(Self::new(before, Step::RecvB(m))),
                None => None,
            },
            Step::RecvB(m) => Some(Self::new(self.stage + 1, Step::SendB(m))),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.step {
            Step::F(_) => "F",
            Step::I(_) => "I",
            Step::W(_) => "W",
            Step::B(_) => "B",
            Step::SendF(_) => "SEND_F",
            Step::RecvF(_) => "RECV_F",
            Step::SendB(_) => "SEND_B",
            Step::RecvB(_) => "RECV_B",
            Step::Unshard => "UNSHARD",
            Step::Reshard => "RESHARD",
            Step::ReduceGrad => "REDUCE_GRAD",
        };
        write!(f, "{}{name}", self.stage)?;
        self.step.microbatch().map_or(Ok(()), |microbatch| write!(f, "{microbatch}"))
    }
}

impl FromStr for Action {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let refused = |why| ScheduleError::Text { text: text.escape_default().to_string(), why };
        let (stage, rest) = leading_number(text);
        let stage = stage.ok_or_else(|| refused("it does not begin with the number of a stage"))?;
        let name = rest.trim_end_matches(|c: char| c.is_ascii_digit());
        let (microbatch, _) = leading_number(rest.get(name.len()..).unwrap_or_default());
        let with = |step: fn(usize) -> Step| {
            microbatch.map(step).ok_or_else(|| refused("it needs the number of a microbatch at its end"))
        };
        let step = match name {
            "F" => with(Step::F)?,
            "I" => with(Step::I)?,
            "W" => with(Step::W)?,
            "B" => with(Step::B)?,
            "SEND_F" => with(Step::SendF)?,
            "RECV_F" => with(Step::RecvF)?,
            "SEND_B" => with(Step::SendB)?,
            "RECV_B" => with(Step::RecvB)?,
            "UNSHARD" | "RESHARD" | "REDUCE_GRAD" if microbatch.is_some() => {
                return Err(refused("it takes no microbatch"));
            }
            "UNSHARD" => Step::Unshard,
            "RESHARD" => Step::Reshard,
            "REDUCE_GRAD" => Step::ReduceGrad,
            _ => return Err(refused("it names none of the actions")),
        };
        Ok(Self { stage, step })
    }
}

fn leading_number(text: &str) -> (Option<usize>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.parse().ok(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_action_agree_both_ways() {
        for text in ["2F0", "0I13", "1W2", "3B1", "3SEND_F1", "4RECV_F1", "1SEND_B0", "0RECV_B0"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        for text in ["1UNSHARD", "1RESHARD", "1REDUCE_GRAD"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn junk_missing_microbatches_and_unknown_names_are_refused() {
        for text in ["0F0junk", "0F", "F0", "0UNSHARD3", "0X1", "", "0f0", " 0F0", "0F99999999999999999999"] {
            let refused = text.parse::<Action>().unwrap_err().to_string();
            assert!(refused.contains("is no action"), "{text:?}: {refused}");
        }
    }

    #[test]
    fn partners_are_each_others_partner() {
        for text in ["3SEND_F1", "4RECV_F1", "1SEND_B0", "0RECV_B0"] {
            let action: Action = text.parse().unwrap();
            assert_eq!(action.partner().unwrap().partner().unwrap(), action);
        }
        assert_eq!("0SEND_B1".parse::<Action>().unwrap().partner(), None);
    }
}
