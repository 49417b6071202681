//! [`Action`]: one cell of a schedule, and its text as torch's IR writes it: `2F0`, `1UNSHARD`, `3SEND_F1`,
//! `(0F7;7B3)OVERLAP_F_B`.
//!
//! The last one is a composite: a forward of one stage and a full backward of another, which may run at the same time,
//! since neither may need the other. Whoever walks over a row takes cells apart by [`Action::parts`] and never has to
//! know it: a runner without anything to gain from running both at once runs the parts one after the other, in the order
//! in which they come; what the parts need must be there before the cell, and what they give is sent after it.

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
    /// F of the action's stage and B of another one, which may run at once; [`Action::parts`] are the two.
    Overlap {
        /// The microbatch of F.
        forward: usize,
        /// The stage of B.
        backward_stage: usize,
        /// The microbatch of B.
        backward: usize,
    },
}

impl Step {
    /// The microbatch, of those that have one; a composite has two, in its parts.
    #[must_use]
    pub const fn microbatch(self) -> Option<usize> {
        match self {
            Self::F(m) | Self::I(m) | Self::W(m) | Self::B(m) => Some(m),
            Self::SendF(m) | Self::RecvF(m) | Self::SendB(m) | Self::RecvB(m) => Some(m),
            Self::Unshard | Self::Reshard | Self::ReduceGrad | Self::Overlap { .. } => None,
        }
    }
}

impl Action {
    /// `step` on `stage`.
    #[must_use]
    pub const fn new(stage: usize, step: Step) -> Self {
        Self { stage, step }
    }

    /// F of one stage and B of another in one cell; each a stage and a microbatch.
    #[must_use]
    pub const fn overlap((stage, forward): (usize, usize), backward: (usize, usize)) -> Self {
        Self { stage, step: Step::Overlap { forward, backward_stage: backward.0, backward: backward.1 } }
    }

    /// What it consists of, in the order to run it in: F and B of a composite, else itself.
    pub fn parts(self) -> impl DoubleEndedIterator<Item = Self> + Clone {
        let (first, second) = match self.step {
            Step::Overlap { forward, backward_stage, backward } => {
                (Self::new(self.stage, Step::F(forward)), Some(Self::new(backward_stage, Step::B(backward))))
            }
            _ => (self, None),
        };
        [Some(first), second].into_iter().flatten()
    }

    /// Whether it computes: F, I, W, B or a composite of them.
    #[must_use]
    pub const fn computes(&self) -> bool {
        matches!(self.step, Step::F(_) | Step::I(_) | Step::W(_) | Step::B(_) | Step::Overlap { .. })
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
            Step::Overlap { forward, backward_stage, backward } => {
                return write!(f, "({}F{forward};{backward_stage}B{backward})OVERLAP_F_B", self.stage);
            }
        };
        write!(f, "{}{name}", self.stage)?;
        self.step.microbatch().map_or(Ok(()), |microbatch| write!(f, "{microbatch}"))
    }
}

impl FromStr for Action {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let refused = |why| ScheduleError::Text { text: text.escape_default().to_string(), why };
        if let Some(composite) = text.strip_prefix('(') {
            return parse_composite(composite).map_err(refused);
        }
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

/// Reads what follows the opening parenthesis of a composite.
fn parse_composite(text: &str) -> Result<Action, &'static str> {
    let (parts, name) = text.split_once(')').ok_or("its parenthesis is not closed")?;
    if name != "OVERLAP_F_B" {
        return Err("only OVERLAP_F_B has parts");
    }
    let parts: Option<Vec<Action>> = parts.split(';').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some([Action { stage, step: Step::F(forward) }, Action { stage: next, step: Step::B(backward) }]) => {
            Ok(Action::overlap((*stage, *forward), (*next, *backward)))
        }
        _ => Err("OVERLAP_F_B has two parts, a forward and then a full backward: (0F7;7B3)OVERLAP_F_B"),
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
    fn a_composite_is_a_forward_and_a_full_backward_and_its_text_agrees_both_ways() {
        let action: Action = "(0F7;7B3)OVERLAP_F_B".parse().unwrap();
        assert_eq!(action, Action::overlap((0, 7), (7, 3)));
        assert_eq!(action.to_string(), "(0F7;7B3)OVERLAP_F_B");
        let parts: Vec<_> = action.parts().map(|part| part.to_string()).collect();
        assert_eq!(parts, ["0F7", "7B3"]);
        let single: Action = "2I1".parse().unwrap();
        assert_eq!(single.parts().collect::<Vec<_>>(), [single]);
    }

    #[test]
    fn composites_of_anything_else_are_refused_with_what_they_consist_of() {
        for (text, why) in [
            ("(0F7;7B3", "not closed"),
            ("(0F7;7B3)", "only OVERLAP_F_B"),
            ("(0F7;7B3)OVERLAP_F_Bx", "only OVERLAP_F_B"),
            ("(0F7;7B3)B", "only OVERLAP_F_B"),
            ("()OVERLAP_F_B", "two parts"),
            ("(0F7)OVERLAP_F_B", "two parts"),
            ("(7B3;0F7)OVERLAP_F_B", "two parts"),
            ("(0F7;7I3)OVERLAP_F_B", "two parts"),
            ("(0F7;7B3;1F0)OVERLAP_F_B", "two parts"),
            ("(0F7;(1F1;7B3)OVERLAP_F_B)OVERLAP_F_B", "only OVERLAP_F_B"),
            ("(0F7; 7B3)OVERLAP_F_B", "two parts"),
            ("(0F7,7B3)OVERLAP_F_B", "two parts"),
        ] {
            let refused = text.parse::<Action>().unwrap_err().to_string();
            assert!(refused.contains("is no action") && refused.contains(why), "{text}: {refused}");
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
